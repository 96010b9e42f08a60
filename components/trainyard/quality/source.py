"""Finds what a source is by the names of its files: tables or pictures."""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, Literal

from trainyard import uris
from trainyard.contract import pictures
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec.tables.columns import Quote
from trainyard.storage import listing
from trainyard.storage.source_stream import open_file

Kind = Literal["csv", "parquet", "image_folder"]

_TABLES: dict[Kind, tuple[str, ...]] = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet", ".pq")}
_SHOWN = 5


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, all below `root`, in order; others are those of no kind that is looked into.

    quote: what the cells of CSV are put in.
    """

    path: str
    kind: Kind
    root: str
    files: list[listing.SourceFile]
    others: list[str]
    quote: Quote = '"'

    @property
    def is_table(self) -> bool:
        """Whether the files hold rows, not pictures."""
        return self.kind != "image_folder"

    def open(self, file: listing.SourceFile) -> IO[bytes]:
        """Return the file's bytes, gunzipped if its name ends in .gz."""
        return open_file(f"{self.root.rstrip('/')}/{file.name}")

    def bytes(self, file: listing.SourceFile) -> io.BytesIO:
        """Return all of the file's bytes."""
        with self.open(file) as stream:
            return io.BytesIO(stream.read())


def find_source(path: str, kind: Kind | None = None) -> SourceFiles:
    """Return the files of `path`: a folder, a file or a glob, local, gs:// or s3://.

    Without `kind` the one that most of the files have is taken. Raises `DataError` if there are none of it.
    """
    if why := uris.path_error(path):
        raise DataError(f"{uris.without_secrets(path)}: {why}.")
    listed = listing.list_files(path)
    if not listed.files:
        raise DataError(f"{path}: no files found. Name a CSV or Parquet file, a folder of images, or a glob.")
    by_kind: dict[Kind, list[listing.SourceFile]] = {"csv": [], "parquet": [], "image_folder": []}
    others = []
    for file in listed.files:
        of = _kind(file.name) or (kind if not listed.is_folder and kind == "csv" else None)
        if of is None:
            others.append(file.name)
        else:
            by_kind[of].append(file)
    most: Kind = max(by_kind, key=lambda candidate: len(by_kind[candidate]))
    chosen = kind or most
    files = by_kind[chosen]
    if not files:
        raise DataError(f"{path}: {_none_of(kind, listed.files)}")
    if chosen != "image_folder" and (bad := [file for file in files if file.reason]):
        raise DataError(f"{path}: {bad[0].name} cannot be read ({bad[0].detail}). Repair or remove it.")
    others += [file.name for name, several in by_kind.items() if name != chosen for file in several]
    return SourceFiles(path, chosen, listed.root, files, sorted(others))


def require_libraries() -> None:
    """Raise `ConfigurationError` if what looks into data is not installed."""
    for name in ("numpy", "PIL", "pyarrow"):
        if find_spec(name) is None:
            raise ConfigurationError(f"{name} is not installed, which looks into data. Install trainyard[cpu].")


def _kind(name: str) -> Kind | None:
    lower = name.lower()
    for kind, endings in _TABLES.items():
        if lower.endswith(endings):
            return kind
    return "image_folder" if lower.endswith(pictures.ENDINGS) else None


def _none_of(kind: Kind | None, files: list[listing.SourceFile]) -> str:
    shown = ", ".join(file.name for file in files[:_SHOWN])
    if kind in ("image_folder", None) and any(file.name.endswith((".tar", ".tar.gz")) for file in files):
        return f"pictures in archives, such as {shown}, are not looked into: preprocess reads and checks them itself."
    expected = {
        "csv": "no CSV file (*.csv, *.csv.gz)",
        "image_folder": "no picture (*.jpg, *.png …)",
        "parquet": "no Parquet file (*.parquet, *.pq)",
        None: "neither CSV files (*.csv, *.csv.gz) nor Parquet files (*.parquet) nor pictures (*.jpg, *.png …)",
    }[kind]
    return f"{expected} among its {len(files)} files, such as {shown}. Name another source."
