"""Outputs in folders and in buckets, complete or not there at all.

A writer fills a folder of its own; `stage` then checksums every file, writes `manifest.json` and publishes by one
atomic operation: the rename of the folder on a file system, the creation of one marker object in a bucket. A reader
opens an output only through its manifest, so it never sees half a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from trainyard.errors import ConfigurationError
from trainyard.storage import folders
from trainyard.storage.buckets.objects import deadline
from trainyard.storage.file_stream import FileStream
from trainyard.storage.manifest import ATTEMPTS, MANIFEST, File, Manifest, adopt, measure
from trainyard.uris import BUCKETS, is_bucket, scheme

__all__ = [
    "MANIFEST",
    "File",
    "FileStream",
    "Manifest",
    "adopt",
    "deadline",
    "is_bucket",
    "measure",
]


class _Backend(Protocol):
    """What `folders` and `bucket_folders` both do."""

    def committed(self, uri: str) -> Manifest | None: ...
    def require(self, uri: str, made_by: str) -> Manifest: ...
    def local(self, uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> Path: ...
    def read(self, folder: str, name: str) -> bytes | None: ...
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
    def lease(self, uri: str) -> AbstractContextManager[None]: ...


def join(uri: str, *parts: str) -> str:
    """Return `uri` with `parts` below it."""
    return "/".join([uri.rstrip("/"), *parts])


def committed(uri: str) -> Manifest | None:
    """Return the manifest of the folder at `uri`, or None if nothing was published.

    Raises `DataError` if the manifest itself cannot be read.
    """
    return _backend(uri).committed(uri)


def require(uri: str, made_by: str) -> Manifest:
    """Return the manifest of the committed folder at `uri`; `made_by` names the step that should have written it.

    Every file's presence and size is checked. Raises `DataError` if the folder or a file is missing or truncated.
    """
    return _backend(uri).require(uri, made_by)


def local(uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> Path:
    """Return a local folder with the files and the manifest of the committed folder at `uri`, for reading alone.

    It is the folder itself, checked as by `require`, or a copy of a bucket's. Every file's CRC32C is verified, except
    those of local examples, whose records have their own. only: which files a copy holds and its manifest lists; such a
    copy is never used for the complete folder. Copies stay in TRAINYARD_CACHE (by default below the folder for
    temporary files) for all processes of the machine. They are removed only if they exceed TRAINYARD_CACHE_SIZE, and
    never while a process that has opened them lives.
    """
    return _backend(uri).local(uri, made_by, only)


def stream(uri: str, made_by: str, names: Collection[str]) -> FileStream | None:
    """Return a stream of the files `names` of the committed folder at `uri`, each verified when it has come.

    None if all of the folder is on this machine, or in its cache. What comes stays in TRAINYARD_CACHE for all processes
    of the machine, as long as it fits TRAINYARD_CACHE_SIZE.
    """
    if not is_bucket(uri):
        return None
    from trainyard.storage.buckets import bucket_folders

    return bucket_folders.stream(uri, made_by, names)


def read(folder: str, name: str) -> bytes | None:
    """Return the content of the file `name` of the committed `folder`, or None if there is none.

    Raises `DataError` if it is not what its manifest says.
    """
    return _backend(folder).read(folder, name)


def children(uri: str) -> list[str]:
    """Return the names of the files and folders directly below `uri`, in order, without those that begin with a dot."""
    return _backend(uri).children(uri)


def sizes(uri: str) -> dict[str, int]:
    """Return the size of each file below `uri` by its name there, however deep, hidden ones too."""
    return _backend(uri).sizes(uri)


def remove_unfinished(uri: str) -> None:
    """Remove what killed writers left half-written directly below `uri`; the caller holds the lease of all of it."""
    _backend(uri).remove_unfinished(uri)


def remove_abandoned(uri: str) -> None:
    """Remove what killed writers of `uri`, and of outputs beside it, left; the caller holds the lease of `uri`.

    What a live writer writes stays. In a bucket only the attempts of a published output can be told from those; the
    others are removed when it is published.
    """
    _backend(uri).remove_abandoned(uri)


def stage(
    uri: str, producer: str, last: str = "", origin: dict[str, Any] | None = None
) -> AbstractContextManager[Path]:
    """Yield an empty local folder whose content becomes the folder `uri` when the block ends without an error.

    After an error the staging folder is removed and `uri` is as it was. If another writer published `uri` meanwhile,
    equal content counts as success. With `last` the files are directly below `uri` in a bucket too, for readers that
    know no manifest; the file `last`, by which they recognize a complete folder, is uploaded after all others. Files
    whose content may differ from one attempt to the next need names that differ, too. The manifest records `origin`.

    Raises `InfrastructureError` on a full disk, a missing permission, or a different folder already at `uri`.
    """
    return _backend(uri).stage(uri, producer, last, origin)


def attempt(uri: str, name: str) -> str:
    """Return the folder in which workers may leave files of the attempt `name` to write the output `uri` in a bucket.

    `adopt` makes them files of the output. Names differ if contents do, so that what is left of a killed attempt is of
    use to the next one of the same name.
    """
    return join(uri, f"{ATTEMPTS}{name}")


def write_text(uri: str, text: str) -> None:
    """Replace the file at `uri` by `text` atomically: readers see the old content or the new, never a mixture."""
    _backend(uri).write_text(uri, text)


def reserve(uri: str, size: int) -> None:
    """Reserve `size` bytes for the next `write_text` of `uri`, so that it succeeds on a disk that is full by then.

    A bucket needs none.
    """
    if not is_bucket(uri):
        folders.reserve(uri, size)


def read_text(uri: str, errors: str = "strict") -> str | None:
    """Return the text of the file at `uri`, or None if there is none.

    errors: as of `bytes.decode`; 'replace' for a log, which a full disk may have cut within a character.
    """
    return _backend(uri).read_text(uri, errors)


def read_json(uri: str) -> dict[str, Any]:
    """Return the JSON object in the file at `uri`, empty if there is none. Raises `ValueError` if it is damaged."""
    text = read_text(uri)
    return dict(json.loads(text)) if text else {}


def remove(uri: str) -> None:
    """Remove the folder or file at `uri`; the manifest goes first, so that no reader opens what is being removed."""
    _backend(uri).remove(uri)


def lease(uri: str) -> AbstractContextManager[None]:
    """Hold the right to write `uri` until the block ends; it becomes free when the process dies.

    Raises `TransientError` if another process holds it: at once for a folder, within seconds for a bucket.
    """
    return _backend(uri).lease(uri)


def reading(uri: str) -> AbstractContextManager[None]:
    """Have the lease of the folder `uri` refused to all while the block runs; any number may read at a time.

    Waits for who holds the lease. In a bucket it is refused to nobody.
    """
    return nullcontext() if is_bucket(uri) else folders.reading(uri)


def _backend(uri: str) -> _Backend:
    if is_bucket(uri):
        from trainyard.storage.buckets import bucket_folders

        return bucket_folders
    if scheme(uri):
        raise ConfigurationError(
            f"{uri}: is neither a folder nor a bucket. A path, {' and '.join(BUCKETS)} are known. "
            "Correct the environment's storage or push.path."
        )
    return folders
