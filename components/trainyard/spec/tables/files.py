"""Selects the files of a folder that form a table, so that profiles, plans and preprocess count the same rows."""

from __future__ import annotations

from typing import Literal

ENDINGS: dict[Literal["csv", "parquet"], tuple[str, ...]] = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
}


def is_part(name: str, format: Literal["csv", "parquet"]) -> bool:
    """Return True if the file `name` of a folder holds table rows: files directly in it or in partition folders.

    >>> is_part("may.csv", "csv"), is_part("old/may.csv", "csv"), is_part("day=1/0.parquet", "parquet")
    (True, False, True)
    """
    folders, _, file = name.rpartition("/")
    is_partition = format == "parquet" and all("=" in folder for folder in folders.split("/"))
    return file.lower().endswith(ENDINGS[format]) and (not folders or is_partition)
