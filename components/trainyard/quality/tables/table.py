"""Reads the files of a source as one table of texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.errors import DataError
from trainyard.quality.source import SourceFiles
from trainyard.readers import formats
from trainyard.readers.rows import BadRow, RowBatch
from trainyard.spec.columns import TableName
from trainyard.values.patterns import NUMBER

_ROWS, _BYTES = 1 << 16, 8 << 20  # of a batch; chosen: what costs once a batch is then little


def read_table(source: SourceFiles, used: Collection[str] | None = None) -> Iterator[RowBatch | BadRow]:
    """Yield the rows of all files in order, as texts; rows of CSV of nothing but empty cells are left out.

    used: the columns that a recipe reads, by default all. A cell of another one that cannot be read is missing.

    Raises `DataError` that names the file if it is empty, has other columns than the first file, or cannot be read.
    """
    first: list[str] = []
    for file in source.tables:
        columns = formats.columns(table_kind(source), file)
        if not columns:
            raise DataError(f"{file.name}: has no column of numbers or texts. Name a table.")
        if source.kind == "csv" and all(re.fullmatch(NUMBER, name) for name in columns):
            raise DataError(
                f"{file.name}: row 1: holds numbers alone ({', '.join(columns)[:80]}), so the file has no header. "
                "Add a line with the names of the columns."
            )
        first = first or columns
        if columns != first and source.kind == "csv":
            raise DataError(_other_header(columns, first, file.name, source.files[0].name))
        required = first if used is None else [name for name in first if name in used]
        for item in _together(formats.read(table_kind(source), file, required, whole_rows=True), first):
            yield _without_empty(item) if isinstance(item, RowBatch) and source.kind == "csv" else item


def table_kind(source: SourceFiles) -> TableName:
    """Return the format of a source of tables."""
    assert source.kind != "image_folder"  # noqa: S101 - asked of tables alone
    return source.kind


def nested(source: SourceFiles) -> dict[str, Any]:
    """Return Arrow's types of the columns of the first file that hold lists or structs. Raises as `read_table`."""
    return formats.FORMATS[table_kind(source)].nested(source.tables[0])


def _together(items: Iterator[RowBatch | BadRow], names: list[str]) -> Iterator[RowBatch | BadRow]:
    """Yield the columns `names` of one file as texts in larger batches."""
    waiting: list[RowBatch] = []
    for item in items:
        if isinstance(item, BadRow):
            yield item
            continue
        waiting.append(item.select(names).texts())
        if sum(len(rows.rows) for rows in waiting) >= _ROWS or sum(rows.columns.nbytes for rows in waiting) >= _BYTES:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[RowBatch]) -> RowBatch:
    table = pa.Table.from_batches([batch.columns for batch in batches]).combine_chunks()
    (columns,) = table.to_batches()
    return RowBatch(batches[0].file, columns, np.concatenate([batch.rows for batch in batches]))


def _without_empty(batch: RowBatch) -> RowBatch:
    filled = np.zeros(len(batch.rows), bool)
    for column in batch.columns.columns:
        filled |= np.asarray(pc.binary_length(column)) > 0
        if filled.all():
            return batch
    return batch.filter(filled)


def _other_header(header: list[str], first: list[str], name: str, first_name: str) -> str:
    missing = [column for column in first if column not in header]
    new = [column for column in header if column not in first]
    parts = [f"lacks {', '.join(missing)[:200]}"] if missing else []
    parts += [f"has {', '.join(new)[:200]} besides"] if new else []
    return (
        f"{name}: row 1: the header {' and '.join(parts) or 'has another order'}, compared with {first_name}. "
        "All files of a source have the same columns in the same order. Correct it, or name the files by a glob."
    )
