"""The errors for a committed folder that is missing or damaged, each with the way to get it again.

`made_by` is the name of a step, or that of a producer in a manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import google_crc32c

from trainyard import graph
from trainyard.errors import DataError
from trainyard.storage.manifest import Manifest


def missing(uri: str, made_by: str) -> DataError:
    """Return the error for the folder `uri`, in which nothing was published."""
    step = graph.made_by(made_by)
    output = f"output of the step '{step}'" if step else f"folder of {made_by}"
    return DataError(f"{uri}: no committed {output}. {graph.remedy(made_by)}")


def changed(manifest: Manifest, name: str, uri: str) -> DataError:
    """Return the error for the file `name` of the folder `uri`, which changed after it was published."""
    return DataError(
        f"{uri}/{name}: its content differs from its manifest's checksum, so it was changed after "
        f"{graph.made_by(manifest.producer) or manifest.producer} had written it. {graph.remedy(manifest.producer)}"
    )


def lost(uri: str, made_by: str, error: Exception) -> DataError:
    """Return the error for the folder `uri` of a bucket, one of whose objects is missing."""
    return DataError(f"{uri}: a file of its manifest is gone ({error}). {graph.remedy(made_by)}")


def require_sizes(manifest: Manifest, sizes: Mapping[str, int], uri: str, made_by: str) -> None:
    """Raise `DataError` if a file is missing or has another size. sizes: those in the folder `uri`, by name."""
    for name in manifest.other_sizes(sizes):
        size = f"{sizes[name]:,} bytes" if name in sizes else "missing"
        expected = manifest.files[name].bytes
        raise DataError(f"{uri}/{name}: {size}, its manifest says {expected:,} bytes. {graph.remedy(made_by)}")


def require_unchanged(manifest: Manifest, folder: Path, only: Callable[[str], bool] | None = None) -> None:
    """Raise `DataError` if a file in `folder` has another checksum; `only` is as in `Manifest.changed`."""
    for name in manifest.changed(folder, only):
        raise changed(manifest, name, str(folder))


def verified(content: bytes, manifest: Manifest, name: str, uri: str) -> bytes:
    """Return `content` of the file `name` in the folder `uri`. Raises `DataError` if its checksum differs."""
    file = manifest.files.get(name)
    if file is not None and google_crc32c.Checksum(content).hexdigest().decode() != file.crc32c:
        raise changed(manifest, name, uri)
    return content
