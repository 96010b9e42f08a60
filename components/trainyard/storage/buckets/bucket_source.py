"""Reads a recipe's source from a bucket, and says within seconds when that cannot be done."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import IO, cast

from trainyard import globs
from trainyard.errors import DataError, InfrastructureError, TransientError
from trainyard.storage.buckets import stores
from trainyard.storage.buckets.objects import Kind, Missing, Object, ObjectStore, StoreFault

_DEADLINE_SECONDS = 20.0  # chosen: a longer silence is an outage
_CHUNK = 16 << 20  # bytes a request; Beam's own choice for the client of Google's


def list_objects(uri: str, field: str = "data.path") -> tuple[str, list[Object]]:
    """Return the objects that `uri` (a folder, an object or a glob) names, in order, and before them their root.

    Their names are seen from the root, a URI without a slash at its end. A folder or an object of that very name comes
    before a glob. Hidden objects are left out, and the empty ones ending in a slash by which consoles show a folder.
    Raises `DataError` if the bucket is missing or closed, `TransientError` if the store cannot be reached.
    """
    root, pattern = stores.split(uri)
    bucket = stores.store(root, _DEADLINE_SECONDS)
    with source_errors(in_field(uri, field), field):
        folder, listed = _named(bucket, pattern.rstrip("/"))
        if not listed and (literal := globs.literal(pattern)) != pattern:
            folder, expression = literal.rpartition("/")[0], globs.expression(pattern)
            listed = [item for item in bucket.list(literal).objects if expression.fullmatch(item.name)]
    prefix = f"{folder}/" if folder else ""
    files = [replace(item, name=item.name.removeprefix(prefix)) for item in listed if not item.name.endswith("/")]
    visible = (item for item in files if not any(part.startswith(".") for part in item.name.split("/")))
    return f"{root}/{folder}".rstrip("/"), sorted(visible, key=lambda item: item.name)


def in_field(path: str, field: str) -> str:
    """Return `path` as messages begin with it, after the recipe's `field` if it is not ''."""
    return f"{field}: {path}" if field else path


def _named(bucket: ObjectStore, name: str) -> tuple[str, list[Object]]:
    """Return the folder `name` with the objects below it, or, if there are none, the object `name` and its folder."""
    listed = bucket.list(f"{name}/" if name else "").objects
    if listed or not name:
        return name, listed
    return name.rpartition("/")[0], [item for item in bucket.list(name).objects if item.name == name]


def open_object(uri: str, chunk: int | None = None) -> IO[bytes]:
    """Return the bytes of the object at `uri` as they are stored; reading raises what `source_errors` understands.

    chunk: bytes a request, by default many.
    """
    root, name = stores.split(uri)
    raw = _Stream(stores.store(root, _DEADLINE_SECONDS), name, chunk or _CHUNK)
    return cast(IO[bytes], io.BufferedReader(raw, min(chunk or _CHUNK, io.DEFAULT_BUFFER_SIZE)))


@contextmanager
def source_errors(where: str, field: str = "data.path") -> Iterator[None]:
    """Raise `DataError` if the store refuses what the block asks for, `TransientError` if it does not answer.

    field: what in the recipe names it, '' if nothing does.
    """
    try:
        yield
    except Missing as error:
        raise _no_such(where, field) from error
    except (InfrastructureError, TransientError) as error:
        fault = error.__cause__
        if not isinstance(fault, StoreFault):
            raise
        if fault.kind is Kind.NO_BUCKET:
            raise _no_such(where, field) from error
        if fault.kind is Kind.REFUSED:
            raise DataError(
                f"{where}: may not be read ({fault.reason}). Log in or grant the right to read the bucket's objects, "
                f"or correct {_name(field)}."
            ) from error
        raise TransientError(
            f"{where}: cannot be reached ({fault.reason}). Check the network and run the same command again."
        ) from error


class _Stream(io.RawIOBase):
    """An object's bytes, read in chunks, so that a lost connection costs one of them."""

    def __init__(self, store: ObjectStore, name: str, chunk_bytes: int) -> None:
        self._store = store
        self._name = name
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")
        self._at = 0  # where the chunk ends
        self._ended = False

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def seekable(self) -> bool:
        """It can be read from any place on."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at - len(self._chunk)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on at `offset`; the store is asked once where the object ends."""
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
        """Fill `buffer` and return how many bytes there were; 0 at the end."""
        if not self._chunk and not self._ended:
            content = self._store.read_up_to(self._name, self._at, self._chunk_bytes)
            self._chunk, self._at = memoryview(content), self._at + len(content)
            self._ended = len(content) < self._chunk_bytes
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count


def _no_such(where: str, field: str) -> DataError:
    return DataError(f"{where}: there is no such bucket or object. Correct {_name(field)}.")


def _name(field: str) -> str:
    return f"{field} in the recipe" if field else "the name"
