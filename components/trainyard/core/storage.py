"""Folders that are either wholly there or not there: the commit protocol of every output.

A writer fills a staging folder of its own beside the final name; `stage` then checksums every file, writes
`manifest.json` and publishes by one atomic operation. On a file system that is the rename of the folder. A reader opens
a folder only through its manifest, so it never sees half a result.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import google_crc32c

from trainyard.core.errors import ConfigurationError, DataError, InfrastructureError, TransientError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class File:
    """One file of a committed folder: its size and CRC32C, the checksum that object stores use too."""

    bytes: int
    crc32c: str


@dataclass(frozen=True)
class Manifest:
    """What a committed folder holds and who wrote it."""

    producer: str
    files: dict[str, File]
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """SHA-256 over names, sizes and checksums: equal for equal content."""
        lines = [f"{name} {file.bytes} {file.crc32c}\n" for name, file in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def local_path(uri: str) -> Path:
    """Return the local path of `uri`. Raises `ConfigurationError` for a bucket: this version writes to file systems."""
    if "://" in uri:
        raise ConfigurationError(
            f"{uri}: this version of Trainyard writes to folders, mounted volumes included, not to buckets. "
            "Name a folder as the environment's storage."
        )
    return Path(uri)


def measured(path: Path) -> File:
    """Return the size and the checksum of the local file `path`."""
    checksum = google_crc32c.Checksum()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum.update(chunk)
    return File(bytes=path.stat().st_size, crc32c=checksum.hexdigest().decode())


def join(uri: str, *parts: str) -> str:
    """Return `uri` with `parts` below it."""
    return "/".join([uri.rstrip("/"), *parts])


def committed(uri: str) -> Manifest | None:
    """Return the manifest of the folder at `uri`, or None where nothing was published.

    Raises `DataError` where the manifest itself cannot be read.
    """
    path = local_path(uri) / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(
            producer=document["producer"],
            files={name: File(**entry) for name, entry in document["files"].items()},
            schema_version=document["schema_version"],
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a manifest of Trainyard ({error}). Remove the folder and run the step again."
        ) from error


def require(uri: str, made_by: str) -> Manifest:
    """Return the manifest of the committed folder at `uri`; `made_by` names the step that should have written it.

    Every file's presence and size is checked. Raises `DataError` where the folder or a file is missing or cut.
    """
    manifest = committed(uri)
    if manifest is None:
        raise DataError(f"{uri}: no committed output of the step '{made_by}'. Run with --from {made_by}.")
    for name, file in manifest.files.items():
        path = Path(uri) / name
        found = path.stat().st_size if path.is_file() else None
        if found != file.bytes:
            raise DataError(
                f"{path}: {'missing' if found is None else f'{found} bytes'}, its manifest says {file.bytes}. "
                f"Run with --from {made_by} to write it again."
            )
    return manifest


@contextmanager
def stage(uri: str, producer: str) -> Iterator[Path]:
    """Yield an empty folder whose content becomes the folder `uri` when the block ends without an error.

    After an error the staging folder is removed and `uri` is as it was. When somebody published `uri` meanwhile, equal
    content counts as success. Raises `InfrastructureError` on a full disk, a missing permission, or a different folder
    already at `uri`.
    """
    final = local_path(uri)
    staging = final.parent / ".staging" / f"{final.name}-{secrets.token_hex(4)}"
    with _os_errors(final):
        staging.mkdir(parents=True)
    try:
        with _os_errors(final):
            yield staging
            manifest = _write_manifest(staging, producer)
            _publish(staging, final, manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_text(uri: str, text: str) -> None:
    """Replace the file at `uri` by `text` in one step: readers see the old content or the new, never a mixture."""
    final = local_path(uri)
    with _os_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(final)
            _sync(final.parent)
        finally:
            temporary.unlink(missing_ok=True)


def read_text(uri: str) -> str | None:
    """Return the text of the file at `uri`, or None where there is none."""
    try:
        return local_path(uri).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove(uri: str) -> None:
    """Remove the folder or file at `uri`; the manifest goes first, so that no reader opens what is being removed."""
    path = local_path(uri)
    (path / MANIFEST).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def lease(uri: str) -> Iterator[None]:
    """Hold the right to write `uri` until the block ends; the system frees it when the process dies.

    Raises `TransientError` at once where another process holds it.
    """
    path = local_path(uri)
    lock = path.parent / f".{path.name}.lock"
    with _os_errors(path):
        lock.parent.mkdir(parents=True, exist_ok=True)
        stream = lock.open("a+")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            owner = stream.read().strip() or "another process"
            raise TransientError(
                f"{uri}: {owner} is writing it. Wait until it ends and run the same command again, or name another storage."
            ) from error
        stream.truncate(0)
        stream.write(f"process {os.getpid()}")
        stream.flush()
        yield


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InfrastructureError(
                f"{path}: the disk is full. Free some space and run the same command again."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InfrastructureError(
                f"{error.filename or path}: may not be written ({os.strerror(error.errno)}). "
                "Grant the permission, or name another storage in the environment."
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            file = next((parent for parent in (path, *path.parents) if parent.is_file()), path)
            raise InfrastructureError(
                f"{file}: is a file where a folder is needed. Remove it, or name another storage in the environment."
            ) from error
        raise


def _write_manifest(staging: Path, producer: str) -> Manifest:
    paths = sorted(staging.rglob("*"))
    names = [path.relative_to(staging).as_posix() for path in paths if path.is_file()]
    manifest = Manifest(producer=producer, files={name: measured(staging / name) for name in names})
    for file in names:
        _sync(staging / file)
    for folder in (path for path in paths if path.is_dir()):
        _sync(folder)
    write_text(str(staging / MANIFEST), json.dumps(asdict(manifest), indent=1, sort_keys=True))
    return manifest


def _publish(staging: Path, final: Path, manifest: Manifest) -> None:
    try:
        staging.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        winner = committed(str(final))
        if winner is None or winner.digest != manifest.digest:
            raise InfrastructureError(
                f"{final}: something else is there ({winner.producer if winner else 'no manifest'}). "
                "Remove it or name another storage."
            ) from error
    _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
