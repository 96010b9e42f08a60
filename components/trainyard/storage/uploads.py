"""Uploads of local files to a storage: `<storage>/uploads/<digest>/`, where the digest is that of names and content.

To a folder the files are copied as an output is written, and to a volume that is not mounted here they are one stream.
In a bucket, the manifest is written last, so that a folder without one is incomplete. What a cut upload left there is
used by the next one of the same content, by whoever it is. Digests of local files are kept in the cache, by size and
time of change.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

import google_crc32c

from trainyard.errors import DataError, InfrastructureError
from trainyard.storage import cache, listing, storage
from trainyard.storage.buckets import objects, stores
from trainyard.storage.buckets.objects import ABSENT, Changed
from trainyard.storage.disk import os_errors
from trainyard.storage.manifest import MANIFEST, File, Manifest
from trainyard.storage.volume_copies import Member, VolumeCopies
from trainyard.uris import is_bucket

FOLDER = "uploads"
PRODUCER = "upload"
"""The producer that the manifest of an upload names."""

_USED = ".used"  # the object with the time of the last submission that names the upload, or of the upload's start
_USED_AFTER = timedelta(days=1)  # chosen: between two writes of it
_CHUNK_BYTES = 1 << 20
_SETTLED_SECONDS = 2.0  # chosen: longer than the resolution of any file system's times
_DIGEST = 32  # letters; chosen
NAME = f"[0-9a-f]{{{_DIGEST}}}"
"""The pattern of an upload's folder."""
_BYTES_PER_SECOND = 10e6  # chosen: of a home's connection, before the first upload has been measured
_MEASURED_BYTES = 4 << 20  # chosen: less is the time of its requests

Progress = Callable[[int], None]
"""Called with the number of bytes that are done, by several threads."""


@dataclass(frozen=True)
class Upload:
    """Local files, and their place in a storage.

    path: what the person named. uri: the same in the storage. folder: that of the content. sources: local files by name
    below `folder`.
    """

    path: str
    uri: str
    folder: str
    sources: dict[str, str] = field(repr=False)
    files: dict[str, File] = field(repr=False)

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def is_cached(self) -> bool:
        """True if Trainyard made the file for the run: nobody named it."""
        return self.path.startswith(f"{cache.folder()}/")


def plan(path: str, root: str, name: str) -> Upload:
    """Return the upload of `path` (an absolute path of a file, a folder or a glob) to the storage `root`.

    name: what names the path, for messages. Every file is read, except those whose digest is cached. Raises `DataError`
    if there are no files or one cannot be read.
    """
    found = listing.list_files(path, name)
    if not found.files:
        raise DataError(f"{name}: '{path}' names no file. Correct the path.")
    if bad := [file for file in found.files if file.reason]:
        raise DataError(
            f"{name}: {found.root}/{bad[0].name}: {bad[0].detail}, so it cannot be uploaded ({len(bad):,} such files). "
            f"Remove it, or replace it by a file.{listing.copy_advice((file.reason for file in bad), path)}"
        )
    above = os.path.dirname(found.root) if found.is_folder else found.root  # noqa: PTH120
    paths = [f"{found.root.rstrip('/')}/{file.name}" for file in found.files]
    sources = {_below(path, above): path for path in paths}
    with os_errors(Path(found.root), "read"):
        measured = _measured(found.root, sources)
    lines = [f"{name} {file.bytes} {digest}\n" for name, (file, digest) in sorted(measured.items())]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()[:_DIGEST]
    folder = storage.join(root, FOLDER, digest)
    files = {name: file for name, (file, _) in measured.items()}
    return Upload(path, f"{folder}/{_below(path.rstrip('/'), above)}", folder, sources, files)


def _below(path: str, folder: str) -> str:
    return path[len(folder.rstrip("/")) + 1 :]


def stored_uri(path: str, root: str, name: str) -> tuple[str, Upload | None]:
    """Return the URI of the file `path` in the storage `root`, and the upload that brings it there.

    That is None if the file is in a bucket or in that storage already. Raises as `plan`.
    """
    if is_bucket(path) or path.startswith(f"{root.rstrip('/')}/"):
        return path, None
    upload = plan(path, root, name)
    return upload.uri, upload


