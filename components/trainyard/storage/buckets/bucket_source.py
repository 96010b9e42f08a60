"""Reads a recipe's source from a bucket, and reports within seconds if it cannot."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import cast

from trainyard.errors import DataError, InfrastructureError, TransientError
from trainyard.storage import globs
from trainyard.storage.buckets import stores
from trainyard.storage.buckets.objects import Kind, Missing, Object, ObjectStore, StoreFault

_DEADLINE_SECONDS = 20.0  # chosen: a longer silence is an outage
_CHUNK = 16 << 20  # bytes a request; Beam's choice for Google's client


def list_objects(uri: str, field: str = "data.path") -> tuple[str, list[Object], list[Object]]:
    """Return the root of `uri` (a folder, an object or a glob), its visible objects and the hidden ones, each sorted.

    Names are relative to the root, a URI without a trailing slash. A folder or object of that exact name takes
    precedence over a glob. Folder placeholders are left out. Raises `DataError` if the bucket is missing or access is
    denied, `TransientError` if the store does not answer.
    """
    root, pattern = stores.split_uri(uri)
    bucket = stores.open_store(root, _DEADLINE_SECONDS)
    with source_errors(in_field(uri, field), field):
        folder, listed = _named(bucket, pattern.rstrip("/"))
        if not listed and (literal := globs.literal(pattern)) != pattern:
            folder, expression = literal.rpartition("/")[0], globs.expression(pattern)
            listed = [item for item in bucket.list(literal).objects if expression.fullmatch(item.name)]
    prefix = f"{folder}/" if folder else ""
    files = [
        Object(item.name.removeprefix(prefix), item.bytes, item.checksum)
        for item in listed
        if not item.name.endswith("/")
    ]
    files.sort(key=lambda item: item.name)
    visible: list[Object] = []
    hidden: list[Object] = []
    for item in files:
        (hidden if any(part.startswith(".") for part in item.name.split("/")) else visible).append(item)
    return f"{root}/{folder}".rstrip("/"), visible, hidden


def in_field(path: str, field: str) -> str:
    """Return `path` for the start of a message, prefixed by the recipe's `field` if given."""
    return f"{field}: {path}" if field else path


def _named(bucket: ObjectStore, name: str) -> tuple[str, list[Object]]:
    """Return the folder `name` and the objects below it, otherwise the folder of the object `name` and that object."""
    listed = bucket.list(f"{name}/" if name else "").objects
    if listed or not name:
        return name, listed
    return name.rpartition("/")[0], [item for item in bucket.list(name).objects if item.name == name]


def open_object(uri: str, chunk: int | None = None) -> io.BufferedReader:
    """Return the stored bytes of the object at `uri`; handle reading errors with `source_errors`.

    chunk: bytes of one request, many by default.
    """
    root, name = stores.split_uri(uri)
    raw = _Stream(stores.open_store(root, _DEADLINE_SECONDS), name, chunk or _CHUNK)
    return io.BufferedReader(cast(io.RawIOBase, raw), min(chunk or _CHUNK, io.DEFAULT_BUFFER_SIZE))


@contextmanager
def source_errors(source: str, field: str = "data.path") -> Iterator[None]:
    """Raise `DataError` if the store refuses a request in the block, `TransientError` if it does not answer.

    field: the recipe field that names the source, '' for none.
    """
    try:
        yield
    except Missing as error:
        raise _no_such(source, field) from error
    except (InfrastructureError, TransientError) as error:
        fault = error.__cause__
        if not isinstance(fault, StoreFault):
            raise
        if fault.kind is Kind.NO_BUCKET:
            raise _no_such(source, field) from error
        if fault.kind is Kind.UNTRUSTED:
            raise
        if fault.kind is Kind.REFUSED:
            raise DataError(
                f"{source}: may not be read ({fault.reason}). Log in or grant the right to read the bucket's objects, "
                f"or correct {_name(field)}."
            ) from error
        raise TransientError(
            f"{source}: cannot be reached ({fault.reason}). Check the network and run the same command again."
        ) from error


class _Stream(io.RawIOBase):
    """An object's bytes, read in chunks, so that a lost connection costs one chunk."""

    def __init__(self, store: ObjectStore, name: str, chunk_bytes: int) -> None:
        self._store = store
        self._name = name
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")
        self._at = 0  # where the chunk ends
        self._ended = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at - len(self._chunk)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset`; the store is asked once for the object's size if needed."""
        if whence == io.SEEK_END:
            offset += self._size
        offset += self.tell() if whence == io.SEEK_CUR else 0
        ahead = offset - self.tell()
        if 0 <= ahead <= len(self._chunk):
            self._chunk = self._chunk[ahead:]
        else:
            self._chunk, self._at, self._ended = memoryview(b""), offset, False
        return offset

    @cached_property
    def _size(self) -> int:
        for listed in self._store.list(self._name).objects:
            if listed.name == self._name:
                return listed.bytes
        raise Missing

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill `buffer` and return the number of bytes; 0 at the end."""
        if not self._chunk and not self._ended:
            content = self._store.read_up_to(self._name, self._at, self._chunk_bytes)
            self._chunk, self._at = memoryview(content), self._at + len(content)
            self._ended = len(content) < self._chunk_bytes
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count


def _no_such(source: str, field: str) -> DataError:
    return DataError(f"{source}: there is no such bucket or object. Correct {_name(field)}.")


def _name(field: str) -> str:
    return f"{field} in the recipe" if field else "the name"
