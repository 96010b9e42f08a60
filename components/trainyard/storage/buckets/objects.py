"""Object stores behind one class, with common retries and error messages, and transfers of many files in parallel.

An implementation (`gcs`, `s3`) makes single requests and classifies the errors of its client. Retries, deadlines and
messages are here; `stores` opens the bucket of a URI.
"""

from __future__ import annotations

import mimetypes
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainyard import events
from trainyard.errors import DataError, InfrastructureError, TransientError
from trainyard.retry import retry
from trainyard.storage.manifest import MAX_TEXT_BYTES, File, Manifest, measure

ABSENT = ""
"""The version of a missing object."""

KMS_VARIABLE = "TRAINYARD_KMS_KEY"
"""The variable with the key that encrypts written objects: an environment's `storage_encryption.kms_key`."""

WARN_SECONDS = 5.0  # chosen: delay of the warning about retries
DEADLINE_SECONDS = 300.0  # chosen: survives a store that fails a fifth of all requests for five minutes
PAGE_OBJECTS = 1000  # specified: the most that both stores list at once
TIMEOUT_SECONDS = (5.0, 60.0)  # chosen: to connect, and between two packets
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0  # seconds between two requests, doubled each time; chosen

T = TypeVar("T")
_QUERY = re.compile(r"(?<=[^\s?])\?[^\s\"')]+=[^\s\"')]*")
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
THREADS = 8  # chosen: one request waits for the network while another copies
RANGE_BYTES = 16 << 20  # chosen: what one request reads, so that a lost one costs little


class Kind(Enum):
    """The meaning of a client's error."""

    MISSING = "missing"
    NO_BUCKET = "no such bucket"
    CHANGED = "changed"
    PAST_END = "past the end"
    REFUSED = "refused"
    UNTRUSTED = "untrusted"
    EXPIRED = "expired"
    FULL = "full"
    TRANSIENT = "transient"


class StoreFault(Exception):
    """The fault of one request with the store's message: the cause of one of our errors."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Missing(Exception):
    """The object does not exist."""


class PastEnd(Exception):
    """The object ends before the requested range."""


class Changed(Exception):
    """The object has another version than the write expected."""


_TYPES = mimetypes.MimeTypes()  # without the files of this machine


def content_type(name: str) -> str:
    """Return the media type of the object `name`, by which a browser shows it instead of downloading it."""
    media, compression = _TYPES.guess_type(name)
    if media is None or compression is not None:
        return "application/octet-stream"
    return f"{media}; charset=utf-8" if media.startswith("text/") else media


_PLAIN: dict[Kind, type[Exception]] = {Kind.MISSING: Missing, Kind.CHANGED: Changed, Kind.PAST_END: PastEnd}


@dataclass(frozen=True, slots=True)
class Object:
    """An object: its name in the bucket, its size, and the store's checksum (CRC32C or ETag)."""

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Page:
    """The objects below a prefix and, for one level, the folders, whose names end in a slash.

    next: the token of the next page, '' after the last one.
    """

    objects: list[Object]
    folders: list[str]
    next: str = ""


def is_google_key(key: str) -> bool:
    """Return True if `key` names a key of Google's Cloud KMS; all others are of S3."""
    return key.startswith("projects/")


def untrusted(reason: str) -> bool:
    """Return True if an error with this message says that a server is not trusted (TLS)."""
    return "CERTIFICATE_VERIFY_FAILED" in reason


