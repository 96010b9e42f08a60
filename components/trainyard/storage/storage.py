"""Outputs in folders and in buckets, either complete or absent.

A writer fills its own folder; `stage` then checksums every file, writes `manifest.json` and publishes by one atomic
operation: renaming the folder on a file system, creating a marker object in a bucket. A reader opens an output only
through its manifest, so it never sees a partial result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from trainyard.errors import ConfigurationError, DataError
from trainyard.storage import folders, volume_copies
from trainyard.storage.buckets import bucket_folders, stores
from trainyard.storage.buckets.objects import deadline
from trainyard.storage.damage import ADVICE
from trainyard.storage.file_stream import FileStream
from trainyard.storage.manifest import ATTEMPTS, MANIFEST, File, Manifest, adopt, measure
from trainyard.uris import BUCKETS, is_bucket, scheme

__all__ = [
    "ADVICE",
    "MANIFEST",
    "File",
    "FileStream",
    "Manifest",
    "adopt",
    "deadline",
    "is_bucket",
    "measure",
]


_volumes: dict[str, volume_copies.VolumeCopies] = {}


class _Backend(Protocol):
    """The operations of both `folders` and `bucket_folders`."""

    def committed(self, uri: str) -> Manifest | None: ...
    def require(self, uri: str, advice: str) -> Manifest: ...
    def local(self, uri: str, advice: str, only: Callable[[str], bool] | None = None) -> Path: ...
    def read(self, folder: str, name: str, advice: str) -> bytes | None: ...
    def read_bytes(self, uri: str, limit: int) -> bytes | None: ...
    def children(self, uri: str) -> list[str]: ...
    def sizes(self, uri: str) -> dict[str, int]: ...
    def remove_unfinished(self, uri: str) -> None: ...
    def remove_abandoned(self, uri: str) -> None: ...
    def stage(
        self, uri: str, producer: str, last: str = "", origin: dict[str, Any] | None = None
    ) -> AbstractContextManager[Path]: ...
    def write_text(self, uri: str, text: str) -> None: ...
    def read_text(self, uri: str, errors: str = "strict") -> str | None: ...
    def remove(self, uri: str) -> None: ...
    def lease(self, uri: str, wait: bool = False) -> AbstractContextManager[None]: ...


def join(uri: str, *parts: str) -> str:
    """Return `uri` extended by `parts`."""
    return "/".join([uri.rstrip("/"), *parts])


def committed(uri: str) -> Manifest | None:
    """Return the manifest of the folder at `uri`, None if nothing was published.

    Raises `DataError` if the manifest cannot be read.
    """
    return _backend(uri).committed(uri)


def require(uri: str, advice: str = ADVICE) -> Manifest:
    """Return the manifest of the committed folder at `uri`.

    Checks that every file exists with its size. Raises `DataError` with `advice` if the folder or a file is missing or
    truncated.
    """
    return _backend(uri).require(uri, advice)


def local(uri: str, advice: str = ADVICE, only: Callable[[str], bool] | None = None) -> Path:
    """Return a local, read-only folder with the files and the manifest of the committed folder at `uri`.

    It is the folder itself, checked as by `require`, or a copy of a bucket's. The CRC32C of every file is verified,
    except for local examples, whose records have their own. only: predicate of the files that a copy holds and its
    manifest lists; such a copy is never used for the complete folder. Copies stay in TRAINYARD_CACHE (by default in the
    temporary folder) for all processes of the machine. They are removed only above TRAINYARD_CACHE_SIZE, and never
    while a process that opened them runs.
    """
    return _backend(uri).local(uri, advice, only)


def stream(uri: str, names: Collection[str], advice: str = ADVICE) -> FileStream | None:
    """Return a stream of the files `names` of the committed folder at `uri`, each verified when fetched.

    None if the folder is local or complete in the cache. Files stay in TRAINYARD_CACHE for all processes of the
    machine, within TRAINYARD_CACHE_SIZE.
    """
    if not is_bucket(uri):
        return None
    return bucket_folders.stream(uri, advice, names)


def read(folder: str, name: str, advice: str = ADVICE) -> bytes | None:
    """Return the content of the file `name` of the committed `folder`, None if it is missing.

    Raises `DataError` if it differs from its manifest.
    """
    return _backend(folder).read(folder, name, advice)


def read_bytes(uri: str, limit: int) -> bytes | None:
    """Return the content of the file at `uri`, None if it is missing.

    Raises `DataError` if it has more than `limit` bytes.
    """
    return _backend(uri).read_bytes(uri, limit)


def children(uri: str) -> list[str]:
    """Return the names directly below `uri` in order, without those that start with a dot."""
    return _backend(uri).children(uri)


def sizes(uri: str) -> dict[str, int]:
    """Return the size of each file at any depth below `uri` by its relative name, hidden files included."""
    return _backend(uri).sizes(uri)


def remove_unfinished(uri: str) -> None:
    """Remove leftovers of killed writers directly below `uri`; the caller holds the lease of all of it."""
    _backend(uri).remove_unfinished(uri)


def remove_abandoned(uri: str) -> None:
    """Remove leftovers of killed writers of `uri` and its siblings; the caller holds the lease of `uri`.

    Files of live writers stay. In a bucket, only attempts of a published output can be told from those; the rest is
    removed when the output is published.
    """
    _backend(uri).remove_abandoned(uri)


def stage(
    uri: str, producer: str, last: str = "", origin: dict[str, Any] | None = None
) -> AbstractContextManager[Path]:
    """Yield an empty local folder whose content becomes the folder `uri` when the block succeeds.

    After an error the staging folder is removed and `uri` is unchanged. If another writer published `uri` meanwhile,
    equal content counts as success. With `last`, files are directly below `uri` in a bucket too, for readers without
    manifests; the file `last`, by which they recognize a complete folder, is uploaded last. Files whose content may
    differ between attempts need different names. The manifest records `origin`.

    Raises `InfrastructureError` for a full disk, a missing permission, or a different folder already at `uri`.
    """
    return _backend(uri).stage(uri, producer, last, origin)


def attempt(uri: str, name: str) -> str:
    """Return the folder in which workers may write files of the attempt `name` for the output `uri` in a bucket.

    `adopt` makes them files of the output. Names must differ if contents do, so that the next attempt of the same name
    can use what a killed one left.
    """
    return join(uri, f"{ATTEMPTS}{name}")


def write_text(uri: str, text: str) -> None:
    """Replace the file at `uri` by `text` atomically."""
    _backend(uri).write_text(uri, text)


def publish_file(path: Path, uri: str) -> None:
    """Copy the local file at `path` to `uri`, where it appears when it is whole."""
    if is_bucket(uri):
        store, name = stores.locate(uri)
        store.upload(name, path, measure(path))
    else:
        folders.publish_file(path, uri)


def require_place(uri: str) -> None:
    """Create the folder of the file `uri`. In a bucket only the name is checked.

    Raises `ConfigurationError` for an invalid name, `InfrastructureError` if the folder cannot be created.
    """
    if is_bucket(uri):
        stores.locate(uri)
    else:
        folders.require_place(uri)


def reserve(uri: str, size: int) -> None:
    """Reserve `size` bytes for the next `write_text` of `uri`, so that it succeeds even on a full disk.

    Does nothing for a bucket.
    """
    if not is_bucket(uri):
        folders.reserve(uri, size)


def read_text(uri: str, errors: str = "strict") -> str | None:
    """Return the text of the file at `uri`, None if it is missing.

    errors: as in `bytes.decode`; 'replace' for a log, which a full disk may have cut within a character.
    """
    return _backend(uri).read_text(uri, errors)


def read_json(uri: str) -> dict[str, Any]:
    """Return the JSON object in the file at `uri`, empty if it is missing. Raises `DataError` if it is damaged."""
    text = read_text(uri)
    try:
        document = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DataError(f"{uri}: is no JSON object, so it is damaged. Delete it, or restore it.")
    return document


def remove(uri: str) -> None:
    """Remove the folder or file at `uri`, its manifest first, so that no reader opens it meanwhile."""
    _backend(uri).remove(uri)


def lease(uri: str, wait: bool = False) -> AbstractContextManager[None]:
    """Hold the right to write `uri` until the block ends or the process dies.

    wait: until another process that holds it ends, after a warning. Otherwise raises `TransientError`: at once for a
    folder, within seconds for a bucket. Raises `InfrastructureError` for a folder on a file system without locks.
    """
    return _backend(uri).lease(uri, wait)


def reading(uri: str) -> AbstractContextManager[None]:
    """Block the lease of the folder `uri` while the block runs; any number of readers may do so.

    Waits for the holder of the lease. Does nothing for a bucket.
    """
    return nullcontext() if is_bucket(uri) else folders.reading(uri)


def read_volume(path: str, reader: volume_copies.Reader) -> None:
    """Have this process read what is at or below `path`, where a volume would be mounted, by `reader`."""
    _volumes[path.rstrip("/")] = volume_copies.VolumeCopies(reader)


def volume(uri: str) -> volume_copies.VolumeCopies | None:
    """Return the volume on which `uri` is, if this process reads it by `read_volume`."""
    return next((copies for path, copies in _volumes.items() if f"{uri}/".startswith(f"{path}/")), None)


def _backend(uri: str) -> _Backend:
    if copies := volume(uri):
        return copies
    if is_bucket(uri):
        return bucket_folders
    if scheme(uri):
        raise ConfigurationError(
            f"{uri}: is neither a folder nor a bucket. A path, {' and '.join(BUCKETS)} are known. "
            "Correct the environment's storage or push.path."
        )
    return folders
