"""Fetches files of a bucket folder ahead of their readers, in the order of use, within the limit of the cache.

    absent --take--> FETCHING --arrived--> AHEAD --open--> read, until its reader has opened `cycle` more files
      ^                 |                    |                |
      |                 +--failed--> FAILED  |                |
      +---------------- released <-----------+----------------+
                                   deleted if a file that a reader waits for finds no room

A file that a reader waits for is taken before all others, even if it FAILED; its failure is then the reader's. This
process holds a shared lock (flock) on each file that is AHEAD or read, until it is released or the process ends, even
by a kill. Other processes of the machine read the same files. A file appears complete and verified, by a rename.
Unlocked files make room for others, those used latest first, and are fetched again in time.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from types import TracebackType

from trainyard import events
from trainyard.errors import TransientError
from trainyard.storage import cache
from trainyard.storage.disk import os_errors
from trainyard.storage.manifest import Manifest, measure

_THREADS = 4  # chosen: files that are fetched at a time, so that the network is not idle while one is verified
_LEAST_AHEAD = 16  # chosen: files that are fetched ahead of their readers
_RECHECK_SECONDS = 1.0  # chosen: how long until other processes' files may have made room
_PARTIAL = ".partial"


class _State(Enum):
    FETCHING, AHEAD, FAILED = auto(), auto(), auto()


class FileStream:
    """Files of a committed folder. Readers `open` them; threads fetch them ahead, in the order given to `follow`.

    waiting: called about every second while a reader waits. error: of a fetch that a reader waited for; no file is
    fetched after it. fetched: how many files were, repeated fetches included.
    """

    def __init__(self, uri: str, files: CachedFiles) -> None:
        self.uri = uri
        self.waiting: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.fetched = 0
        self._files = files
        self._changed = threading.Condition()  # guards what follows
        self._closed = False
        self._states: dict[str, _State] = {}
        self._wanted: Counter[str] = Counter()  # by readers that wait
        self._reading: dict[Hashable, deque[str]] = {}
        self._epochs: Iterator[list[str]] = iter(())
        self._plan: list[str] = []  # the files in the order of use, of this epoch and the next
        self._ahead_limit = _LEAST_AHEAD
        self._urgent = 0  # threads that fetch what a reader waits for, and found no room
        self._bytes, self._seen, self._start = 0, set[str](), time.monotonic()

    def __enter__(self) -> FileStream:
        for number in range(_THREADS):
            threading.Thread(target=self._fetch_files, daemon=True, name=f"fetch-{number}").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._stop_reading()

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self._files.manifest.files)

    def follow(self, epochs: Iterator[list[str]], readers: int) -> None:
        """Fetch in the order of `epochs`, lists of names, for this number of `readers`."""
        with self._changed:
            self._epochs, self._plan, self._ahead_limit = epochs, [], max(_LEAST_AHEAD, 2 * readers)
            self._stop_reading()

    def open(self, name: str, reader: Hashable, cycle: int) -> Path:
        """Return the path of the file `name` once it is local; it stays until `reader` opens `cycle` more files.

        Raises the error of the fetch: `DataError` if the file is damaged or gone, `TransientError` or
        `InfrastructureError` if the bucket does not answer or refuses.
        """
        with self._changed:
            self._wanted[name] += 1
            opened = self._reading.setdefault(reader, deque())
            while len(opened) >= cycle:  # at least one of them has been read to its end
                opened.popleft()
            self._release_unused()
            self._changed.notify_all()
            try:
                while not self._files.holds(name) or self._states.get(name) is _State.FETCHING:
                    if self.error:
                        raise self.error
                    if self._closed:
                        raise TransientError(f"{self.uri}: {name} was requested after the end.")
                    self._changed.wait(_RECHECK_SECONDS)
                    self.waiting()
            finally:
                self._wanted -= Counter([name])
            self._states.pop(name, None)
            opened.append(name)
            if name in self._plan:
                self._plan.remove(name)
            self._changed.notify_all()
        return self._files.path(name)

    def discard_damaged(self) -> list[str]:
        """Remove local files that differ from the manifest, and return their names."""
        return self._files.discard_damaged()

    def _fetch_files(self) -> None:
        try:
            while task := self._take():
                self._fetch(*task)
        except Exception as error:  # noqa: BLE001 - else readers would wait forever
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _take(self) -> tuple[str, bool, dict[str, int]] | None:
        """Wait for a file to fetch; return it, whether a reader waits for it, and the coming uses; None at the end."""
        with self._changed:
            while not self._closed:
                name = None if self.error else self._first_wanted() or self._first_planned()
                if name:
                    self._states[name] = _State.FETCHING
                    uses = {other: len(self._plan) - at for at, other in enumerate(reversed(self._plan), 1)}
                    return name, name in self._wanted, uses
                self._changed.wait()
        return None

    def _first_wanted(self) -> str | None:
        return next((name for name in self._wanted if self._is_absent(name)), None)

    def _first_planned(self) -> str | None:
        if self._urgent or len(self._in(_State.AHEAD, _State.FETCHING)) >= self._ahead_limit:
            return None
        while len(self._plan) < 2 * self.files and (epoch := next(self._epochs, None)) is not None:
            self._plan.extend(epoch)
        failed = self._in(_State.FAILED)
        return next((name for name in self._plan if self._is_absent(name) and name not in failed), None)

    def _fetch(self, name: str, wanted: bool, uses: dict[str, int]) -> None:
        try:
            fetched = self._files.fetch(name, uses, -1 if wanted else uses.get(name, -1))
            if fetched is None and wanted:
                with self._given_way():
                    fetched = self._files.fetch(name, uses, -1, forced=True)
        except Exception as error:  # noqa: BLE001 - it is raised where the file is wanted
            with self._changed:
                self._states[name] = _State.FAILED
                self.error = error if name in self._wanted else self.error
                self._changed.notify_all()
            return
        with self._changed:
            if fetched is None:
                del self._states[name]
                self._changed.wait(_RECHECK_SECONDS)
            else:
                self._states[name] = _State.AHEAD
                self._count(name, fetched)
            self._changed.notify_all()

    @contextmanager
    def _given_way(self) -> Iterator[None]:
        """Release files fetched ahead, and fetch none ahead while the block runs."""
        with self._changed:
            self._urgent += 1
            while self._in(_State.FETCHING) - set(self._wanted):
                self._changed.wait()
            self._forget(_State.AHEAD)
            self._release_unused()
        try:
            yield
        finally:
            with self._changed:
                self._urgent -= 1

    def _stop_reading(self) -> None:
        self._forget(_State.AHEAD)
        self._reading.clear()
        self._release_unused()
        self._changed.notify_all()

    def _release_unused(self) -> None:
        reading = {name for names in self._reading.values() for name in names}
        used = reading | self._in(_State.AHEAD, _State.FETCHING) | set(self._wanted)
        self._files.release(self._files.names() - used)

    def _is_absent(self, name: str) -> bool:
        return not self._files.holds(name) and self._states.get(name) is not _State.FETCHING

    def _in(self, *states: _State) -> set[str]:
        return {name for name, state in self._states.items() if state in states}

    def _forget(self, state: _State) -> None:
        for name in self._in(state):
            del self._states[name]

    def _count(self, name: str, fetched: bool) -> None:
        self._seen.add(name)
        self.fetched += fetched
        self._bytes += self._files.manifest.files[name].bytes if fetched else 0
        if len(self._seen) == self.files and self._start:
            seconds, self._start = round(time.monotonic() - self._start, 2), 0.0
            events.emit("fetched", uri=self.uri, files=self.fetched, bytes=self._bytes, seconds=seconds)


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
                    cache.lock(lock, fcntl.LOCK_EX, partial)  # waits for another process that is fetching it
                    if not cache.is_at(lock, partial):
                        continue
                    if not self._reserve(lock, name, uses, before, forced):
                        return None
                    self._download(name, partial)
                    with cache.locked(self._cache):  # so that its size is counted once
                        partial.rename(final)
                    cache.lock(lock, fcntl.LOCK_SH, final)
                    if cache.is_at(lock, final):  # else it was removed between the two locks
                        self._locks[name] = os.dup(lock)  # the lock is that of both descriptors
                        return True
                finally:
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
            events.warn(text)
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
