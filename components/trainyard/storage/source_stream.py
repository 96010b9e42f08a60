"""Opens a file of a recipe's source, wherever it is, and reads no more of one than is allowed."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from trainyard.storage.buckets import bucket_source
from trainyard.uris import is_bucket


def open_file(path: str, chunk: int | None = None) -> IO[bytes]:
    """Return the bytes of `path`, gunzipped if the name ends in .gz; a cut or broken archive raises while reading.

    One can seek in it, forward at least. chunk: bytes that are fetched at once out of a bucket, by default many.
    Raises `OSError` if it is no regular file (any more): opening a named pipe would wait for its writer for ever.
    """
    stream = bucket_source.open_object(path, chunk) if is_bucket(path) else _open_regular(path)
    return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(fileobj=stream))) if path.endswith(".gz") else stream


@contextmanager
def local_file(path: str) -> Iterator[str]:
    """Yield a local path of what is at `path`, for what is not read from its beginning on; of a bucket, a copy."""
    if not is_bucket(path):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="trainyard-") as copy:
        with open_file(path) as stream:
            shutil.copyfileobj(stream, copy)
        copy.flush()
        yield copy.name


def _open_regular(path: str) -> IO[bytes]:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path}: is no regular file")
    return io.BufferedReader(io.FileIO(file))
