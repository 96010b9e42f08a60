"""Fetches files of a bucket folder ahead of their readers, in the order of use.

If they do not all fit the cache, those used latest are removed and fetched again in time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from trainyard import events
from trainyard.errors import TransientError
from trainyard.storage.cached_files import CachedFiles

_THREADS = 4  # chosen: files that are fetched at a time, so that the network is not idle while one is verified
_LEAST_AHEAD = 16  # chosen: files that are fetched ahead of their readers
_RECHECK_SECONDS = 1.0  # chosen: how long until other processes' files may have made room


class FileStream:
    """Files of a committed folder. Readers `open` them; threads fetch them ahead, in the order given to `follow`.

    waiting: called about every second while a reader waits.
    """

    def __init__(self, uri: str, files: CachedFiles) -> None:
        self.uri = uri
        self.waiting: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.fetched = 0
        self._files = files
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._epochs: Iterator[list[str]] = iter(())
        self._plan: list[str] = []  # the files in the order of use, of this epoch and the next
        self._ahead_limit = _LEAST_AHEAD
        self._wanted: Counter[str] = Counter()  # by readers that wait
        self._ahead: set[str] = set()  # held, and not opened since
        self._reading: dict[Hashable, deque[str]] = {}
        self._fetching: set[str] = set()
        self._failed: set[str] = set()
        self._pressed = 0  # threads that fetch what a reader waits for, and found no room
        self._bytes, self._seen, self._start = 0, set[str](), time.monotonic()

    def __enter__(self) -> FileStream:
        for number in range(_THREADS):
            thread = threading.Thread(target=self._fetch_files, daemon=True, name=f"fetch-{number}")
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._ahead.clear()
            self._reading.clear()
            self._release_unused()
            self._changed.notify_all()

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self._files.manifest.files)

    def follow(self, epochs: Iterator[list[str]], readers: int) -> None:
        """Fetch in the order of `epochs`, lists of names, for this number of `readers`."""
        with self._changed:
            self._epochs, self._plan, self._ahead_limit = epochs, [], max(_LEAST_AHEAD, 2 * readers)
            self._ahead.clear()
            self._reading.clear()
            self._release_unused()
            self._changed.notify_all()

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
                while not self._files.holds(name) or name in self._fetching:
                    if self.error:
                        raise self.error
                    if self._closed:
                        raise TransientError(f"{self.uri}: {name} was requested after the end.")
                    self._changed.wait(_RECHECK_SECONDS)
                    self.waiting()
            finally:
                self._wanted -= Counter([name])
            self._ahead.discard(name)
            opened.append(name)
            if name in self._plan:
                self._plan.remove(name)
            self._changed.notify_all()
        return self._files.path(name)

    def discard_damaged(self) -> list[str]:
        """Remove local files that differ from the manifest, and return their names."""
        return self._files.discard_damaged()

    def _release_unused(self) -> None:
        reading = {name for names in self._reading.values() for name in names}
        self._files.release(self._files.names() - reading - self._ahead - self._fetching - set(self._wanted))

    def _fetch_files(self) -> None:
        try:
            while task := self._next_task():
                self._fetch(*task)
        except Exception as error:  # noqa: BLE001 - else readers would wait forever
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _next_task(self) -> tuple[str, bool, dict[str, int]] | None:
        """Return the next file, whether a reader waits for it, and the coming uses; None at the end."""
        with self._changed:
            while not self._closed:
                if file := self._next_file():
                    self._fetching.add(file[0])
                    return *file, self._uses()
                self._changed.wait()
        return None

    def _fetch(self, name: str, urgent: bool, uses: dict[str, int]) -> None:
        fetched, failure = None, None
        try:
            fetched = self._files.fetch(name, uses, -1 if urgent else uses.get(name, -1))
            if fetched is None and urgent:
                with self._without_ahead():
                    fetched = self._files.fetch(name, uses, -1, forced=True)
        except Exception as error:  # noqa: BLE001 - it is raised where the file is wanted
            failure = error
        with self._changed:
            self._fetching.discard(name)
            if failure is not None:
                # A file fetched ahead is tried again when a reader wants it.
                self._failed.add(name)
                self.error = failure if name in self._wanted else self.error
            elif fetched is None:
                self._changed.wait(_RECHECK_SECONDS)
            else:
                self._failed.discard(name)
                self._ahead.add(name)
                self._count(name, fetched)
            self._changed.notify_all()

    @contextmanager
    def _without_ahead(self) -> Iterator[None]:
        """Release files fetched ahead, and fetch none ahead while the block runs."""
        with self._changed:
            self._pressed += 1
            while self._fetching - set(self._wanted):
                self._changed.wait()
            self._ahead.clear()
            self._release_unused()
        try:
            yield
        finally:
            with self._changed:
                self._pressed -= 1

    def _next_file(self) -> tuple[str, bool] | None:
        """Return the file to fetch and whether a reader waits for it; None if nothing is to be fetched."""
        if self.error:
            return None
        for name in self._wanted:
            if not self._files.holds(name) and name not in self._fetching:
                return name, True
        if self._pressed or len(self._ahead) + len(self._fetching) >= self._ahead_limit:
            return None
        while len(self._plan) < 2 * self.files and (epoch := next(self._epochs, None)) is not None:
            self._plan.extend(epoch)
        for name in self._plan:
            if not self._files.holds(name) and name not in self._fetching and name not in self._failed:
                return name, False
        return None

    def _uses(self) -> dict[str, int]:
        return {name: len(self._plan) - number for number, name in enumerate(reversed(self._plan), 1)}

    def _count(self, name: str, fetched: bool) -> None:
        self._seen.add(name)
        self.fetched += fetched
        self._bytes += self._files.manifest.files[name].bytes if fetched else 0
        if len(self._seen) == self.files and self._start:
            seconds, self._start = round(time.monotonic() - self._start, 2), 0.0
            events.emit("fetched", uri=self.uri, files=self.fetched, bytes=self._bytes, seconds=seconds)
