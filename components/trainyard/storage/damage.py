"""The errors for a committed folder that is missing, damaged or held, with the advice of who reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import google_crc32c

from trainyard import events
from trainyard.errors import DataError, TransientError
from trainyard.storage.manifest import Manifest

ADVICE = "Remove the folder, and run the same command again."
"""For a folder that no step writes."""


def missing(uri: str, advice: str) -> DataError:
    """Return the error for the folder `uri`, in which nothing was published."""
    return DataError(f"{uri}: no committed folder is there. {advice}")


def held(uri: str, holder: str, wait: bool) -> None:
    """Raise `TransientError` because `holder` has the lease of `uri`, or warn that this process waits for it."""
    if not wait:
        raise TransientError(
            f"{uri}: {holder} is writing it. Wait until it ends and run the same command again, or name another "
            "storage."
        )
    events.warn(f"{uri}: {holder} is writing it. Waiting until it ends.")


def changed(manifest: Manifest, name: str, uri: str, advice: str) -> DataError:
    """Return the error for the file `name` of the folder `uri`, which changed after it was published."""
    return DataError(
        f"{uri}/{name}: its content differs from its manifest's checksum, so it was changed after "
        f"{manifest.producer} had written it. {advice}"
    )


def lost(uri: str, advice: str, error: Exception) -> DataError:
    """Return the error for the folder `uri` of a bucket, one of whose objects is missing."""
    return DataError(f"{uri}: a file of its manifest is gone ({error}). {advice}")


def require_sizes(manifest: Manifest, sizes: Mapping[str, int], uri: str, advice: str) -> None:
    """Raise `DataError` if a file is missing or has another size. sizes: those in the folder `uri`, by name."""
    for name in manifest.other_sizes(sizes):
        size = f"{sizes[name]:,} bytes" if name in sizes else "missing"
        expected = manifest.files[name].bytes
        raise DataError(f"{uri}/{name}: {size}, its manifest says {expected:,} bytes. {advice}")


def require_unchanged(manifest: Manifest, folder: Path, advice: str, only: Callable[[str], bool] | None) -> None:
    """Raise `DataError` if a file in `folder` has another checksum; `only` is as in `Manifest.changed`."""
    for name in manifest.changed(folder, only):
        raise changed(manifest, name, str(folder), advice)


def verified(content: bytes, manifest: Manifest, name: str, uri: str, advice: str) -> bytes:
    """Return `content` of the file `name` in the folder `uri`. Raises `DataError` if its checksum differs."""
    file = manifest.files.get(name)
    if file is not None and google_crc32c.Checksum(content).hexdigest().decode() != file.crc32c:
        raise changed(manifest, name, uri, advice)
    return content
