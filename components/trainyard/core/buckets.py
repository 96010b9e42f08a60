"""Reads a recipe's source from a bucket, and says within seconds when that cannot be done."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, cast

from trainyard.core import objects
from trainyard.core.errors import DataError, InfrastructureError, TransientError
from trainyard.core.objects import Kind, Missing, Object, ObjectStore, StoreError

_WILD = re.compile(r"[*?\[]")
_DEADLINE_SECONDS = 20.0  # chosen: what is tried for longer is an outage
_CHUNK = 16 << 20  # bytes a request; Beam's own choice for the client of Google's


@dataclass(frozen=True)
class Source:
    """The objects below `root`, a bucket's URI without a slash at its end; their names are seen from there."""

    root: str
    objects: list[Object]


def list_objects(uri: str) -> Source:
    """Return the objects that `uri` (a folder, an object or a glob) stands for, by name.

    In a glob `*` and `?` stay below one folder and `**` goes down. Hidden objects are left out, and the empty ones ending
    in a slash by which consoles show a folder. Raises `DataError` where the bucket is missing or closed, `TransientError`
    where the store cannot be reached.
    """
    root, pattern = objects.split(uri)
    bucket = objects.store(root, _DEADLINE_SECONDS)
    with faults(f"data.path: {uri}"):
        if found := _WILD.search(pattern):
            folder = pattern[: found.start()].rpartition("/")[0]
            wanted = re.compile(_expression(pattern))
            listed = [item for item in bucket.list(pattern[: found.start()]).objects if wanted.fullmatch(item.name)]
        else:
            folder = pattern.rstrip("/")
            listed = bucket.list(f"{folder}/" if folder else "").objects
            if not listed and folder:
                listed = [item for item in bucket.list(folder).objects if item.name == folder]
                folder = folder.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    files = [replace(item, name=item.name.removeprefix(prefix)) for item in listed if not item.name.endswith("/")]
    visible = (item for item in files if not any(part.startswith(".") for part in item.name.split("/")))
    return Source(f"{root}/{folder}".rstrip("/"), sorted(visible, key=lambda item: item.name))


def open_object(uri: str) -> IO[bytes]:
    """Return the bytes of the object at `uri` as they are stored; reading raises what `faults` understands."""
    root, name = objects.split(uri)
    return cast(IO[bytes], io.BufferedReader(_Stream(objects.store(root, _DEADLINE_SECONDS), name)))


@contextmanager
def faults(where: str) -> Iterator[None]:
    """Raise `DataError` where the store refuses what the block asks for, `TransientError` where it does not answer."""
    try:
        yield
    except Missing as error:
        raise _no_such(where) from error
    except (InfrastructureError, TransientError) as error:
        if not isinstance(error.__cause__, StoreError):
            raise
        fault = error.__cause__.fault
        if fault.kind is Kind.NO_BUCKET:
            raise _no_such(where) from error
        if fault.kind is Kind.REFUSED:
            raise DataError(
                f"{where}: may not be read ({fault.reason}). Log in or grant the right to read the bucket's objects, or "
                "correct data.path in the recipe."
            ) from error
        raise TransientError(
            f"{where}: cannot be reached ({fault.reason}). Check the network and run the same command again."
        ) from error


class _Stream(io.RawIOBase):
    """An object's bytes, read in chunks, so that a lost connection costs one of them."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._chunk = memoryview(b"")
        self._at = 0
        self._ended = False

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill `buffer` and return how many bytes there were; 0 at the end."""
        if not self._chunk and not self._ended:
            content = self._store.read_up_to(self._name, self._at, _CHUNK)
            self._chunk, self._at = memoryview(content), self._at + len(content)
            self._ended = len(content) < _CHUNK
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count


def _no_such(where: str) -> DataError:
    return DataError(f"{where}: there is no such bucket or object. Correct data.path in the recipe.")


def _expression(pattern: str) -> str:
    """Return the regular expression of a glob, as Cloud Storage reads it.

    Source: https://cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob
    """
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return "".join(
        wild.get(part) or (f"[{part[1:-1].replace('!', '^', 1)}]" if part.startswith("[") else re.escape(part))
        for part in parts
    )
