"""preprocess on sources in buckets, against servers of both protocols that are not ours."""

import gzip
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.data import made_imagenet
from botocore.exceptions import ClientError, NoCredentialsError
from google.api_core import exceptions
from google.auth.exceptions import RefreshError
from judged_rows import judged
from preprocess_sources import preprocess, write_images, write_rows
from pyarrow import parquet

from trainyard.contract import keys
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import DataError, TransientError
from trainyard.quality.inspect import inspect
from trainyard.spec.recipe import Recipe
from trainyard.storage import listing, storage
from trainyard.storage.buckets import bucket_source, gcs, objects, s3, stores

IMAGES = {"format": "image_folder", "max_bad_fraction": 0.1, "shard_examples": 16}
TABLE = {"format": "csv", "label": "bought", "features": {"visits": {"type": "numeric"}}}


def recipe(data: dict, path: object) -> Recipe:
    model = "mlp" if "features" in data else "cnn_small"
    return Recipe.model_validate({"name": "pets", "data": {**data, "path": str(path)}, "model": {"name": model}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "pets").mkdir()
    write_images(folder / "pets")
    (folder / "pets" / "dog" / ".thumbs").mkdir()
    (folder / "pets" / "dog" / ".thumbs" / "0.png").touch()
    (folder / "table").mkdir()
    write_rows(folder / "table" / "rows.csv.gz", 300)
    return folder


@pytest.fixture
def bucket(store, request):
    """An empty folder in a bucket."""
    return f"{store.uri}/{abs(hash(request.node.name))}"


@pytest.fixture
def filled(bucket, folder):
    """A folder in a bucket with `folder`, what consoles and macOS leave beside it, and one of almost that name."""
    for path in folder.rglob("*"):
        if path.is_file():
            put(bucket, path.relative_to(folder).as_posix(), path.read_bytes())
    for name in ("pets/", "pets/dog/", "pets/.DS_Store", "pets-old/dog/0.png"):
        put(bucket, name, b"")
    return bucket


def put(root: str, name: str, content: bytes) -> None:
    bucket, prefix = stores.split_uri(f"{root}/{name}")
    stores.open_store(bucket).write(prefix, content)


@pytest.mark.parametrize(
    ("served", "data", "source"),
    [("gs", IMAGES, "pets"), ("s3", IMAGES, "pets"), ("gs", TABLE, "table"), ("s3", TABLE, "table/rows.csv.gz")],
    indirect=["served"],
)
def test_a_bucket_gives_the_same_files_as_a_folder(data, source, filled, folder, tmp_path):
    local = str(folder / "local" / source.replace("/", "-"))
    if not Path(local).exists():
        preprocess(recipe(data, folder / source), Path(local))
    remote = preprocess(recipe(data, f"{filled}/{source}"), tmp_path / "remote")
    here, there = (storage.require(output).files for output in (local, remote))
    # TensorFlow numbers the functions of a graph by how many the process traced before.
    assert {name for name in here if here[name] != there.get(name)} <= {"transform/transform_fn/saved_model.pb"}
    assert here.keys() == there.keys()
    assert Examples.read(remote).fingerprint == Examples.read(local).fingerprint


def test_a_large_table_in_a_bucket_is_read_in_pieces(bucket, folder, tmp_path, monkeypatch):
    from trainyard.readers import csv_rows
    from trainyard.readers.rows import WHOLE
    from trainyard.readers.table_file import TableFile

    write_rows(tmp_path / "rows.csv", 600)
    content = (tmp_path / "rows.csv").read_bytes()
    put(bucket, "rows.csv", content)
    monkeypatch.setattr(csv_rows, "PIECE_BYTES", 5000)
    monkeypatch.setattr(csv_rows, "_MOST_BYTES", 2000)
    source = recipe(TABLE, f"{bucket}/rows.csv")
    pieces = csv_rows.csv_pieces(TableFile(f"{bucket}/rows.csv", "rows.csv", len(content)))
    assert len(pieces) > 5

    def rows(path, pieces):
        batches = (batch for piece in pieces for batch in judged(path, source, piece))
        return [row for batch in batches for row in batch.to_pylist()]

    assert rows(f"{bucket}/rows.csv", pieces) == rows(str(tmp_path / "rows.csv"), [WHOLE])


def test_a_parquet_file_in_a_bucket_is_read_by_row_groups_and_no_more_of_it_than_its_columns(
    bucket, tmp_path, monkeypatch
):
    from trainyard.readers import parquet_rows
    from trainyard.readers.rows import WHOLE
    from trainyard.readers.table_file import TableFile

    draw = np.random.default_rng(1)
    rows, group = 4000, 500
    unread = [draw.bytes(2000).hex() for _ in range(rows)]
    table = pa.table({"visits": draw.integers(0, 9, rows), "unread": unread, "bought": ["no", "yes"] * (rows // 2)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=group, write_statistics=False)
    content = (tmp_path / "a.parquet").read_bytes()
    put(bucket, "a.parquet", content)
    monkeypatch.setattr(parquet_rows, "PIECE_BYTES", 5000)
    monkeypatch.setattr(listing, "_SEEKING_CHUNK", 10_000)
    fetched, read_up_to = [], objects.ObjectStore.read_up_to

    def counted(*arguments):
        content = read_up_to(*arguments)
        fetched.append(len(content))
        return content

    monkeypatch.setattr(objects.ObjectStore, "read_up_to", counted)
    by_group = {"by": "group", "column": "visits"}  # a split by content reads whole rows
    source = recipe({**TABLE, "format": "parquet", "split": by_group}, f"{bucket}/a.parquet")
    uri = f"{bucket}/a.parquet"
    pieces = parquet_rows.parquet_pieces(TableFile(uri, "a.parquet", len(content)))
    assert len(pieces) == rows // group and sum(fetched) < 80_000  # 64 KiB at the end, which tell of the rest

    def read(path, pieces):
        batches = (batch for piece in pieces for batch in judged(path, source, piece))
        return [row for batch in batches for row in batch.to_pylist()]

    assert read(uri, pieces) == read(str(tmp_path / "a.parquet"), [WHOLE])
    assert sum(fetched) < len(content) / 4  # the end again for each piece


def test_a_folder_of_a_bucket_and_a_glob_name_the_same_files_as_a_local_one(filled, folder):
    from trainyard.steps.preprocess.readers.files import find_files

    for data, pattern in ((IMAGES, "pets/*/*.png"), (IMAGES, "pets"), (TABLE, "table/"), (TABLE, "table/*.gz")):
        names = []
        for source in (f"{filled}/{pattern}", str(folder / pattern)):
            files = find_files(recipe(data, source).data, source)
            names.append([files.name(path) for path in files.paths])
        assert names[0] == names[1] != []


@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_archives_in_a_bucket_give_the_examples_of_archives_in_a_folder(bucket, tmp_path, monkeypatch):
    from trainyard.steps.preprocess.readers import files

    monkeypatch.setattr(files, "PIECE_BYTES", 8 << 10)  # so that there are several
    made_imagenet.write(tmp_path / "data", "archives", 12, 4, 16, 2)
    for path in (tmp_path / "data").iterdir():
        put(bucket, path.name, path.read_bytes())
    outer = f"{bucket}/ILSVRC2012_img_train.tar"
    local_pieces = files.tar_pieces(str(tmp_path / "data" / "ILSVRC2012_img_train.tar"), "train")
    assert files.tar_pieces(outer, "train") == local_pieces and len(local_pieces) == 2
    split = {"format": "image_folder", "split": {"by": "folder", "eval": 0.3}}
    local, remote = (
        Examples.read(preprocess(recipe(split, source), tmp_path / name))
        for name, source in (("local", tmp_path / "data"), ("remote", bucket))
    )
    assert remote.fingerprint == local.fingerprint
    assert remote.splits["test"].class_counts == [4, 4] and remote.quarantined == 0


def test_hostile_names_and_sizes_of_a_bucket_are_set_aside_or_read_as_in_a_folder(bucket):
    from trainyard.steps.preprocess.readers.files import find_files
    from trainyard.steps.preprocess.readers.sources import Reader

    root = f"{bucket}/img[1]*"
    names = ("dog/0.png", "top.png", "dog/cut.png.gz", "dog/bomb.png.gz", "dog/huge.png")
    for name in names:
        put(root, name, b"no image")
    put(root, "dog/cut.png.gz", gzip.compress(b"no image")[:-4])
    put(root, "dog/bomb.png.gz", gzip.compress(bytes(20 << 20), 1))
    put(root, "dog/huge.png", bytes((16 << 20) + 5))
    source = recipe({**IMAGES, "max_image_pixels": 1}, root)
    files = find_files(source.data, root)
    assert [(item.file, item.reason) for item in files.bad] == [("dog/huge.png", "too_many_bytes")]
    rejects = Reader(source, files, None).read(files.paths)
    assert {item.file: item.reason for item in rejects} == {
        "dog/0.png": "not_an_image",
        "top.png": "missing_label",
        "dog/cut.png.gz": "broken_gzip",
        "dog/bomb.png.gz": "too_many_bytes",
    }
    put(f"{bucket}/tables", "a[1].csv", b"x")
    put(f"{bucket}/tables", "notes.txt", b"x")
    for path, ignored in (("tables/a[1].csv", ()), ("tables", ("notes.txt",)), ("tables/*.csv", ())):
        files = find_files(recipe(TABLE, f"{bucket}/{path}").data, f"{bucket}/{path}")
        assert (files.paths, files.ignored) == ([f"{bucket}/tables/a[1].csv"], ignored)


def test_the_fingerprint_follows_the_objects_and_nothing_else(filled):
    source = recipe(IMAGES, f"{filled}/pets")
    before = keys.fingerprint(source)
    put(filled, "pets/cat/", b"")
    put(filled, "pets-old/dog/1.png", b"x")
    assert keys.fingerprint(source) == before
    put(filled, "pets/dog/empty.png", b"x")
    assert keys.fingerprint(source) != before


def test_a_missing_bucket_folder_or_object_is_an_error_of_the_data(bucket, store):
    missing = f"{store.scheme}://no-such-one/pets"
    with pytest.raises(DataError, match=f"data.path: {missing}: there is no such bucket"):
        keys.fingerprint(recipe(IMAGES, missing))
    with pytest.raises(DataError, match="no files found"):
        keys.fingerprint(recipe(IMAGES, f"{bucket}/cats"))
    with pytest.raises(DataError, match="there is no such bucket or object"), bucket_source.source_errors("gone.png"):
        bucket_source.open_object(f"{bucket}/gone.png").read()


def test_the_prepared_folder_of_a_data_set_is_described_by_its_objects(bucket):
    from trainyard.steps.preprocess.readers.files import read_text

    put(bucket, "tfds/features.json", json.dumps({"a": 1}).encode())
    assert read_text(f"{bucket}/tfds/features.json") == '{"a": 1}'
    assert read_text(f"{bucket}/tfds/features") is None


def test_an_object_larger_than_one_request_and_an_empty_one_are_read_to_their_end(bucket, monkeypatch):
    monkeypatch.setattr(bucket_source, "_CHUNK", 1000)
    for size in (0, 999, 1000, 2001):
        put(bucket, "object", bytes(range(250)) * 9)
        put(bucket, "object", (bytes(range(250)) * 9)[:size])
        with bucket_source.open_object(f"{bucket}/object") as stream:
            assert (stream.read(10), stream.read()) == (
                (bytes(range(250)) * 9)[:size][:10],
                (bytes(range(250)) * 9)[:size][10:],
            )


def test_objects_with_content_encoding_gzip_are_unpacked_whatever_their_names(bucket, monkeypatch):
    from trainyard.steps.preprocess.readers.files import find_files
    from trainyard.steps.preprocess.readers.sources import Reader

    monkeypatch.setattr(bucket_source, "_CHUNK", 1000)
    content = b"visits,bought\n" + b"".join(b"%d,%d\n" % (row * 7919 % 1000, row % 2) for row in range(2000))
    put_compressed(f"{bucket}/rows.csv", content)
    put_compressed(f"{bucket}/rows.parquet", content)
    assert listing.list_files(bucket).files[0].bytes == len(gzip.compress(content, mtime=0)), "stored bytes"
    with listing.open_file(f"{bucket}/rows.csv", 1000) as stream:
        stream.seek(4000)
        assert stream.read() == content[4000:]
    assert inspect(f"{bucket}/rows.csv", "bought").rows == 2000
    tables = recipe(TABLE, f"{bucket}/rows.csv")
    files = find_files(tables.data, f"{bucket}/rows.csv")
    batches = [*Reader(tables, files, None).read(files.paths)]
    assert sum(len(batch) for batch in batches) == 2000
    with pytest.raises(DataError, match=r"rows\.parquet: is compressed with gzip as a whole.*without Content-Encoding"):
        inspect(f"{bucket}/rows.parquet")


def put_compressed(uri: str, content: bytes) -> None:
    """Upload `content` as `gcloud storage cp --gzip-local-all` does."""
    bucket, name = stores.split_uri(uri)
    packed = gzip.compress(content, mtime=0)
    if uri.startswith("gs://"):
        blob = gcs._client().bucket(bucket.removeprefix("gs://")).blob(name)
        blob.content_encoding = "gzip"
        blob.upload_from_string(packed, content_type="text/csv")
    else:
        s3._client().put_object(Bucket=bucket.removeprefix("s3://"), Key=name, Body=packed, ContentEncoding="gzip")


def test_a_store_that_does_not_answer_is_said_within_seconds(store, monkeypatch):
    monkeypatch.setattr(bucket_source, "_DEADLINE_SECONDS", 1.0)
    store.fault = lambda request: "503"
    start = time.monotonic()
    with pytest.raises(TransientError, match=rf"data.path: {store.scheme}://data/pets: cannot be reached"):
        keys.fingerprint(recipe(IMAGES, f"{store.scheme}://data/pets"))
    assert time.monotonic() - start < 120


def test_a_worker_that_loses_the_store_makes_the_run_one_to_repeat(store, monkeypatch, tmp_path):
    from trainyard.steps.preprocess.attempt import Attempt
    from trainyard.steps.preprocess.collect import collect
    from trainyard.steps.preprocess.readers.files import Files

    monkeypatch.setattr(bucket_source, "_DEADLINE_SECONDS", 1.0)
    store.fault = lambda request: "reset"
    root = f"{store.scheme}://data/pets"
    path = f"{root}/dog/0.png"
    with pytest.raises(TransientError, match=rf"^{path}: cannot be reached .*same command again\.$"):
        collect(recipe(IMAGES, root), Files(root, {path: ("state", 1)}), None, Attempt(tmp_path))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.Unauthorized("Anonymous caller does not have storage.objects.list access"), DataError),
        (exceptions.Forbidden("does not have storage.objects.get access"), DataError),
        (RefreshError("Reauthentication is needed"), DataError),
        (NoCredentialsError(), DataError),
        (ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "x"), DataError),
        (exceptions.ServiceUnavailable("later"), TransientError),
        (exceptions.TooManyRequests("later"), TransientError),
        (
            ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "x"),
            TransientError,
        ),
        (
            ClientError({"Error": {"Code": "ExpiredToken"}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "x"),
            TransientError,
        ),
    ],
)
def test_what_no_repetition_mends_is_told_from_what_one_may(error, kind, monkeypatch):
    scheme = "s3" if type(error).__module__.startswith("botocore") else "gs"
    store = stores.open_store(f"{scheme}://data", 0.1)

    def fail(name: str, limit: int) -> tuple[bytes, str]:
        raise error

    monkeypatch.setattr(store, "_read", fail)
    with pytest.raises(kind) as raised, bucket_source.source_errors(f"{scheme}://data/pets"):
        store.read("pets")
    assert ("grant the right to read" in str(raised.value)) == (kind is DataError)
