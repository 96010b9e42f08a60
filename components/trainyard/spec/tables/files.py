"""Selects the files of a folder that form a table, so that all that read it count the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

TableName = Literal["csv", "parquet", "tfrecord"]
"""The formats of tables; `trainyard.readers.formats` says how each is read."""

ENDINGS: dict[TableName, tuple[str, ...]] = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "tfrecord": (".tfrecord", ".tfrecord.gz", ".tfrecords", ".tfrecords.gz"),
}
_SHARD = ".tfrecord-"  # as Beam and TensorFlow Datasets name them: a.tfrecord-00000-of-00010


def has_ending(name: str, format: TableName) -> bool:
    """Return True if the file name ends as files of the format do."""
    lower = name.lower()
    return lower.endswith(ENDINGS[format]) or (format == "tfrecord" and _SHARD in lower)


def is_part(name: str, format: TableName) -> bool:
    """Return True if the file `name` of a folder holds table rows: files directly in it or in partition folders.

    >>> is_part("may.csv", "csv"), is_part("old/may.csv", "csv"), is_part("day=1/0.parquet", "parquet")
    (True, False, True)
    """
    folders = name.rpartition("/")[0]
    is_partition = format == "parquet" and all("=" in folder for folder in folders.split("/"))
    return has_ending(name, format) and (not folders or is_partition)


def holds_rows(name: str, format: TableName, *, in_folder: bool) -> bool:
    """Return True if the file `name` of a source holds table rows of the format.

    in_folder: the source is the folder. A file that is named by itself or by a glob may have any ending but those of
    another format.

    >>> holds_rows("a.txt", "csv", in_folder=False), holds_rows("a.parquet", "csv", in_folder=False)
    (True, False)
    """
    if in_folder:
        return is_part(name, format)
    return has_ending(name, format) or table_of(name, in_folder=False) is None


def hint(names: Iterable[str]) -> str:
    """Return advice on files that would be tables if they were not in a ZIP archive, or ''."""
    zipped = next((name for name in names if name.lower().endswith(".zip")), None)
    return f" {zipped} is a ZIP archive, which is not read: unpack it." if zipped else ""


def table_of(name: str, *, in_folder: bool) -> TableName | None:
    """Return the format of the file `name`, of a folder or named by itself; None if it is no table."""
    return next((kind for kind in ENDINGS if (is_part if in_folder else has_ending)(name, kind)), None)
