"""Local copies of single files of a bucket folder, shared by the processes of this machine, within the cache's limit.

A file appears complete and verified, by a rename. A process holds a shared lock (flock) on each file until it releases
it or ends, even by a kill. Unlocked files make room for others.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from trainyard import events
from trainyard.storage import cache
from trainyard.storage.disk import os_errors
from trainyard.storage.manifest import Manifest, measure

_PARTIAL = ".partial"


class CachedFiles:
    """The local files of one bucket folder, some of which this process holds.

    `fetch` and `release` may be called from several threads, but for one file only from one at a time. download: fills
    and verifies the existing file at that path.
    """

    def __init__(self, key: str, manifest: Manifest, download: Callable[[str, Path], None]) -> None:
        self.manifest = manifest
        self._cache = cache.folder()
        self._folder = self._cache / f"{key}{cache.FILES}"
        self._download = download
        self._locks: dict[str, int] = {}
        self._warned = False

    def path(self, name: str) -> Path:
        """Return the path of the file `name` while this process holds it."""
        return self._folder / name

    def holds(self, name: str) -> bool:
        """Return True if this process holds the file."""
        return name in self._locks

    def fetch(self, name: str, uses: Mapping[str, int], before: int, forced: bool = False) -> bool | None:
        """Hold the file `name`; return True if it was fetched, False if it was local, None without room for it.

        uses, before: as in `cache.make_room`. forced: fetch even if the cache becomes too large.
        """
        final = self.path(name)
        partial = final.with_name(f"{final.name}{_PARTIAL}")
        with os_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            while not self._hold(name):
                lock = os.open(partial, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # waits for another process that is fetching it
                    if not cache.is_at(lock, partial):
                        continue
                    if not self._reserve(lock, name, uses, before, forced):
                        return None
                    self._download(name, partial)
                    with cache.locked(self._cache):  # so that its size is counted once
                        partial.rename(final)
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    if cache.is_at(lock, final):  # else it was removed between the two locks
                        self._locks[name], lock = lock, -1
                        return True
                finally:
                    if lock >= 0:
                        if cache.is_at(lock, partial):
                            partial.unlink()
                        os.close(lock)
        return False

    def release(self, names: Collection[str]) -> None:
        """Release the files `names` for removal."""
        for name in names:
            os.close(self._locks.pop(name))

    def names(self) -> set[str]:
        """Return the names of the files that this process holds."""
        return set(self._locks)

    def discard_damaged(self) -> list[str]:
        """Remove local files that differ from the manifest, and return their names."""
        damaged = []
        for name, file in self.manifest.files.items():
            path = self.path(name)
            if path.is_file() and measure(path) != file:
                path.unlink()
                damaged.append(name)
        return damaged

    def _hold(self, name: str) -> bool:
        """Return True if the file `name` is complete and now held by this process."""
        path = self.path(name)
        while True:
            try:
                lock = cache.lock_of(path, fcntl.LOCK_SH)
            except FileNotFoundError:
                return False
            if cache.is_at(lock, path):
                if os.fstat(lock).st_size == self.manifest.files[name].bytes:
                    os.utime(lock)
                    self._locks[name] = lock
                    return True
                path.unlink()
            os.close(lock)

    def _reserve(self, partial: int, name: str, uses: Mapping[str, int], before: int, forced: bool) -> bool:
        """Give the file `partial` the size of `name` if there is room or it is `forced`; return True if so."""
        size = self.manifest.files[name].bytes
        needed = {self.path(other): use for other, use in uses.items()}
        with cache.locked(self._cache):
            os.truncate(partial, 0)  # a killed process's leftover does not count
            room = cache.make_room(self._cache, size, needed, before)
            if room or forced:
                os.truncate(partial, size)
        if forced and not room and not self._warned:
            self._warned = True
            text = f"{self._cache}: the files that are read at once take more than {cache.SIZE} allows. Raise it."
            events.emit("warning", message=text)
        return room or forced


def link(key: str, manifest: Manifest, folder: Path) -> Manifest:
    """Link the local files of `manifest` into `folder`; return the manifest of the missing ones."""
    rest = {}
    for name, file in manifest.files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(cache.folder() / f"{key}{cache.FILES}" / name, folder / name)
        except OSError:  # it is missing, or links are unsupported
            rest[name] = file
    return replace(manifest, files=rest)
