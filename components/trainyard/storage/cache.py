"""Copies of buckets' folders on this machine, for its later processes too, within a bound.

A copy appears whole, by a rename. Who opens one holds a shared lock (flock) on its folder until the process ends, also by
a kill. Before another one is fetched, those that nobody holds go, the least recently used first, until there is room.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
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
SHARE = 0.5  # chosen: of the whole disk, where no size is given
_PARTIAL = ".partial-"

# The open descriptors of the copies that this process has opened: their locks.
_held: dict[Path, int] = {}


def entry(key: str, manifest: Manifest, fetch: Callable[[Path], None]) -> Path:
    """Return the copy `key` of what `manifest` lists, which `fetch` puts into a new folder unless it is there.

    No process removes it before this one has ended. Raises `ConfigurationError` where TRAINYARD_CACHE_SIZE is no
    size, `InfrastructureError` where the cache's folder belongs to somebody else, and what `fetch` raises.
    """
    cache = _folder()
    final = cache / key
    with os_errors(final):
        while not (_hold(final) and _is_whole(final, manifest)):
            with _locked(cache):
                _make_room(cache, manifest.bytes)
                partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=cache))
                lock = _lock(partial, fcntl.LOCK_SH)
            try:
                fetch(partial)
                (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
                with _locked(cache):
                    if not (_hold(final) and _is_whole(final, manifest)):  # nobody was faster
                        _remove(final)
                        folders.publish(partial, final, manifest)
                        _hold(final)
            finally:
                os.close(lock)
                shutil.rmtree(partial, ignore_errors=True)
    return final


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a new folder beside the copies that is gone when the block ends; that of a killed process goes with the next."""
    cache = _folder()
    with os_errors(cache), _locked(cache):
        for folder in cache.glob(f"{_PARTIAL}*"):
            _remove_unheld(folder)
        own = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=cache))
        lock = _lock(own, fcntl.LOCK_SH)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def discard(folder: Path) -> bool:
    """Have the copy in `folder`, which is damaged, fetched anew by the next process; return False where it is no copy."""
    if folder.parent != _folder():
        return False
    with os_errors(folder, "removed"):
        (folder / MANIFEST).unlink(missing_ok=True)
    return True


def _hold(folder: Path) -> bool:
    """Return whether `folder` is there; it is then marked as used, and stays until this process ends."""
    while True:
        try:
            descriptor = _held.pop(folder, None) or _lock(folder, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                os.utime(descriptor)
                _held[folder] = descriptor
                return True
            os.close(descriptor)  # it was removed and made anew meanwhile
        except FileNotFoundError:
            return False


def _make_room(cache: Path, needed: int) -> None:
    """Remove what killed processes left, and copies that nobody holds until `needed` more bytes fit the bound."""
    sizes: dict[Path, int] = {}
    used: dict[Path, float] = {}
    for folder in cache.iterdir():
        if folder.name.startswith(_PARTIAL) and _remove_unheld(folder):
            continue
        with contextlib.suppress(FileNotFoundError):
            used[folder] = folder.stat().st_mtime
            sizes[folder] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    excess = sum(sizes.values()) + needed - _bound(cache)
    for folder in sorted(sizes, key=lambda each: used[each]):
        if excess > 0 and _remove_unheld(folder):
            excess -= sizes[folder]


def _remove_unheld(folder: Path) -> bool:
    """Return whether `folder` is gone: nobody held it, or it got its final name meanwhile."""
    try:
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    try:
        _remove(folder)
    finally:
        os.close(lock)
    return True


def _remove(folder: Path) -> None:
    """Remove `folder` under another name first, so that nobody finds half of it."""
    away = folder.with_name(f"{_PARTIAL}{os.urandom(4).hex()}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    paths = {name: folder / name for name in manifest.files}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    if not (folder / MANIFEST).is_file() or manifests.missing(manifest, sizes, str(folder), ""):
        return False
    with contextlib.suppress(DataError):
        manifests.verify(manifest, folder)
        return True
    return False


def _bound(cache: Path) -> float:
    given = os.environ.get(SIZE)
    try:
        return quantity.in_bytes(given) if given else SHARE * shutil.disk_usage(cache).total
    except ValueError as error:
        raise ConfigurationError(f"{SIZE}: {given!r} is no size. Give one such as 20Gi.") from error


def _folder() -> Path:
    """Return the folder of copies. Raises `InfrastructureError` where it belongs to somebody else."""
    cache = Path(os.environ.get(CACHE) or Path(tempfile.gettempdir()) / f"trainyard-cache-{os.geteuid()}")
    with os_errors(cache):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cache.stat().st_uid != os.geteuid():
        raise InfrastructureError(f"{cache}: belongs to another user. Name a folder of your own in {CACHE}.")
    return cache


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = _lock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path, how: int) -> int:
    """Return the descriptor of `folder` that holds the lock `how`. Raises `BlockingIOError` as flock does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
