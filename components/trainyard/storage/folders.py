"""Committed folders on a file system, published by renaming a folder."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from trainyard.errors import DataError, InfrastructureError
from trainyard.storage import damage, disk
from trainyard.storage import manifest as manifests
from trainyard.storage.disk import os_errors, staging_errors
from trainyard.storage.manifest import MANIFEST, STAGING, Manifest

TEMPORARY = ".partial"
_RESERVED = ".reserved"


def committed(uri: str) -> Manifest | None:
    path = Path(uri) / MANIFEST
    content = _content(path, manifests.MAX_BYTES)
    return None if content is None else manifests.parse(content, str(path))[0]


def require(uri: str, advice: str) -> Manifest:
    manifest = committed(uri)
    if manifest is None:
        raise damage.missing(uri, advice)
    paths = {name: Path(uri) / name for name in manifest.files}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    damage.require_sizes(manifest, sizes, uri, advice)
    return manifest


def local(uri: str, advice: str, only: Callable[[str], bool] | None = None) -> Path:
    with os_errors(Path(uri), "read"):
        damage.require_unchanged(require(uri, advice), Path(uri), advice, only)
    return Path(uri)


def read(folder: str, name: str, advice: str) -> bytes | None:
    manifest = committed(folder)
    size = manifest.files[name].bytes if manifest and name in manifest.files else 0
    content = _content(Path(folder) / name, manifests.max_bytes(name, size))
    if content is None or manifest is None:
        return content
    return damage.verified(content, manifest, name, folder, advice)


def read_bytes(uri: str, limit: int) -> bytes | None:
    return _content(Path(uri), limit)


def children(uri: str) -> list[str]:
    with os_errors(Path(uri), "read"), suppress(FileNotFoundError, NotADirectoryError):
        return sorted(path.name for path in Path(uri).iterdir() if not path.name.startswith("."))
    return []


def sizes(uri: str) -> dict[str, int]:
    sizes_by_name: dict[str, int] = {}
    with os_errors(Path(uri), "read"):
        for path in Path(uri).rglob("*"):
            with suppress(FileNotFoundError):  # another process has removed it meanwhile
                status = path.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    sizes_by_name[path.relative_to(uri).as_posix()] = status.st_size
    return sizes_by_name


def remove_unfinished(uri: str) -> None:
    folder = Path(uri)
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    with os_errors(folder, "removed"):
        for temporary in folder.glob(".*" + TEMPORARY):
            temporary.unlink(missing_ok=True)


def remove_abandoned(uri: str) -> None:
    """See `storage.remove_abandoned`: a live writer holds a lock on its staging folder."""
    final = Path(uri)
    with os_errors(final, "removed"), suppress(FileNotFoundError, NotADirectoryError):
        for staging in (final.parent / STAGING).iterdir():
            if re.fullmatch(re.escape(final.name) + "-[0-9a-f]{8}", staging.name):
                shutil.rmtree(staging, ignore_errors=True)
            else:
                _remove_unlocked(staging)


@contextmanager
def stage(
    uri: str,
    producer: str,
    last: str = "",  # noqa: ARG001 - a rename shows all at once
    origin: dict[str, Any] | None = None,
) -> Iterator[Path]:
    final = Path(uri)
    with os_errors(final):
        staging, lock = _locked_folder(final.parent / STAGING, final.name)
    try:
        with staging_errors(staging, final):
            yield staging
        with os_errors(final):
            manifest = _write_manifest(staging, producer, origin)
            publish(staging, final, manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def write_text(uri: str, text: str) -> None:
    final, content = Path(uri), text.encode()
    reserved = _reserved_path(final)
    with os_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_new(_temporary_path(final), final, io.BytesIO(content))
            reserved.unlink(missing_ok=True)
        except OSError as error:
            if disk.disk_full_cause(error) is None or not _overwrite(reserved, content):
                raise
            reserved.replace(final)
        _sync(final.parent)


def publish_file(path: Path, uri: str) -> None:
    final = Path(uri)
    with os_errors(final):
        with path.open("rb") as source:
            _write_new(_temporary_path(final), final, source)
        _sync(final.parent)


def require_place(uri: str) -> None:
    with os_errors(Path(uri).parent):
        Path(uri).parent.mkdir(parents=True, exist_ok=True)


def reserve(uri: str, size: int) -> None:
    final = Path(uri)
    with os_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _write_new(_temporary_path(final), _reserved_path(final), io.BytesIO(bytes(size)))


def read_text(uri: str, errors: str = "strict") -> str | None:
    content = _content(Path(uri), manifests.MAX_TEXT_BYTES)
    return None if content is None else manifests.text(content, uri, errors)


def remove(uri: str) -> None:
    """See `storage.remove`: an output is renamed first, so that a kill leaves no part of it in the way."""
    path = Path(uri)
    with os_errors(path, "removed"), suppress(FileNotFoundError):
        _reserved_path(path).unlink(missing_ok=True)
        if path.is_dir() and not path.is_symlink():  # for a link, only the link itself is removed
            if (path / MANIFEST).is_file():
                (path.parent / STAGING).mkdir(exist_ok=True)
                path = path.rename(path.parent / STAGING / f"{path.name}-{secrets.token_hex(4)}")
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def lease(uri: str, wait: bool = False) -> Iterator[None]:
    """See `storage.lease`: the system frees it when the process dies. Raises `InfrastructureError` without locks."""
    with _lock_file(Path(uri)) as stream:
        try:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                damage.held(uri, stream.read().strip() or "another process", wait)
                fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            raise disk.fault(error, Path(uri), "locked") from error
        with suppress(OSError):  # a full disk: the name only informs refused writers
            stream.truncate(0)
            stream.write(f"process {os.getpid()}")
            stream.flush()
        yield


@contextmanager
def reading(uri: str) -> Iterator[None]:
    with _lock_file(Path(uri)) as stream:
        with suppress(OSError):  # without locks there is no lease either
            fcntl.flock(stream, fcntl.LOCK_SH)
        yield


def publish(staging: Path, final: Path, manifest: Manifest) -> None:
    """Rename `staging` to `final`. Raises `InfrastructureError` if other content is there."""
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


def _lock_file(path: Path) -> IO[str]:
    """Return the open file whose lock is the lease of `path`."""
    with os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return (path.parent / f".{path.name}.lock").open("a+")


def _write_manifest(staging: Path, producer: str, origin: dict[str, Any] | None) -> Manifest:
    manifest = manifests.measure_folder(staging, producer, origin)
    for path in staging.rglob("*"):
        _sync(path)
    write_text(str(staging / MANIFEST), manifest.to_json())
    return manifest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not flush folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _locked_folder(parent: Path, name: str) -> tuple[Path, int]:
    """Return a new folder in `parent` and the descriptor of its lock."""
    while True:
        folder = parent / f"{name}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        with suppress(FileNotFoundError):  # removed as abandoned before it was locked
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # no locks on folders here, so none is removed either
                fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.is_dir():
                return folder, lock
            os.close(lock)


def _remove_unlocked(folder: Path) -> None:
    """Remove `folder` unless a live process holds a lock on it, or locks are unsupported, as on NFS."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _content(path: Path, limit: int) -> bytes | None:
    """Return the content of the regular file at `path`, None if it is missing.

    Raises `DataError` for a pipe or a device, which would block the reader, and for a file larger than `limit` bytes.
    """
    with os_errors(path, "read"), suppress(FileNotFoundError, NotADirectoryError):
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            status = os.fstat(stream.fileno())
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path}: is a pipe or a device. A file is expected. Remove it.")
            content = stream.read(limit + 1) if status.st_size <= limit else b""
        if max(len(content), status.st_size) > limit:
            raise manifests.too_large(str(path), limit)
        return content
    return None


def _write_new(temporary: Path, final: Path, source: IO[bytes]) -> None:
    """Copy `source` to `final` through the new file `temporary`, which is removed in any case."""
    try:
        with temporary.open("wb") as stream:
            shutil.copyfileobj(source, stream, 1 << 20)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_path(final: Path) -> Path:
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}{TEMPORARY}")


def _reserved_path(final: Path) -> Path:
    return final.with_name(f".{final.name}{_RESERVED}")


def _overwrite(reserved: Path, content: bytes) -> bool:
    """Write `content` into the file `reserved` if it fits its size; return True if it did."""
    with suppress(FileNotFoundError), reserved.open("r+b") as stream:
        if len(content) <= os.fstat(stream.fileno()).st_size:
            stream.write(content)
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
            return True
    return False
