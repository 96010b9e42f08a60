"""Finds and opens the files of a source: in a folder, or in a bucket of Google Cloud Storage."""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from trainyard.core import buckets
from trainyard.core.errors import DataError
from trainyard.core.recipe import Data

_GLOB = re.compile(r"[*?\[]")
_PATTERNS = {
    "image_folder": ("**",),
    "csv": ("*.csv", "*.csv.gz"),
    "tfrecord": ("*.tfrecord*",),
    "tfds": ("*.tfrecord*",),
}


@dataclass(frozen=True)
class Files:
    """The files of a source: absolute paths in order, all below `root`."""

    root: str
    paths: list[str]

    def name(self, path: str) -> str:
        """Return `path` as seen from the root."""
        return relative(path, self.root)


def relative(path: str, root: str) -> str:
    """Return `path` as seen from `root`."""
    return path.removeprefix(root.rstrip("/") + "/")


def find_files(data: Data, path: str) -> Files:
    """Return the files that `path` (a folder, a file or a glob, local or gs://) stands for, hidden ones left out.

    Raises `DataError` where there are none or they cannot be listed.
    """
    is_glob = _GLOB.search(path) is not None
    if is_glob:
        root, patterns = path[: _GLOB.search(path).start()].rpartition("/")[0], [path]  # type: ignore[union-attr]
    elif _is_file(path):
        root, patterns = path.rpartition("/")[0], [path]
    else:
        root, patterns = path.rstrip("/"), [f"{path.rstrip('/')}/{pattern}" for pattern in _PATTERNS[data.format]]
    try:
        found = {file.path for match in FileSystems.match(patterns) for file in match.metadata_list}
    except Exception as error:
        raise DataError(
            f"data.path: {path}: cannot be listed ({error}). Check the name and the permissions."
        ) from error
    paths = sorted(name for name in found if not _hidden(relative(name, root)))
    if not paths:
        wanted = " or ".join(patterns)
        raise DataError(f"data.path: {path}: no files found. Looked for {wanted}. Correct data.path in the recipe.")
    return Files(root, paths)


def open_file(path: str) -> IO[bytes]:
    """Return the bytes of `path`, gunzipped where the name ends in .gz; a cut or broken archive raises while reading."""
    stream = cast(IO[bytes], FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED))
    # Beam's own decompression takes a cut .gz for a complete one, so Python's does it.
    return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(fileobj=stream))) if path.endswith(".gz") else stream


def _is_file(path: str) -> bool:
    return bool(FileSystems.exists(path)) if "://" in path else Path(path).is_file()


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