def store(upload: Upload) -> None:
    """Copy the files of `upload` to its storage, unless they are there. Raises as `send`."""
    if (names := missing(upload)) is not None:
        send(upload, names, lambda _: None)


def _copy(upload: Upload, progress: Progress) -> None:
    """Copy the files to the folder `upload.folder` of this machine."""
    with storage.stage(upload.folder, PRODUCER, origin=_origin(upload)) as folder:
        for file, source in upload.sources.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            with (folder / file).open("wb") as target:
                shutil.copyfileobj(_Source(source, upload.files[file], progress), target, _CHUNK_BYTES)
    storage.write_text(storage.join(upload.folder, _USED), datetime.now(UTC).isoformat())


class _Source:
    """A local file that is sent, which must be the one that was measured. Raises `InfrastructureError` otherwise."""

    def __init__(self, path: str, file: File, progress: Progress) -> None:
        self.size, self._path, self._file, self._progress = file.bytes, path, file, progress
        self._left, self._sum = file.bytes, google_crc32c.Checksum()

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, at most `size`."""
        if not self._left:
            return b""
        wanted = min(size, self._left) if size >= 0 else self._left
        with os_errors(Path(self._path), "read"):
            content = self._stream.read(wanted)
        self._left -= len(content)
        self._sum.update(content)
        self._progress(len(content))
        is_whole = not self._left and self._sum.hexdigest().decode() == self._file.crc32c
        is_changed = len(content) < wanted or not (self._left or is_whole)
        if is_changed or not self._left:
            self._stream.close()
        if is_changed:
            raise InfrastructureError(f"{self._path}: was changed while it was uploaded. Run the same command again.")
        return content

    @cached_property
    def _stream(self) -> IO[bytes]:
        return open(self._path, "rb")  # noqa: PTH123


class _Text(io.BytesIO):
    """A text that is sent."""

    @property
    def size(self) -> int:
        return len(self.getvalue())


def _stream(upload: Upload, volume: VolumeCopies, progress: Progress) -> None:
    """Send the files to a volume that is not mounted here."""
    manifest = Manifest(PRODUCER, upload.files, origin=_origin(upload)).to_json().encode()
    files: dict[str, Callable[[], Member]] = {
        name: partial(_Source, upload.sources[name], file, progress) for name, file in upload.files.items()
    }
    volume.send(upload.folder, files | {_USED: _now, MANIFEST: partial(_Text, manifest)}, MANIFEST)


def _now() -> Member:
    return _Text(datetime.now(UTC).isoformat().encode())


def _origin(upload: Upload) -> dict[str, str]:
    return {"path": upload.path, "time": datetime.now(UTC).isoformat()}


def missing(upload: Upload) -> list[str] | None:
    """Return the names of the files that the storage lacks, None if the upload is complete.

    Says in the storage that the upload is used, so that `prune` keeps it until a run names it.
    """
    now, used = datetime.now(UTC), last_used(upload.folder)
    is_new = used is not None and now - used <= _USED_AFTER
    if not is_bucket(upload.folder):
        if storage.committed(upload.folder) is None:
            return [*upload.files]
        if volume := None if is_new else storage.volume(upload.folder):
            volume.send(upload.folder, {_USED: _now}, _USED)
        elif not is_new:
            storage.write_text(storage.join(upload.folder, _USED), now.isoformat())
        return None
    store, name = stores.locate(upload.folder)
    if not is_new:
        store.write(f"{name}/{_USED}", now.isoformat().encode())
    if storage.committed(upload.folder) is not None:
        return None
    present = {item.name.removeprefix(f"{name}/"): item.bytes for item in store.list(f"{name}/").objects}
    return [path for path, file in upload.files.items() if present.get(path) != file.bytes]


def send(upload: Upload, names: list[str], progress: Progress) -> None:
    """Upload the files `names`, and complete the upload.

    Raises `InfrastructureError` if a file changes meanwhile; then the upload stays incomplete.
    """
    start = time.monotonic()
    if volume := storage.volume(upload.folder):
        _stream(upload, volume, progress)
    elif not is_bucket(upload.folder):
        _copy(upload, progress)
    else:
        _send(upload, names, progress)
    total = sum(upload.files[path].bytes for path in names)
    if total > _MEASURED_BYTES:
        speed = total / (time.monotonic() - start)
        storage.write_text(str(_speed_record(upload.folder)), json.dumps({"bytes_per_second": speed}))


def _send(upload: Upload, names: list[str], progress: Progress) -> None:
    store, name = stores.locate(upload.folder)
    large = [path for path in names if upload.files[path].bytes > objects.RANGE_BYTES]

    def send_one(path: str) -> None:
        store.upload(f"{name}/{path}", Path(upload.sources[path]), upload.files[path])
        progress(upload.files[path].bytes)

    for path in large:
        store.upload_in_parts(f"{name}/{path}", Path(upload.sources[path]), upload.files[path], progress)
    objects.in_parallel(send_one, [path for path in names if path not in large])
    manifest = Manifest(PRODUCER, upload.files, origin=_origin(upload))
    with suppress(Changed):  # another process was faster with the same content
        text = manifest.to_json(attempt="", writer=os.urandom(8).hex())
        store.write(f"{name}/{MANIFEST}", text.encode(), match=ABSENT)


def seconds_for(upload: Upload, total: int) -> float:
    """Return the seconds that `total` bytes take, at the speed of the last upload to that storage."""
    with suppress(DataError, TypeError, ValueError):
        record = storage.read_json(str(_speed_record(upload.folder)))
        return total / float(record.get("bytes_per_second", _BYTES_PER_SECOND))
    return total / _BYTES_PER_SECOND


def _speed_record(folder: str) -> Path:
    root = stores.locate(folder)[0].root if is_bucket(folder) else os.path.dirname(folder)  # noqa: PTH120
    return cache.folder() / f"speed-{hashlib.sha256(root.encode()).hexdigest()[:16]}.json"


def last_used(folder: str) -> datetime | None:
    """Return the time of the last submission that named the upload in `folder`, or of its start; None if unknown."""
    text = storage.read_text(storage.join(folder, _USED))
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    return None


def _measured(root: str, sources: dict[str, str]) -> dict[str, tuple[File, str]]:
    """Return size, CRC32C and SHA-256 of the files, from the cache if size and time are those of the last time."""
    record = cache.folder() / f"digests-{hashlib.sha256(root.encode()).hexdigest()[:16]}.json"
    known: dict[str, list[Any]] = {}
    with suppress(DataError):
        known = storage.read_json(str(record))
    now = time.time_ns()
    kept: dict[str, list[object]] = {}

    def one(name: str) -> tuple[File, str]:
        path = sources[name]
        status = os.stat(path)  # noqa: PTH116
        state = [status.st_size, status.st_mtime_ns, status.st_ino]
        entry = known.get(path)
        if not entry or entry[:3] != state:
            entry = [*state, *_digests(path)]
        if now - status.st_mtime_ns > _SETTLED_SECONDS * 1e9:  # a later write of the same moment would not be seen
            kept[path] = entry
        return File(status.st_size, entry[3]), entry[4]

    with ThreadPoolExecutor(objects.THREADS, "digest") as pool:
        measured = dict(zip(sources, pool.map(one, sources), strict=True))
    storage.write_text(str(record), json.dumps(kept))
    return measured


def _digests(path: str) -> tuple[str, str]:
    """Return CRC32C and SHA-256 of the local file at `path`."""
    crc, sha = google_crc32c.Checksum(), hashlib.sha256()
    with open(path, "rb") as stream:  # noqa: PTH123
        while chunk := stream.read(_CHUNK_BYTES):
            crc.update(chunk)
            sha.update(chunk)
    return crc.hexdigest().decode(), sha.hexdigest()
