"""Uploads to a volume: one stream, which the program in a pod publishes whole or not at all."""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.errors import InfrastructureError
from trainyard.storage import storage, uploads, volume_copies
from trainyard_control.cluster import volume_pod, volume_program

FILES = {"rows/a.csv": b"a\n1\n" * 9000, "rows/b.csv": b"", ".used": b"now", "manifest.json": b"{}"}


def stream(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    volume_pod._write(
        written, {name: lambda content=content: uploads._Text(content) for name, content in files.items()}
    )
    return written.getvalue()


def receive(content: bytes, folder: Path) -> None:
    staging = folder.parent / ".staging" / f"{folder.name}-{os.urandom(4).hex()}"
    volume_program.receive(io.BytesIO(content), str(folder), str(staging), "manifest.json")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_whole_stream_is_published_and_once_more_changes_nothing(tmp_path: Path) -> None:
    receive(stream(FILES), tmp_path / "new")
    receive(stream(FILES), tmp_path / "new")
    assert contents(tmp_path) == {f"new/{name}": content for name, content in FILES.items()}
    receive(stream({".used": b"later"}), tmp_path / "new")
    assert (tmp_path / "new/.used").read_bytes() == b"later"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.97])
def test_a_cut_stream_leaves_nothing(tmp_path: Path, share: float) -> None:
    whole = stream(FILES).rstrip(b"\0")
    with pytest.raises((OSError, tarfile.TarError)):
        receive(whole[: int(share * len(whole))], tmp_path / "new")
    assert contents(tmp_path) == {} and not (tmp_path / "new").exists()
    receive(stream(FILES), tmp_path / "new")


def test_other_bytes_than_were_sent_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="other bytes arrived"):
        receive(stream(FILES).replace(b"1\na", b"2\na", 1), tmp_path / "new")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="is no file of an upload"):
        receive(stream({name: b"x"}), tmp_path / "below" / "new")
    assert contents(tmp_path) == {}


def test_two_people_may_send_the_same_at_once(tmp_path: Path) -> None:
    content = stream(FILES)
    with ThreadPoolExecutor(8) as people:
        assert list(people.map(lambda _: receive(content, tmp_path / "new"), range(24))) == [None] * 24
    assert contents(tmp_path) == {f"new/{name}": content for name, content in FILES.items()}


class Volume(volume_copies.VolumeCopies):
    """A volume that is a folder here, which the pod's program fills."""

    def __init__(self, folder: Path) -> None:
        self.sent = 0

    def committed(self, uri: str) -> storage.Manifest | None:
        return storage.folders.committed(uri)

    def read_text(self, uri: str, errors: str = "strict") -> str | None:
        return storage.folders.read_text(uri, errors)

    def send(self, uri: str, files: dict, last: str) -> None:
        written = io.BytesIO()
        volume_pod._write(written, files)
        self.sent += len(written.getvalue())
        receive(written.getvalue(), Path(uri))


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    volume = Volume(tmp_path / "volume")
    monkeypatch.setattr(storage, "_volumes", {str(tmp_path / "volume"): volume})
    return volume


def test_a_second_upload_sends_nothing(tmp_path: Path, volume: Volume) -> None:
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/rows.csv").write_text("a\n1\n")
    upload = uploads.plan(str(tmp_path / "data"), str(tmp_path / "volume"), "data.path")
    uploads.store(upload)
    assert Path(upload.uri, "deep/rows.csv").read_text() == "a\n1\n"
    before = volume.sent
    uploads.store(upload)
    assert volume.sent == before > 0
    manifest = storage.folders.require(upload.folder, storage.ADVICE)
    assert manifest.files == upload.files and manifest.origin["path"] == str(tmp_path / "data")


@pytest.mark.usefixtures("volume")
@pytest.mark.parametrize("place", ["volume", "folder"])
def test_a_file_that_changes_meanwhile_is_not_published(tmp_path: Path, place: str) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    upload = uploads.plan(str(tmp_path / "rows.csv"), str(tmp_path / place), "data.path")
    for text in ("a\n2\n", "a"):
        (tmp_path / "rows.csv").write_text(text)
        with pytest.raises(InfrastructureError, match="was changed while it was uploaded"):
            uploads.store(upload)
    assert not Path(upload.folder).exists()
    (tmp_path / "rows.csv").write_text("a\n1\n")
    uploads.store(upload)
    assert Path(upload.uri).read_text() == "a\n1\n"


@pytest.mark.parametrize("content", ["[]", "null", "{", '{"bytes_per_second": null}'])
def test_damaged_records_in_the_cache_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data.csv").write_text("a\n1\n")
    first = uploads.plan(str(tmp_path / "data.csv"), str(tmp_path / "root"), "data.path")
    (record,) = (tmp_path / "cache").glob("digests-*.json")
    record.write_text(content)
    uploads._speed_record(first.folder).write_text(content)
    assert uploads.plan(str(tmp_path / "data.csv"), str(tmp_path / "root"), "data.path") == first
    assert uploads.seconds_for(first, 10) == 10 / uploads._BYTES_PER_SECOND
