"""preprocess on gs:// sources, against an emulator of Google Cloud Storage that is not ours."""

import json
import socket
import time
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.auth.exceptions import RefreshError
from preprocess_sources import write_images, write_rows

from trainyard.core import buckets, keys, storage
from trainyard.core.artifacts import Examples
from trainyard.core.errors import DataError, TransientError
from trainyard.core.recipe import Recipe

IMAGES = {"format": "image_folder", "max_bad_fraction": 0.1, "shard_examples": 16}
TABLE = {"format": "csv", "label": "bought", "features": {"visits": {"type": "numeric"}}}


def recipe(data: dict, path: object) -> Recipe:
    model = "cnn_small" if data is IMAGES else "mlp"
    return Recipe.model_validate({"name": "pets", "data": {**data, "path": str(path)}, "model": {"name": model}})


def preprocess(recipe: Recipe, output: Path) -> str:
    from trainyard.preprocess.run import run

    with storage.stage(str(output), "trainyard.preprocess") as folder:
        run(recipe, folder)
    return str(output)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "pets").mkdir()
    write_images(folder / "pets")
    (folder / "table").mkdir()
    write_rows(folder / "table" / "rows.csv.gz", 300)
    return folder


@pytest.fixture(scope="module")
def emulator():
    server = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    port = _free_port()
    with server.create_server("127.0.0.1", port, in_memory=True):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def use(monkeypatch):
    """Points the client of this test at an address."""

    def point(address: str) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        buckets._client.cache_clear()

    yield point
    buckets._client.cache_clear()


@pytest.fixture
def bucket(emulator, use, folder, request):
    """A bucket that holds `folder`, what a console and macOS leave beside it, and a folder with almost the same name."""
    from google.cloud.storage import Client

    use(emulator)
    bucket = Client().create_bucket(f"data-{abs(hash(request.node.name))}")
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.blob(path.relative_to(folder).as_posix()).upload_from_filename(path)
    for name in ("pets/", "pets/dog/", "pets/.DS_Store", "pets/dog/.thumbs/0.png", "pets-old/dog/0.png"):
        bucket.blob(name).upload_from_string(b"")
    return bucket


@pytest.mark.parametrize(("data", "source"), [(IMAGES, "pets"), (TABLE, "table"), (TABLE, "table/rows.csv.gz")])
def test_a_bucket_gives_the_same_files_as_a_folder(data, source, bucket, folder, tmp_path):
    local = preprocess(recipe(data, folder / source), tmp_path / "local")
    remote = preprocess(recipe(data, f"gs://{bucket.name}/{source}"), tmp_path / "remote")
    here, there = (storage.require(output, "preprocess").files for output in (local, remote))
    # TensorFlow numbers the functions of a graph by how many the process traced before.
    assert {name for name in here if here[name] != there.get(name)} <= {"transform/transform_fn/saved_model.pb"}
    assert here.keys() == there.keys()
    assert Examples.read(remote).fingerprint == Examples.read(local).fingerprint


def test_a_folder_of_a_bucket_and_a_glob_name_the_same_files_as_a_local_one(bucket, folder):
    from trainyard.preprocess.files import find_files

    for data, pattern in ((IMAGES, "pets/*/*.png"), (IMAGES, "pets"), (TABLE, "table/"), (TABLE, "table/*.gz")):
        found = []
        for source in (f"gs://{bucket.name}/{pattern}", str(folder / pattern)):
            files = find_files(recipe(data, source).data, source)
            found.append([files.name(path) for path in files.paths])
        assert found[0] == found[1] != []


def test_the_fingerprint_follows_the_objects_and_nothing_else(bucket):
    source = recipe(IMAGES, f"gs://{bucket.name}/pets")
    before = keys.fingerprint(source)
    bucket.blob("pets/cat/").upload_from_string(b"")
    bucket.blob("pets-old/dog/1.png").upload_from_string(b"x")
    assert keys.fingerprint(source) == before
    bucket.blob("pets/dog/empty.png").upload_from_string(b"x")
    assert keys.fingerprint(source) != before


def test_a_missing_bucket_folder_or_object_is_an_error_of_the_data(bucket):
    with pytest.raises(DataError, match=r"data.path: gs://no-such-one/pets: there is no such bucket"):
        keys.fingerprint(recipe(IMAGES, "gs://no-such-one/pets"))
    with pytest.raises(DataError, match="no files found"):
        keys.fingerprint(recipe(IMAGES, f"gs://{bucket.name}/cats"))
    with pytest.raises(DataError, match="there is no such bucket or object"), buckets.faults("gone.png"):
        buckets.open_object(f"gs://{bucket.name}/gone.png").read()


def test_the_prepared_folder_of_a_data_set_is_described_by_its_objects(bucket):
    from trainyard.preprocess.files import read_text

    bucket.blob("tfds/features.json").upload_from_string(json.dumps({"a": 1}))
    assert read_text(f"gs://{bucket.name}/tfds/features.json") == '{"a": 1}'
    assert read_text(f"gs://{bucket.name}/tfds/features") is None


def test_a_store_that_does_not_answer_is_said_within_seconds(use):
    use(f"http://127.0.0.1:{_free_port()}")
    start = time.monotonic()
    with pytest.raises(TransientError, match=r"data.path: gs://data/pets: cannot be reached"):
        keys.fingerprint(recipe(IMAGES, "gs://data/pets"))
    assert time.monotonic() - start < 30


def test_a_worker_that_loses_the_store_makes_the_run_one_to_repeat(use, monkeypatch):
    from trainyard.preprocess.files import Files
    from trainyard.preprocess.runner import pipeline
    from trainyard.preprocess.sources import ReadRecords

    use(f"http://127.0.0.1:{_free_port()}")
    monkeypatch.setattr(buckets, "_READ_SECONDS", 1)
    path = "gs://data/pets/dog/0.png"
    with (
        pytest.raises(TransientError, match=rf"^{path}: cannot be reached .*same command again\.$"),
        pipeline("") as root,
    ):
        _ = root | ReadRecords(recipe(IMAGES, "gs://data/pets"), Files("gs://data/pets", [path]), None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.Unauthorized("Anonymous caller does not have storage.objects.list access"), DataError),
        (exceptions.Forbidden("does not have storage.objects.get access"), DataError),
        (RefreshError("Reauthentication is needed"), DataError),
        (exceptions.ServiceUnavailable("later"), TransientError),
        (exceptions.TooManyRequests("later"), TransientError),
    ],
)
def test_what_no_repetition_mends_is_told_from_what_one_may(error, kind):
    with pytest.raises(kind, match=str(error.args[0])) as raised, buckets.faults("gs://data/pets"):
        raise error
    assert ("gcloud auth application-default login" in str(raised.value)) == (kind is DataError)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
