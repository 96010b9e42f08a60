"""Single files of a bucket's folder on this machine, fetched one by one, for all processes within the cache's bound.

A file appears complete and verified, by a rename. A process has a shared lock (flock) on every file that it holds,
until it releases it or ends, by a kill too. Files that nobody holds make room for others.
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
    """The files of one folder in a bucket, of which this process holds some.

    `fetch` and `release` may be called by several threads, for one file by one at a time.

    download: puts the file of that name at that path, which exists, and verifies it.
    """

    def __init__(self, key: str, manifest: Manifest, download: Callable[[str, Path], None]) -> None:
        self.manifest = manifest
        self._cache = cache.folder()
        self._folder = self._cache / f"{key}{cache.FILES}"
        self._download = download
        self._locks: dict[str, int] = {}
        self._warned = False

    def path(self, name: str) -> Path:
        """Return where the file `name` is as long as this process holds it."""
        return self._folder / name

    def holds(self, name: str) -> bool:
        """Return whether this process holds the file."""
        return name in self._locks

    def fetch(self, name: str, uses: Mapping[str, int], before: int, forced: bool = False) -> bool | None:
        """Hold the file `name`, fetched now unless it is there; return whether it was fetched, None if it has no room.

        uses, before: when files of the folder are wanted again, and which go for it, as `cache.make_room`. forced: it
        is fetched even if the cache becomes too large.
        """
        final = self.path(name)
        partial = final.with_name(f"{final.name}{_PARTIAL}")
        with os_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            while not self._hold(name):
                lock = os.open(partial, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # waits for another process that fetches it
                    if not cache.is_at(lock, partial):
                        continue
                    if not self._reserve(lock, name, uses, before, forced):
                        return None
                    self._download(name, partial)
                    with cache.locked(self._cache):  # whoever adds up sizes counts it once
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
        """Let other processes, and this one, remove the files `names`."""
        for name in names:
            os.close(self._locks.pop(name))

    def names(self) -> set[str]:
        """Return the names of the files that this process holds."""
        return set(self._locks)

    def discard_damaged(self) -> list[str]:
        """Remove the files on this machine that are not what the manifest says, and return their names."""
        damaged = []
        for name, file in self.manifest.files.items():
            path = self.path(name)
            if path.is_file() and measure(path) != file:
                path.unlink()
                damaged.append(name)
        return damaged

    def _hold(self, name: str) -> bool:
        """Return whether the file `name` is there, whole; then no process removes it until it is released."""
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
        """Return whether the file `partial` has the size of `name`, and so counts, as the bound allows or by force."""
        size = self.manifest.files[name].bytes
        needed = {self.path(other): use for other, use in uses.items()}
        with cache.locked(self._cache):
            os.truncate(partial, 0)  # what a killed process left of it does not count
            room = cache.make_room(self._cache, size, needed, before)
            if room or forced:
                os.truncate(partial, size)
        if forced and not room and not self._warned:
            self._warned = True
            text = f"{self._cache}: the files that are read at once take more than {cache.SIZE} allows. Raise it."
            events.emit("warning", message=text)
        return room or forced


def link(key: str, manifest: Manifest, folder: Path) -> Manifest:
    """Link what this machine has of the files of `manifest` into `folder`; return the manifest of the others."""
    rest = {}
    for name, file in manifest.files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(cache.folder() / f"{key}{cache.FILES}" / name, folder / name)
        except OSError:  # it is not there, or links are unknown
            rest[name] = file
    return replace(manifest, files=rest)
