"""Copies of buckets' folders on this machine, for its later processes too, within a bound.

A copy appears complete, by a rename. A process that opens one has a shared lock (flock) on its folder until the process
ends, by a kill too. Before another copy is fetched, unlocked ones are removed, the least recently used first, until
there is room. Folders that `cached_files` fetches file by file are among them, and lose file by file.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainyard import quantity
from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.storage import folders
from trainyard.storage import manifest as manifests
from trainyard.storage.disk import os_errors
from trainyard.storage.manifest import MANIFEST, Manifest

CACHE = "TRAINYARD_CACHE"
SIZE = "TRAINYARD_CACHE_SIZE"
SHARE = 0.5  # chosen: of the disk, if no size is set
FILES = ".files"
"""The suffix of folders that are fetched file by file."""
_PARTIAL = ".partial-"

# The descriptors by which this process locks the copies that it has opened.
_locks: dict[Path, int] = {}


def entry(key: str, manifest: Manifest, fetch: Callable[[Path], None]) -> Path:
    """Return the copy `key` of what `manifest` lists, which `fetch` puts into a new folder unless it is there.

    No process removes it before this one has ended. Raises `ConfigurationError` if TRAINYARD_CACHE_SIZE is no
    size, `InfrastructureError` if the cache's folder belongs to another user, and what `fetch` raises.
    """
    cache = folder()
    final = cache / key
    with os_errors(final):
        while not has(key, manifest):
            with locked(cache):
                make_room(cache, manifest.bytes)
            with temporary_folder() as partial:
                fetch(partial)
                (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
                with locked(cache):
                    if not has(key, manifest):  # no other process was faster
                        _remove(final)
                        folders.publish(partial, final, manifest)
                        hold(final)
    return final


def has(key: str, manifest: Manifest) -> bool:
    """Return whether the copy `key` is there, whole; no process removes it then before this one has ended."""
    final = folder() / key
    with os_errors(final):
        return hold(final) and _is_complete(final, manifest)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder beside the copies, removed when the block ends, or by the next process after a kill."""
    cache = folder()
    with os_errors(cache), locked(cache):
        for partial in cache.glob(f"{_PARTIAL}*"):
            _remove_unused(partial)
        own = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=cache))
        lock = lock_of(own, fcntl.LOCK_SH)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def discard(copy: Path) -> bool:
    """Mark the copy in the folder `copy` as damaged: the next process fetches it again. Return False if it is none."""
    if copy.parent != folder():
        return False
    with os_errors(copy, "removed"):
        (copy / MANIFEST).unlink(missing_ok=True)
    return True


def hold(copy: Path) -> bool:
    """Return whether the folder `copy` is there; if so, mark it as used and lock it until this process ends."""
    while True:
        try:
            descriptor = _locks.pop(copy, None) or lock_of(copy, fcntl.LOCK_SH)
            if is_at(descriptor, copy):
                os.utime(descriptor)
                _locks[copy] = descriptor
                return True
            os.close(descriptor)  # it was replaced meanwhile
        except FileNotFoundError:
            return False


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether what is open as `descriptor` is what is at `path` now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def make_room(cache: Path, needed: int, uses: Mapping[Path, int] | None = None, before: float = -1) -> bool:
    """Remove what killed processes left, and unlocked copies until `needed` more bytes fit; return whether they do.

    uses: which files of folders that are fetched file by file the caller wants again, and when, as a number that grows
    with time. They go last, the latest wanted first, and only if that is later than `before`.
    """
    uses, sizes, used = uses or {}, {}, {}
    for item in _entries(cache):
        if item.name.startswith(_PARTIAL) and _remove_unused(item):
            continue
        with contextlib.suppress(FileNotFoundError):
            used[item] = item.stat().st_mtime
            sizes[item] = _size(item)
    excess = sum(sizes.values()) + needed - _size_limit(cache)
    for item in sorted(sizes, key=lambda path: (path in uses, -uses.get(path, 0), used[path])):
        if excess > 0 and uses.get(item, math.inf) > before and _remove_unused(item):
            excess -= sizes[item]
    return excess <= 0


def _entries(cache: Path) -> Iterator[Path]:
    """Yield what is removed as one: copies of folders, and the single files of those that are fetched by file."""
    for item in cache.iterdir():
        if item.suffix == FILES:
            yield from (path for path in item.rglob("*") if path.is_file())
        else:
            yield item


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _remove_unused(path: Path) -> bool:
    """Remove the folder or file `path` unless it is locked; return whether it is gone, under that name at least."""
    try:
        lock = lock_of(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    try:
        if not is_at(lock, path):  # its owner let it go and began another between the opening and the lock
            return False
        _remove(path)
    finally:
        os.close(lock)
    return True


def _remove(path: Path) -> None:
    """Remove the file `path`, or rename the folder and remove it, so that no process sees half of it."""
    if path.is_file():
        path.unlink(missing_ok=True)
        return
    away = path.with_name(f"{_PARTIAL}{os.urandom(4).hex()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def _is_complete(folder: Path, manifest: Manifest) -> bool:
    paths = {name: folder / name for name in manifest.files}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    if not (folder / MANIFEST).is_file() or manifests.mismatch(manifest, sizes, str(folder), ""):
        return False
    with contextlib.suppress(DataError):
        manifests.verify(manifest, folder)
        return True
    return False


def _size_limit(cache: Path) -> float:
    size = os.environ.get(SIZE)
    try:
        return quantity.in_bytes(size) if size else SHARE * shutil.disk_usage(cache).total
    except ValueError as error:
        raise ConfigurationError(f"{SIZE}: {size!r} is no size. Give one such as 20Gi.") from error


def folder() -> Path:
    """Return the folder of copies. Raises `InfrastructureError` if it belongs to another user."""
    cache = Path(os.environ.get(CACHE) or Path(tempfile.gettempdir()) / f"trainyard-cache-{os.geteuid()}")
    with os_errors(cache):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cache.stat().st_uid != os.geteuid():
        raise InfrastructureError(f"{cache}: belongs to another user. Name a folder of your own in {CACHE}.")
    return cache


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Have the block be the only one, of all processes, that locks `path`."""
    lock = lock_of(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def lock_of(path: Path, how: int) -> int:
    """Return the descriptor of `path` that holds the lock `how`. Raises `BlockingIOError` as flock does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
