"""Uploads of local data to a bucket, against real servers of both protocols."""

from __future__ import annotations

import os
import random
import re
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from object_stores import Request, Store, s3_store

from trainyard.errors import ConfigurationError, DataError, InfrastructureError, TransientError
from trainyard.runtime import recipe_packages
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.packages import Wheel, wheels
from trainyard.storage import cache, listing, storage, uploads
from trainyard.storage.buckets import objects, s3, stores
from trainyard_control.api import uploads as api
from trainyard_control.local import retention

KIND = environments.load("kind")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder of three files, last changed a minute ago."""
    folder = tmp_path / "pets"
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        os.utime(file, (file.stat().st_mtime - 60,) * 2)
    (folder / ".hidden").write_text("not data")
    return folder


def bring(path: object, root: str) -> uploads.Upload:
    upload = uploads.plan(str(path), root, "data.path")
    api.send({"data.path": upload}, KIND)
    return upload


def sent(store: Store) -> list[Request]:
    return [request for request in store.requests if request.method in ("PUT", "POST")]


def read(uri: str) -> dict[str, bytes]:
    found = listing.list_files(uri)
    files = {}
    for file in found.files:
        with listing.open_file(f"{found.root}/{file.name}") as stream:
            files[file.name] = stream.read()
    return files


def test_a_step_elsewhere_unpacks_the_wheels_of_the_storage(
    store: Store, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shift-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("shift.py", "WIDTH = 5\n")
        archive.writestr("shift-1.0.dist-info/METADATA", "Name: shift\nVersion: 1.0\n")
    wheel = Wheel(sha256=cache.digest_of(path), bytes=path.stat().st_size, location=str(path))
    recipe = recipes.load("digits").model_copy(update={"packages": {path.name: wheel}})
    environment = environments.load("kind").model_copy(update={"storage": uri})
    remote, planned = api.with_uploads(recipe, environment)
    assert api.send(planned, environment)[0].startswith(f"packages.{path.name}: 1 file")
    assert "is in" in api.send(planned, environment)[0]
    path.unlink()
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "there"))
    assert (recipe_packages.folder(wheels(remote)) / "shift.py").read_text() == "WIDTH = 5\n"


@pytest.mark.parametrize("below", ["", "/cat/1.jpg", "/*/1.jpg"])
def test_a_folder_a_file_and_a_glob_are_read_from_the_bucket_as_from_the_disk(
    below: str, store: Store, uri: str, pets: Path
) -> None:
    upload = bring(f"{pets}{below}", uri)
    assert re.match(rf"{uri}/uploads/{uploads.NAME}/", upload.uri)
    assert read(upload.uri) == read(f"{pets}{below}") != {}


def test_the_second_upload_sends_nothing_and_reads_no_file(store: Store, uri: str, pets: Path) -> None:
    first = bring(pets, uri)
    for file in pets.rglob("*.jpg"):
        state = file.stat()
        file.write_text("x" * state.st_size)  # nobody looks, because size and time are the same
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    store.calm()
    assert bring(pets, uri).uri == first.uri
    assert not sent(store) and len(store.requests) <= 2


def test_another_content_or_name_is_another_upload(store: Store, uri: str, pets: Path) -> None:
    first = bring(pets, uri)
    (pets / "cat/1.jpg").write_text("CAT/1.jpg")
    second = bring(pets, uri)
    (pets / "cat/1.jpg").rename(pets / "cat/3.jpg")
    third = bring(pets, uri)
    assert len({first.folder, second.folder, third.folder}) == 3
    assert read(first.uri)["cat/1.jpg"] == b"cat/1.jpg"


def test_a_cut_upload_is_incomplete_and_resumed(store: Store, uri: str, pets: Path) -> None:
    upload = uploads.plan(str(pets), uri, "data.path")
    place, name = stores.locate(upload.folder)
    place.upload(f"{name}/pets/cat/1.jpg", pets / "cat/1.jpg", upload.files["pets/cat/1.jpg"])
    assert storage.committed(upload.folder) is None
    assert uploads.missing(upload) == ["pets/cat/2.jpg", "pets/dog/1.jpg"]
    bring(pets, uri)
    assert read(upload.uri) == read(str(pets))


def test_two_people_may_upload_the_same_at_once(store: Store, uri: str, pets: Path) -> None:
    upload = uploads.plan(str(pets), uri, "data.path")
    with ThreadPoolExecutor(4) as people:
        done = list(people.map(lambda _: uploads.send(upload, [*upload.files], lambda _: None), range(4)))
    assert done == [None] * 4
    assert read(upload.uri) == read(str(pets)) and uploads.missing(upload) is None


def test_a_full_store_is_named_at_once_and_holds_no_half_upload(monkeypatch: pytest.MonkeyPatch, pets: Path) -> None:
    with s3_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        upload = uploads.plan(str(pets), f"{store.uri}/store", "data.path")
        store.fault = lambda request: "507" if request.method == "PUT" and ".jpg" in request.path else None
        start = time.monotonic()
        with pytest.raises(InfrastructureError, match=r"the store has no room for it .*507.*\. Make room there"):
            uploads.store(upload)
        assert time.monotonic() - start < 20 and storage.committed(upload.folder) is None
        store.fault = lambda request: None
        uploads.store(upload)
        assert read(upload.uri) == read(str(pets))


def test_a_file_that_changes_meanwhile_ends_the_upload_without_a_manifest(store: Store, uri: str, pets: Path) -> None:
    upload = uploads.plan(str(pets), uri, "data.path")
    (pets / "dog/1.jpg").write_text("DOG/1.jpg")
    with pytest.raises(InfrastructureError, match=r"dog/1.jpg: was changed while it was uploaded"):
        api.send({"data.path": upload}, KIND)
    assert storage.committed(upload.folder) is None


def test_a_large_file_goes_in_parts_and_continues_after_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(objects, "RANGE_BYTES", 5 << 20)
    monkeypatch.setattr(objects, "THREADS", 2)
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "large.bin"
    file.write_bytes(random.Random(1).randbytes((25 << 20) + 3))
    with s3_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        upload = uploads.plan(str(file), f"{store.uri}/runs", "data.path")
        store.fault = lambda request: "reset" if "partNumber=4" in request.path else None
        with monkeypatch.context() as impatient, pytest.raises(TransientError, match=r"large.bin: cannot be reached"):
            impatient.setattr(objects, "DEADLINE_SECONDS", 0.1)
            api.send({"data.path": upload}, KIND)
        assert not read(upload.uri)
        store.calm()
        api.send({"data.path": upload}, KIND)
        again = {request.path.partition("partNumber=")[2][:1] for request in sent(store)} - {""}
        assert "4" in again and "1" not in again
        assert read(upload.uri) == {"large.bin": file.read_bytes()}


def test_a_large_file_that_changes_is_not_stored(
    store: Store, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(17 << 20))
    upload = uploads.plan(str(file), uri, "data.path")
    file.write_bytes(bytes(16 << 20) + bytes([1]) * (1 << 20))
    with pytest.raises(InfrastructureError, match=r"was changed while it was uploaded"):
        api.send({"data.path": upload}, KIND)
    assert not read(upload.uri)


def test_more_than_the_limit_is_asked_for_with_size_and_time(store: Store, uri: str, pets: Path) -> None:
    upload, asked = uploads.plan(str(pets), uri, "data.path"), []
    with pytest.raises(ConfigurationError, match=r"--upload-limit 10: .* of data.path would be uploaded, in about 0 s"):
        api.send({"data.path": upload}, KIND, "10", lambda text: bool(asked.append(text)))
    assert asked and uploads.missing(upload) == list(upload.files)
    api.send({"data.path": upload}, KIND, "10", lambda text: True)
    assert api.send({"data.path": upload}, KIND, "10") == [f"data.path: is in {upload.folder} already"]


def test_what_cannot_be_uploaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.path: .*names no file"):
        uploads.plan(str(tmp_path / "nothing.csv"), "s3://b/r", "data.path")
    with pytest.raises(ConfigurationError, match=r"is on this machine, and the storage .* is no bucket"):
        api.upload(str(tmp_path), "local")


def test_a_link_to_nothing_is_named(tmp_path: Path, pets: Path) -> None:
    (pets / "cat/3.jpg").symlink_to("nothing.jpg")
    with pytest.raises(DataError, match=r"cat/3.jpg: the link leads to nothing.jpg.*cannot be uploaded"):
        uploads.plan(str(pets), "s3://bucket/runs", "data.path")


def test_prune_keeps_an_upload_that_an_output_names_or_a_submission_used(store: Store, uri: str, pets: Path) -> None:
    named, unnamed = bring(pets, uri), bring(pets / "cat", uri)
    origin = {"recipe": {"data": {"path": named.uri}}}
    with storage.stage(f"{uri}/digits/preprocess/9999", "trainyard.preprocess", origin=origin) as folder:
        (folder / "content").write_text("x")

    def uploads_to_delete(days: int) -> list[str]:
        now = datetime.now(UTC) + timedelta(days=days)
        return [item.name for item in retention._unused_uploads(uri, [], now)]

    assert uploads_to_delete(13) == []
    assert uploads_to_delete(15) == [unnamed.folder.rpartition("/")[2]]
    (removal,) = retention._unused_uploads(uri, [], datetime.now(UTC) + timedelta(days=15))
    assert "a submission has used it meanwhile, so it stays" in retention.remove(uri, removal, ())
    storage.write_text(f"{unnamed.folder}/.used", "2026-01-01T00:00:00+00:00")
    assert retention.remove(uri, removal, ()) == ""
    assert not storage.children(unnamed.folder) and read(named.uri)
    gone = retention.Removal("output", "digits", "preprocess/9999", 1)
    later = datetime.now(UTC) + timedelta(days=15)
    assert [item.name for item in retention._unused_uploads(uri, [gone], later)] == [named.folder.rpartition("/")[2]]
