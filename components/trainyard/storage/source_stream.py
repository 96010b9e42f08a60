"""Opens a file of a recipe's source, local or in a bucket."""

from __future__ import annotations

import gzip
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from trainyard.errors import DataError
from trainyard.storage.buckets import bucket_source
from trainyard.uris import is_bucket

_SEEKING_CHUNK = 4 << 20  # chosen: maximum of unused bytes fetched after each column of a row group


def open_file(path: str, chunk: int | None = None) -> IO[bytes]:
    """Return the bytes of `path`, gunzipped if the name ends in .gz; a damaged archive raises while reading.

    The stream can seek, at least forward. chunk: bytes of one request to a bucket, many by default. Raises `OSError` if
    it is not a regular file, because opening a named pipe would wait forever.
    """
    stream = bucket_source.open_object(path, chunk) if is_bucket(path) else _open_regular(path)
    return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(fileobj=stream))) if path.endswith(".gz") else stream


@contextmanager
def seekable_file(path: str) -> Iterator[str | IO[bytes]]:
    """Yield the path of a local file, or a seekable stream of a bucket's object."""
    if not is_bucket(path):
        yield path
        return
    with open_file(path, _SEEKING_CHUNK) as stream:
        yield stream


def unreadable(name: str, error: Exception) -> DataError:
    """Return the error for the file `name`, which cannot be read to its end."""
    return DataError(f"{name}: cannot be read ({error}). Check its permissions, or copy it again from its origin.")


def _open_regular(path: str) -> IO[bytes]:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path}: is no regular file")
    return io.BufferedReader(io.FileIO(file))
