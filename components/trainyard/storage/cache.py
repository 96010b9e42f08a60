"""Local copies of bucket folders, shared by the processes of this machine, within a size limit.

A copy appears complete, by a rename. A process that opens one holds a shared lock (flock) on its folder until it ends,
even by a kill. Before another copy is fetched, unlocked copies are removed, least recently used first, until there is
room. Folders that `file_stream` fetches file by file count too, and lose single files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import google_crc32c

from trainyard import quantity
from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.storage import folders
from trainyard.storage.disk import NO_LOCKS, os_errors
from trainyard.storage.manifest import MANIFEST, File, Manifest

CACHE = "TRAINYARD_CACHE"
SIZE = "TRAINYARD_CACHE_SIZE"
SHARE = 0.5  # chosen: of the disk, if no size is set
FILES = ".files"
"""Suffix of folders fetched file by file."""
_PARTIAL = ".partial-"
_DESCRIPTION = ".description"

# Descriptors of the locks on the copies that this process has opened. The lock keeps threads from holding one twice.
_locks: dict[Path, int] = {}
_holding = threading.Lock()


def entry(key: str, manifest: Manifest, fetch: Callable[[Path], None]) -> Path:
    """Return the copy `key` of the files in `manifest`; `fetch` fills a new folder if it is missing.

    No process removes it before this one ends. Raises `ConfigurationError` for a malformed TRAINYARD_CACHE_SIZE,
    `InfrastructureError` if the cache's folder belongs to another user, and the errors of `fetch`.
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


def derived(key: str, description: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder `key`, which `fill` makes from what `description` says; it is verified by this text alone.

    No process removes it before this one ends. Raises as `entry`.
    """
    content = description.encode()
    manifest = Manifest(
        "cache", {_DESCRIPTION: File(len(content), google_crc32c.Checksum(content).hexdigest().decode())}
    )

    def fetch(folder: Path) -> None:
        fill(folder)
        (folder / _DESCRIPTION).write_bytes(content)

    return entry(key, manifest, fetch)


def file(name: str, sha256: str, write: Callable[[Path], object]) -> Path:
    """Return the file `name` of this SHA-256, which `write` writes to a path if it is missing or damaged.

    No process removes it before this one ends. Raises `DataError` if `write` writes another content, and as `entry`.
    """

    def fill(folder: Path) -> None:
        write(folder / name)
        require_digest(digest_of(folder / name), sha256, name)

    folder = derived(f"file-{sha256}", name, fill)
    with os_errors(folder / name, "read"):
        if digest_of(folder / name) != sha256:
            discard(folder)
            folder = derived(folder.name, name, fill)
    return folder / name


def digest_of(path: Path) -> str:
    """Return the SHA-256 of the file at `path`, '' if there is none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
    return ""


def require_digest(found: str, expected: str, place: str) -> None:
    """Raise `DataError` if the SHA-256 `found` of the file at `place` is not the `expected` one."""
    if found != expected:
        raise DataError(
            f"{place}: has the SHA-256 {found[:12]}…, and {expected[:12]}… is expected. It was changed. Delete its "
            "folder, and start the run from the recipe's file."
        )


def has(key: str, manifest: Manifest) -> bool:
    """Return True if the copy `key` is complete; then no process removes it before this one ends."""
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
    """Mark the copy in the folder `copy` as damaged, to be fetched again. Return False if it is no copy."""
    if copy.parent != folder():
        return False
    with os_errors(copy, "removed"):
        (copy / MANIFEST).unlink(missing_ok=True)
    return True


def hold(copy: Path) -> bool:
    """Mark the folder `copy` as used and lock it until this process ends; return False if it is missing."""
    with _holding, contextlib.suppress(FileNotFoundError):
        while True:
            descriptor = _locks.pop(copy, None) or lock_of(copy, fcntl.LOCK_SH)
            if is_at(descriptor, copy):
                os.utime(descriptor)
                _locks[copy] = descriptor
                return True
            os.close(descriptor)  # it was replaced meanwhile
    return False


def is_at(descriptor: int, path: Path) -> bool:
    """Return True if the open `descriptor` is the file or folder at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def make_room(cache: Path, needed: int, uses: Mapping[Path, int] | None = None, before: float = -1) -> bool:
    """Remove leftovers of killed processes, and unlocked copies until `needed` bytes fit; return True if they do.

    uses: files of folders fetched file by file that the caller will use, with an order that grows with time. They go
    last, the latest used first, and only if later than `before`.
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
    """Yield the units of removal: folder copies, and single files of folders fetched file by file."""
    for item in cache.iterdir():
        if item.suffix == FILES:
            yield from (path for path in item.rglob("*") if path.is_file())
        else:
            yield item


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _remove_unused(path: Path) -> bool:
    """Remove the file or folder `path` unless it is locked; return True if it is gone."""
    try:
        lock = lock_of(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    try:
        if not is_at(lock, path):  # its owner replaced it between the opening and the lock
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
    is_whole = (folder / MANIFEST).is_file() and not any(manifest.other_sizes(sizes))
    return is_whole and not any(manifest.changed(folder))


def _size_limit(cache: Path) -> float:
    size = os.environ.get(SIZE)
    try:
        return quantity.in_bytes(size) if size else SHARE * shutil.disk_usage(cache).total
    except ValueError as error:
        raise ConfigurationError(f"{SIZE}: {size!r} is not a size. Give one such as 20Gi.") from error


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
    """Hold the exclusive lock of `path`, across processes, while the block runs."""
    lock = lock_of(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def lock_of(path: Path, how: int) -> int:
    """Return a descriptor of `path` that holds the lock `how`. Raises `BlockingIOError` as flock does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor, how, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock(descriptor: int, how: int, path: Path) -> None:
    """Lock the open file `path`. Raises `BlockingIOError` as flock does, `InfrastructureError` without locks."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise InfrastructureError(
            f"{path}: cannot be locked ({os.strerror(error.errno)}), and local copies need locks. Name a folder of a "
            f"local disk in {CACHE}."
        ) from error
