"""Object stores behind one small class: one way of trying again, and one sentence for each fault.

An implementation (`gcs`, `s3`) makes single requests and says what an error of its client means. Everything else, the
retries, the deadline and the messages, is here once.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

from trainyard import events
from trainyard.errors import InfrastructureError, TransientError
from trainyard.storage.manifest import File

ABSENT = ""
"""The version of an object that is not there."""

SAID_SECONDS = 5.0  # chosen: after which a person is told that requests are tried again
DEADLINE_SECONDS = 300.0  # chosen: a store that fails a fifth of all requests for five minutes is outlived
PAGE_OBJECTS = 1000  # specified: the most that both stores list at once
TIMEOUT_SECONDS = (5.0, 60.0)  # chosen: to connect, and between two packets
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 15.0  # seconds between two tries, doubled each time; chosen

T = TypeVar("T")
_patience: ContextVar[float | None] = ContextVar("patience", default=None)


class Kind(Enum):
    """What a client's error means."""

    MISSING = "missing"
    NO_BUCKET = "no such bucket"
    CHANGED = "changed"
    PAST_END = "past the end"
    REFUSED = "refused"
    EXPIRED = "expired"
    TRANSIENT = "transient"


@dataclass(frozen=True)
class Fault:
    """What went wrong with one request, and the store's own words."""

    kind: Kind
    reason: str