class ObjectStore(ABC):
    """One bucket. Every method retries transient faults for `deadline_seconds` in all.

    All raise `TransientError` if the store does not answer in time, `InfrastructureError` if it refuses or the bucket
    is missing.
    """

    role: str
    """The permission to grant if access is refused."""
    bundle_variable: str
    """The variable with a file of trusted certificates."""

    def __init__(self, root: str, deadline_seconds: float | None) -> None:
        self.root = root
        self._deadline_seconds = deadline_seconds
        self.bucket = root.partition("://")[2]

    @property
    def deadline_seconds(self) -> float:
        """The time for which transient faults are retried."""
        return self._deadline_seconds or _deadline.get() or DEADLINE_SECONDS

    def read(self, name: str, limit: int = MAX_TEXT_BYTES) -> tuple[bytes, str] | None:
        """Return content and version of a small object, or None if it is missing.

        Raises `DataError` if it has more than `limit` bytes, before they are in memory.
        """
        try:
            return self.retried(name, "read", lambda: self._read(name, limit))
        except Missing:
            return None

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on. Raises `Missing`."""

        def read() -> bytes:
            content = self._read_range(name, start, length)
            if len(content) != length:
                raise ConnectionError(f"{len(content):,} of {length:,} bytes came")
            return content

        return self.retried(name, "read", read)

    def read_up_to(self, name: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start` on, fewer at the object's end. Raises `Missing`."""
        try:
            return self.retried(name, "read", lambda: self._read_range(name, start, length))
        except PastEnd:
            return b""

    def write(self, name: str, content: bytes, match: str | None = None) -> str:
        """Write a small object and return its version.

        match: the version that it must have now, `ABSENT` for none, or None for any. Raises `Changed`, and writes
        nothing, if it has another. Content written with a `match` must be unique.
        """
        try:
            return self._retried_write(name, lambda: self._write(name, content, match))
        except Changed:
            # An earlier try may have succeeded although its answer was lost.
            stored = self.read(name) if match is not None else None
            if stored is None or stored[0] != content:
                raise
            return stored[1]

    def upload(self, name: str, path: Path, file: File) -> None:
        """Upload the local file at `path` as the object `name`, with a checksum that the store confirms.

        Raises `InfrastructureError` if the local file differs from `file`.
        """
        self._retried_write(name, lambda: self._upload(name, path, file))

    def upload_in_parts(self, name: str, path: Path, file: File, progress: Callable[[int], None]) -> None:
        """Upload as `upload`, several parts at a time. If the store keeps the parts of a cut upload, it is resumed.

        progress: called with the bytes of each part that is done.
        """
        if measure(path) != file:  # the store's refusal of a part looks like one of a damaged part, which is repeated
            raise InfrastructureError(f"{path}: was changed while it was uploaded. Run the same command again.")
        self.upload(name, path, file)
        progress(file.bytes)

    def list(self, prefix: str, deep: bool = True) -> Page:
        """Return all objects whose names start with `prefix`, or the objects and folders of one level.

        Every page is retried with its own deadline.
        """
        listing, token = Page([], []), ""
        while True:
            try:
                page = self.retried(prefix, "list", partial(self._page, prefix, deep, token))
            except Missing as error:
                raise self._no_bucket(str(error)) from StoreFault(Kind.NO_BUCKET, str(error))
            listing.objects.extend(page.objects)
            listing.folders.extend(page.folders)
            token = page.next
            if not token:
                return listing

    def delete(self, name: str) -> None:
        """Delete the object if it exists."""
        with suppress(Missing):
            self.retried(name, "delete", lambda: self._delete(name))

    def delete_version(self, name: str, version: str) -> None:
        """Delete the object if it exists in this version.

        Raises `Changed` if it has another version and the server knows conditional deletes.
        """
        with suppress(Missing):
            self.retried(name, "delete", lambda: self._delete_version(name, version))

    def retried(self, name: str, verb: str, call: Callable[[], T]) -> T:
        """Return the result of `call`, retried after transient faults. Raises `Missing` and `Changed` at once."""
        known: tuple[type[Exception], ...] = (ConnectionError, *self.errors())
        start, seconds, warned = time.monotonic(), self.deadline_seconds, False

        def warn(error: Exception, passed: float) -> None:
            nonlocal warned
            if passed > WARN_SECONDS and not warned:
                warned = True
                reason, until = self._fault(error).reason, f"trying until {seconds:.0f} s have passed"
                events.warn(f"{self.root}/{name}: cannot be reached ({reason}); {until}")

        try:
            return retry(
                call,
                lambda error: isinstance(error, known) and self._fault(error).kind is Kind.TRANSIENT,
                seconds=seconds,
                first_pause=FIRST_PAUSE,
                longest_pause=LONGEST_PAUSE,
                on_retry=warn,
            )
        except known as error:
            fault = self._fault(error)
            raise self._error(fault, name, verb, time.monotonic() - start) from fault

    def _retried_write(self, name: str, call: Callable[[], T]) -> T:
        try:
            return self.retried(name, "write", call)
        except Missing as error:
            raise self._no_bucket(str(error)) from error

    def _error(self, fault: StoreFault, name: str, verb: str, seconds: float) -> Exception:
        uri = f"{self.root}/{name}"
        if plain := _PLAIN.get(fault.kind):
            return plain(fault.reason)
        if fault.kind is Kind.NO_BUCKET:
            return self._no_bucket(fault.reason)
        if fault.kind is Kind.REFUSED:
            return InfrastructureError(
                f"{uri}: the store refused to {verb} it ({fault.reason}). {self.role}, or name another storage."
            )
        if fault.kind is Kind.UNTRUSTED:
            return InfrastructureError(
                f"{uri}: the certificate of its server is not trusted ({fault.reason}). Name the certificates of its "
                f"authority as ca_bundle in the environment, or a file of them in {self.bundle_variable}."
            )
        if fault.kind is Kind.FULL:
            return InfrastructureError(
                f"{uri}: the store has no room for it ({fault.reason}). Make room there, as by `trainyard prune`, or "
                "name another storage."
            )
        if fault.kind is Kind.EXPIRED:
            return TransientError(
                f"{uri}: the credentials have expired ({fault.reason}). Renew them and run the same command again."
            )
        return TransientError(
            f"{uri}: cannot be reached for {seconds:.0f} s ({fault.reason}). "
            "Check the network and run the same command again."
        )

    def _no_bucket(self, reason: str) -> InfrastructureError:
        return InfrastructureError(
            f"{self.root}: there is no such bucket ({reason}). Create it, or name another storage."
        )

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Return the client errors that `_fault` classifies; all others are ours and not retried."""

    @abstractmethod
    def _fault(self, error: Exception) -> StoreFault:
        """Classify the client's `error`; Python's ConnectionError is transient."""

    @abstractmethod
    def _read(self, name: str, limit: int) -> tuple[bytes, str]: ...

    @abstractmethod
    def _read_range(self, name: str, start: int, length: int) -> bytes: ...

    @abstractmethod
    def _write(self, name: str, content: bytes, match: str | None) -> str: ...

    @abstractmethod
    def _upload(self, name: str, path: Path, file: File) -> None: ...

    @abstractmethod
    def _page(self, prefix: str, deep: bool, token: str) -> Page: ...

    @abstractmethod
    def _delete(self, name: str) -> None: ...

    @abstractmethod
    def _delete_version(self, name: str, version: str) -> None: ...


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit requests of this thread to `seconds` while the block runs."""
    token = _deadline.set(seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def one_line(error: BaseException | str) -> str:
    """Return the message of `error`, or a message, in one line of at most 300 characters, without queries of URLs.

    Of an error of requests that is the cause which urllib3 gives: its own message ends in the middle of it.
    """
    while isinstance(
        cause := getattr(error, "reason", None) or next(iter(getattr(error, "args", ())), None), Exception
    ):
        error = cause
    return _QUERY.sub("", " ".join(str(error).split()))[:300] or type(error).__name__


def upload(store: ObjectStore, prefix: str, folder: Path, files: dict[str, File]) -> None:
    """Upload `files` below `folder` as the objects `prefix` + name, confirmed by the store."""
    in_parallel(lambda name: store.upload(prefix + name, folder / name, files[name]), files)


def download(store: ObjectStore, prefix: str, manifest: Manifest, folder: Path) -> None:
    """Download the objects `prefix` + name of `manifest` into `folder` and verify them.

    Raises `Missing` if one is gone, `DataError` if one differs from its manifest.
    """
    for name, file in manifest.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.truncate(file.bytes)
    pieces = [(name, start) for name, file in manifest.files.items() for start in _starts(file)]
    in_parallel(
        lambda piece: _fetch(store, prefix + piece[0], folder / piece[0], manifest.files[piece[0]], piece[1]), pieces
    )
    in_parallel(lambda name: _verify(store, prefix + name, folder / name, manifest.files[name]), manifest.files)


def download_file(store: ObjectStore, name: str, path: Path, file: File) -> None:
    """Download the object `name` into the file at `path`, which has its size, and verify it. Raises as `download`."""
    for start in _starts(file):
        _fetch(store, name, path, file, start)
    _verify(store, name, path, file)


def delete(store: ObjectStore, names: Iterable[str]) -> None:
    """Delete the objects `names`."""
    in_parallel(store.delete, names)


def in_parallel(call: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call `call` for each of `items`, several at a time. The first error cancels calls that have not started."""
    with ThreadPoolExecutor(THREADS, "transfer") as pool:
        for _ in pool.map(call, items):
            pass


def _starts(file: File) -> range:
    return range(0, file.bytes, RANGE_BYTES)


def _fetch(store: ObjectStore, name: str, path: Path, file: File, start: int) -> None:
    content = store.read_range(name, start, min(RANGE_BYTES, file.bytes - start))
    descriptor = os.open(path, os.O_WRONLY)
    try:
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, start)
            view, start = view[written:], start + written
    finally:
        os.close(descriptor)


def _verify(store: ObjectStore, name: str, path: Path, expected: File) -> None:
    """Fetch the file again if it differs from its manifest; raise `DataError` if it still differs."""
    if measure(path) == expected:
        return
    events.warn(f"{store.root}/{name}: arrived damaged, it is fetched again.")
    for start in _starts(expected):
        _fetch(store, name, path, expected, start)
    if measure(path) != expected:
        raise DataError(
            f"{store.root}/{name}: its content differs from its manifest's checksum. "
            "Run the step again that wrote it (--from)."
        )
