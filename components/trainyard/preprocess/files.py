"""Finds and opens the files of a source: in a folder or in a bucket."""

from __future__ import annotations

import fnmatch
import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from apache_beam.io.filesystems import FileSystems

from trainyard.core import buckets, window
from trainyard.core.artifacts import Window
from trainyard.core.errors import DataError
from trainyard.core.objects import is_bucket
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
    """The files of a source: absolute paths in order, all below `root`; in a window of days, below a root a day."""

    root: str
    paths: list[str]
    roots: tuple[str, ...] = ()
    window: Window | None = None

    def name(self, path: str) -> str:
        """Return `path` as seen from the root."""
        return relative(path, self.root)

    def name_in_day(self, path: str) -> str:
        """Return `path` as seen from its day's root, or from the only one."""
        return relative(path, next((root for root in self.roots if path.startswith(f"{root}/")), self.root))


def relative(path: str, root: str) -> str:
    """Return `path` as seen from `root`."""
    return path.removeprefix(root.rstrip("/") + "/")


def find_files(data: Data, path: str, day: str = "") -> Files:
    """Return the files that `path` (a folder, a file or a glob, local, gs:// or s3://) stands for, hidden ones left out.

    Where `data` is a window of days, it is that before `day`. Raises `DataError` where there are none or they cannot be
    listed, `TransientError` where a bucket cannot be reached.
    """
    if data.window_days is not None:
        return _in_window(data, day)
    files = _found(data, path)
    if not files.paths:
        wanted = " or ".join(_patterns(data, path))
        raise DataError(f"data.path: {path}: no files found. Looked for {wanted}. Correct data.path in the recipe.")
    return files


def _in_window(data: Data, day: str) -> Files:
    found = {each: _found(data, path) for each, path in window.paths(data, day).items()}
    days = window.require(data, ((each, len(files.paths)) for each, files in found.items()))
    root = (data.path or "").partition("%")[0].rpartition("/")[0]
    paths = sorted({path for files in found.values() for path in files.paths})
    return Files(root, paths, tuple(dict.fromkeys(files.root for files in found.values())), days)


def _found(data: Data, path: str) -> Files:
    return _in_bucket(data, path) if is_bucket(path) else _in_folder(path, _patterns(data, path))


def _patterns(data: Data, path: str) -> list[str]:
    return [path] if _GLOB.search(path) else [f"{path.rstrip('/')}/{pattern}" for pattern in _PATTERNS[data.format]]


def open_file(path: str) -> IO[bytes]:
    """Return the bytes of `path`, gunzipped where the name ends in .gz; a cut or broken archive raises while reading."""
    stream: IO[bytes] = buckets.open_object(path) if is_bucket(path) else io.FileIO(path)
    return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(fileobj=stream))) if path.endswith(".gz") else stream


def read_text(path: str) -> str | None:
    """Return the text of the file at `path`, or None where there is none."""
    try:
        if is_bucket(path) and not buckets.list_objects(path).objects:
            return None
        with open_file(path) as stream:
            return stream.read().decode("utf-8")
    except FileNotFoundError:
        return None


def _in_bucket(data: Data, path: str) -> Files:
    listing = buckets.list_objects(path)
    names = [item.name for item in listing.objects]
    if listing.root == path.rstrip("/"):
        names = [name for name in names if _is_wanted(name, data)]
    return Files(listing.root, [f"{listing.root}/{name}" for name in names])


def _is_wanted(name: str, data: Data) -> bool:
    patterns = _PATTERNS[data.format]
    return patterns == ("**",) or ("/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _in_folder(path: str, patterns: list[str]) -> Files:
    found = _GLOB.search(path)
    if found:
        root = path[: found.start()].rpartition("/")[0]
    elif Path(path).is_file():
        root, patterns = path.rpartition("/")[0], [path]
    else:
        root = path.rstrip("/")
    try:
        names = {file.path for match in FileSystems.match(patterns) for file in match.metadata_list}
    except Exception as error:
        raise DataError(
            f"data.path: {path}: cannot be listed ({error}). Check the name and the permissions."
        ) from error
    return Files(root, sorted(name for name in names if not _hidden(relative(name, root))))


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
