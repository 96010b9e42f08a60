"""Outputs that are either wholly there or not there, in folders and in buckets.

A writer fills a folder of its own; `stage` then checksums every file, writes `manifest.json` and publishes by one atomic
operation: the rename of the folder on a file system, the creation of one marker object in a bucket. A reader opens an
output only through its manifest, so it never sees half a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from trainyard.errors import ConfigurationError
from trainyard.storage import folders
from trainyard.storage.buckets.objects import patience
from trainyard.storage.manifest import MANIFEST, SCHEMA_VERSION, File, Manifest, measured
from trainyard.uris import BUCKETS, is_bucket, scheme

__all__ = ["MANIFEST", "SCHEMA_VERSION", "File", "Manifest", "is_bucket", "measured", "patience"]


class _Backend(Protocol):
    """What `folders` and `bucket_folders` both do."""

    def committed(self, uri: str) -> Manifest | None: ...
    def require(self, uri: str, made_by: str) -> Manifest: ...
    def local(self, uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> Path: ...
    def read(self, folder: str, name: str) -> bytes | None: ...
    def children(self, uri: str) -> list[str]: ...
    def remove_unfinished(self, uri: str) -> None: ...
    def remove_abandoned(self, uri: str) -> None: ...
    def stage(self, uri: str, producer: str, last: str = "") -> AbstractContextManager[Path]: ...
    def write_text(self, uri: str, text: str) -> None: ...
    def reserve(self, uri: str, size: int) -> None: ...
    def read_text(self, uri: str) -> str | None: ...
    def remove(self, uri: str) -> None: ...
    def lease(self, uri: str) -> AbstractContextManager[None]: ...


def join(uri: str, *parts: str) -> str:
    """Return `uri` with `parts` below it."""
    return "/".join([uri.rstrip("/"), *parts])


def committed(uri: str) -> Manifest | None:
    """Return the manifest of the folder at `uri`, or None where nothing was published.

    Raises `DataError` where the manifest itself cannot be read.
    """
    return _backend(uri).committed(uri)


def require(uri: str, made_by: str) -> Manifest:
    """Return the manifest of the committed folder at `uri`; `made_by` names the step that should have written it.

    Every file's presence and size is checked. Raises `DataError` where the folder or a file is missing or cut.
    """
    return _backend(uri).require(uri, made_by)


def local(uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> Path:
    """Return a local folder with the files and the manifest of the committed folder at `uri`, for reading alone.

    It is the folder itself, checked as by `require`, or a copy of a bucket's; every file's CRC32C is verified, that of
    local examples excepted, whose records have their own. With `only` a copy holds, and its manifest lists, the files whose
    names are chosen; it is never taken for the whole. Copies stay
    in TRAINYARD_CACHE (by default below the folder for temporary files) for all processes of the machine, and go only
    where more room is needed than TRAINYARD_CACHE_SIZE and no process that has opened them lives.
    """
    return _backend(uri).local(uri, made_by, only)


def read(folder: str, name: str) -> bytes | None:
    """Return the content of the file `name` of the committed `folder`, or None where there is none.

    Raises `DataError` where it is not what its manifest says.
    """
    return _backend(folder).read(folder, name)


def children(uri: str) -> list[str]:
    """Return the names of the files and folders directly below `uri`, in order, those that begin with a dot left out."""
    return _backend(uri).children(uri)


def remove_unfinished(uri: str) -> None:
    """Remove what killed writers left half-written directly below `uri`; the caller holds the lease of all of it."""
    _backend(uri).remove_unfinished(uri)


def remove_abandoned(uri: str) -> None:
    """Remove what killed writers of `uri`, and of what lies beside it, have left; the caller holds the lease of `uri`.

    What a writer that lives is writing stays. In a bucket that can only be known of an output that is published: of one that
    is not yet, what was left goes when it is.
    """
    _backend(uri).remove_abandoned(uri)


@contextmanager
def stage(uri: str, producer: str, last: str = "") -> Iterator[Path]:
    """Yield an empty local folder whose content becomes the folder `uri` when the block ends without an error.

    After an error the staging folder is removed and `uri` is as it was. When somebody published `uri` meanwhile, equal
    content counts as success. With `last` the files lie directly below `uri` in a bucket too, for readers that know no
    manifest; the file `last`, by which they know a whole folder, is uploaded after all others.

    Raises `InfrastructureError` on a full disk, a missing permission, or a different folder already at `uri`.
    """
    with _backend(uri).stage(uri, producer, last) as folder:
        yield folder


def write_text(uri: str, text: str) -> None:
    """Replace the file at `uri` by `text` in one step: readers see the old content or the new, never a mixture."""
    _backend(uri).write_text(uri, text)


def reserve(uri: str, size: int) -> None:
    """Keep room for the next `write_text` of `uri`, up to `size` bytes, so that it succeeds on a disk that is full by then.

    A bucket needs none.
    """
    _backend(uri).reserve(uri, size)


def read_text(uri: str) -> str | None:
    """Return the text of the file at `uri`, or None where there is none."""
    return _backend(uri).read_text(uri)


def remove(uri: str) -> None:
    """Remove the folder or file at `uri`; the manifest goes first, so that no reader opens what is being removed."""
    _backend(uri).remove(uri)


@contextmanager
def lease(uri: str) -> Iterator[None]:
    """Hold the right to write `uri` until the block ends; it becomes free when the process dies.

    Raises `TransientError` where another process holds it: at once for a folder, within seconds for a bucket.
    """
    with _backend(uri).lease(uri):
        yield


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