class StoreError(Exception):
    """The cause of an error of ours: what the store said."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


class Missing(Exception):
    """There is no such object."""


class PastEnd(Exception):
    """The object ends before what was asked for."""


class Changed(Exception):
    """The object is not in the version that the write was made for."""


@dataclass(frozen=True)
class Object:
    """One object: its name in the bucket, its size, and what the store names its content by (CRC32C or ETag)."""

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Listing:
    """The objects below a prefix, and the folders, each with a slash at its end, where only one level was asked for.

    next: what the next page is asked for with, '' after the last one.
    """

    objects: list[Object]
    folders: list[str]
    next: str = ""


class ObjectStore(ABC):
    """One bucket. Each method is tried again while it makes sense, up to `deadline_seconds` in all.

    All raise `TransientError` where the store does not answer in time, `InfrastructureError` where it refuses or the
    bucket is missing.
    """

    role: str
    """What to grant where access is refused."""

    def __init__(self, root: str, deadline_seconds: float | None) -> None:
        self.root = root
        self._deadline_seconds = deadline_seconds
        self.bucket = root.partition("://")[2]

    @property
    def deadline_seconds(self) -> float:
        """How long a request is tried again."""
        return self._deadline_seconds or _patience.get() or DEADLINE_SECONDS

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the content and the version of a small object, or None where there is none."""
        try:
            return self.tried(name, "read", lambda: self._read(name))
        except Missing:
            return None

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on. Raises `Missing`."""

        def whole() -> bytes:
            content = self._read_range(name, start, length)
            if len(content) != length:
                raise ConnectionError(f"{len(content)} of {length} bytes came")
            return content

        return self.tried(name, "read", whole)

    def read_up_to(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on, or what there is up to the object's end. Raises `Missing`."""
        try:
            return self.tried(name, "read", lambda: self._read_range(name, start, length))
        except PastEnd:
            return b""

    def write(self, name: str, content: bytes, match: str | None = None) -> str:
        """Write a small object and return its version.

        match: the version that it must have now, `ABSENT` for none, or None for any. Raises `Changed` where it has
        another; then nothing was written. Content that is written with a `match` must differ from everybody else's.
        """
        try:
            return self._made(name, lambda: self._write(name, content, match))
        except Changed:
            # The answer to an earlier try may have been lost, and the write been done.
            found = self.read(name) if match is not None else None
            if found is None or found[0] != content:
                raise
            return found[1]

    def upload(self, name: str, path: Path, file: File) -> None:
        """Leave the local file at `path` as the object `name`, whose checksum the store has confirmed.

        Raises `InfrastructureError` where the local file is not `file` any more.
        """
        self._made(name, lambda: self._upload(name, path, file))

    def list(self, prefix: str, deep: bool = True) -> Listing:
        """Return all objects whose names begin with `prefix`, or those up to the next slash and the folders behind it.

        A page that fails is asked for again by itself, and the deadline is each page's own.
        """
        found, token = Listing([], []), ""
        while True:
            try:
                page = self.tried(prefix, "list", partial(self._page, prefix, deep, token))
            except Missing as error:
                raise self._no_bucket(str(error)) from StoreError(Fault(Kind.NO_BUCKET, str(error)))
            found.objects.extend(page.objects)
            found.folders.extend(page.folders)
            token = page.next
            if not token:
                return found

    def delete(self, name: str) -> None:
        """Remove the object; one that is not there is none to remove."""
        try:
            self.tried(name, "delete", lambda: self._delete(name))
        except Missing:
            return

    def tried(self, name: str, verb: str, call: Callable[[], T]) -> T:
        """Return what `call` returns, after as many tries as it takes. Raises `Missing` and `Changed` at once."""
        start, wait = time.monotonic(), _FIRST_WAIT
        known: tuple[type[Exception], ...] = (ConnectionError, *self.errors())
        while True:
            try:
                return call()
            except known as error:
                fault = self._fault(error)
                passed = time.monotonic() - start
                pause = wait * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
                if fault.kind is not Kind.TRANSIENT or passed + pause > self.deadline_seconds:
                    raise self._error(fault, name, verb, passed) from StoreError(fault)
            if passed > SAID_SECONDS > passed - wait:
                until = f"trying until {self.deadline_seconds:.0f} s have passed"
                events.emit("warning", message=f"{self.root}/{name}: cannot be reached ({fault.reason}); {until}")
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _made(self, name: str, call: Callable[[], T]) -> T:
        try:
            return self.tried(name, "write", call)
        except Missing as error:
            raise self._no_bucket(str(error)) from error

    def _error(self, fault: Fault, name: str, verb: str, seconds: float) -> Exception:
        where = f"{self.root}/{name}"
        if fault.kind is Kind.MISSING:
            return Missing(fault.reason)
        if fault.kind is Kind.CHANGED:
            return Changed(fault.reason)
        if fault.kind is Kind.PAST_END:
            return PastEnd(fault.reason)
        if fault.kind is Kind.NO_BUCKET:
            return self._no_bucket(fault.reason)
        if fault.kind is Kind.REFUSED:
            return InfrastructureError(
                f"{where}: the store refused to {verb} it ({fault.reason}). {self.role}, or name another storage."
            )
        if fault.kind is Kind.EXPIRED:
            return TransientError(
                f"{where}: the credentials have expired ({fault.reason}). Renew them and run the same command again."
            )
        return TransientError(
            f"{where}: cannot be reached for {seconds:.0f} s ({fault.reason}). "
            "Check the network and run the same command again."
        )

    def _no_bucket(self, reason: str) -> InfrastructureError:
        return InfrastructureError(
            f"{self.root}: there is no such bucket ({reason}). Create it, or name another storage."
        )

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Return the errors of the client that `_fault` understands; all others are ours and not tried again."""

    @abstractmethod
    def _fault(self, error: Exception) -> Fault:
        """Return what the client's `error` means; a ConnectionError of Python is transient."""

    @abstractmethod
    def _read(self, name: str) -> tuple[bytes, str]: ...

    @abstractmethod
    def _read_range(self, name: str, start: int, length: int) -> bytes: ...

    @abstractmethod
    def _write(self, name: str, content: bytes, match: str | None) -> str: ...

    @abstractmethod
    def _upload(self, name: str, path: Path, file: File) -> None: ...

    @abstractmethod
    def _page(self, prefix: str, deep: bool, token: str) -> Listing: ...

    @abstractmethod
    def _delete(self, name: str) -> None: ...


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Have requests of this thread given up after `seconds` while the block runs: a person waits for the answer."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


def words(error: BaseException) -> str:
    """Return the message of `error` in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
