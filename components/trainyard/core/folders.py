"""Committed folders on a file system: the rename of a folder publishes it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.core import manifest as manifests
from trainyard.core.errors import DataError, InfrastructureError, TransientError
from trainyard.core.manifest import MANIFEST, Manifest

STAGING = ".staging"
TEMPORARY = ".partial"


def committed(uri: str) -> Manifest | None:
    """See `storage.committed`."""
    path = Path(uri) / MANIFEST
    try:
        return manifests.parse(path.read_bytes(), str(path))[0]
    except (FileNotFoundError, NotADirectoryError):
        return None


def require(uri: str, made_by: str) -> Manifest:
    """See `storage.require`."""
    manifest = committed(uri)
    if manifest is None:
        raise DataError(f"{uri}: no committed output of the step '{made_by}'. Run with --from {made_by}.")
    paths = {name: Path(uri) / name for name in manifest.files}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    if fault := manifests.missing(manifest, sizes, uri, made_by):
        raise fault
    return manifest


def local(uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> Path:  # noqa: ARG001 - all are here
    """See `storage.local`."""
    require(uri, made_by)
    return Path(uri)


def read(folder: str, name: str) -> bytes | None:
    """See `storage.read`."""
    try:
        return (Path(folder) / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def children(uri: str) -> list[str]:
    """See `storage.children`."""
    try:
        return sorted(path.name for path in Path(uri).iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_unfinished(uri: str) -> None:
    """See `storage.remove_unfinished`."""
    folder = Path(uri)
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    for temporary in folder.glob(".*" + TEMPORARY):
        temporary.unlink(missing_ok=True)


@contextmanager
def stage(uri: str, producer: str, last: str = "") -> Iterator[Path]:  # noqa: ARG001 - a rename shows all at once
    """See `storage.stage`."""
    final = Path(uri)
    staging = final.parent / STAGING / f"{final.name}-{secrets.token_hex(4)}"
    with os_errors(final):
        staging.mkdir(parents=True)
    try:
        with os_errors(final):
            yield staging
            manifest = _write_manifest(staging, producer)
            publish(staging, final, manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_text(uri: str, text: str) -> None:
    """See `storage.write_text`."""
    final = Path(uri)
    with os_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}{TEMPORARY}")
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
    """See `storage.read_text`."""
    try:
        return Path(uri).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove(uri: str) -> None:
    """See `storage.remove`."""
    path = Path(uri)
    if path.is_dir():
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def lease(uri: str) -> Iterator[None]:
    """See `storage.lease`: the system frees it when the process dies."""
    path = Path(uri)
    lock = path.parent / f".{path.name}.lock"
    with os_errors(path):
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
def os_errors(path: Path) -> Iterator[None]:
    """Raise `InfrastructureError` where the block meets a full disk, a missing permission or a file for a folder."""
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


def publish(staging: Path, final: Path, manifest: Manifest) -> None:
    """Rename `staging` to `final`; equal content that is there already is as good. Else raises `InfrastructureError`."""
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


def _write_manifest(staging: Path, producer: str) -> Manifest:
    manifest = manifests.measured_folder(staging, producer)
    for path in staging.rglob("*"):
        _sync(path)
    write_text(str(staging / MANIFEST), manifest.to_json())
    return manifest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
