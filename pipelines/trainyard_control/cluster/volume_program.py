"""Receives files on a volume as a tar stream: whole and checked, or not at all. It runs in a pod by itself."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tarfile
from typing import IO

DIGESTS = ".digests"
"""The last member of the stream: the SHA-256 of each file as it was sent, by name."""

_CHUNK_BYTES = 1 << 20


def receive(stream: IO[bytes], folder: str, staging: str, last: str) -> None:
    """Write the files of the tar `stream` into `staging`, and publish them as `folder`; the file `last` comes last.

    If the folder is there, its files are replaced. Raises `OSError` or `tarfile.TarError`, and leaves nothing, if the
    stream is cut or other bytes arrive than were sent.
    """
    os.makedirs(staging)  # noqa: PTH103
    lock = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a prune beside it removes folders without one
        names = _unpack(stream, staging)
        try:
            os.rename(staging, folder)  # noqa: PTH104
        except OSError:
            if not os.path.isdir(folder):  # noqa: PTH112 - it is there, perhaps since a moment ago
                raise
            for name in sorted(names, key=lambda name: name == last):
                target = os.path.join(folder, name)  # noqa: PTH118
                os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
                os.replace(os.path.join(staging, name), target)  # noqa: PTH105, PTH118
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def _unpack(stream: IO[bytes], folder: str) -> list[str]:
    """Write the files of the tar `stream` below `folder`, and return their names. Raises as `receive`."""
    digests: dict[str, str] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            source = archive.extractfile(member)
            if source is None or member.name.startswith("/") or ".." in member.name.split("/"):
                raise OSError(f"{member.name!r} is no file of an upload")
            if member.name == DIGESTS:
                if json.load(source) == digests:
                    return list(digests)
                break
            path, digest = os.path.join(folder, member.name), hashlib.sha256()  # noqa: PTH118
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "wb") as file:  # noqa: PTH123
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            digests[member.name] = digest.hexdigest()
    raise OSError("other bytes arrived than were sent")


if __name__ == "__main__":
    try:
        receive(sys.stdin.buffer, *sys.argv[1:])
    except (OSError, tarfile.TarError) as error:
        sys.exit(str(error))
