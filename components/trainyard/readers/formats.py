"""The formats of tables: one entry each, which training, prediction, inspection and plans read by."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.readers.csv_rows import count_csv, csv_columns, csv_pieces, read_csv
from trainyard.readers.parquet_rows import count_parquet, nested_columns, parquet_columns, parquet_pieces, read_parquet
from trainyard.readers.rows import WHOLE, BadRow, Piece, RowBatch
from trainyard.readers.table_file import TableFile
from trainyard.readers.tf_examples import (
    example_columns,
    example_pieces,
    nested_examples,
    read_examples,
)
from trainyard.spec.columns import TableName
from trainyard.storage.listing import unreadable


@dataclass(frozen=True)
class TableFormat:
    """A table format and its reader.

    columns: the columns of a file that can be read. nested: the types of those that do not
    hold one value a row. read: the rows of some columns, which may be lists where the third argument names them, and
    of a piece; with the last argument the other columns, too. pieces: what can be read apart. count: the rows, None if
    it is not known without reading them all.
    is_sparse: a row may leave out columns, so that none is missing because the first rows lack it.
    """

    columns: Callable[[TableFile], list[str]]
    nested: Callable[[TableFile], dict[str, Any]]
    read: Callable[[TableFile, Sequence[str], Collection[str] | None, Piece, bool], Iterator[RowBatch | BadRow]]
    pieces: Callable[[TableFile], list[Piece]]
    count: Callable[[TableFile], int | None]
    is_sparse: bool = False


FORMATS: dict[TableName, TableFormat] = {
    "csv": TableFormat(
        columns=csv_columns,
        nested=lambda _: {},
        read=read_csv,
        pieces=csv_pieces,
        count=count_csv,
    ),
    "parquet": TableFormat(
        columns=parquet_columns,
        nested=nested_columns,
        read=read_parquet,
        pieces=parquet_pieces,
        count=count_parquet,
    ),
    "tfrecord": TableFormat(
        columns=example_columns,
        nested=nested_examples,
        read=read_examples,
        pieces=example_pieces,
        count=lambda _: None,
        is_sparse=True,
    ),
}


def columns(format: TableName, file: TableFile) -> list[str]:
    """Return the columns of `file` that can be read. Raises `DataError` if there is none or it cannot be read."""
    try:
        return FORMATS[format].columns(file)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(file.name, error) from error


def read(
    format: TableName,
    file: TableFile,
    columns: Sequence[str],
    lists: Collection[str] | None = None,
    piece: Piece = WHOLE,
    whole_rows: bool = False,
) -> Iterator[RowBatch | BadRow]:
    """Yield `columns` of the rows of `file`, and the rows that cannot be read. Raises `DataError` if the file cannot.

    lists: the columns that may hold several values a row, by default all. whole_rows: after `columns` come the others
    that can be read, where a cell that cannot be is missing.
    """
    try:
        present = columns if not file.may_lack else _present(format, file, columns)
        for item in FORMATS[format].read(file, present, lists, piece, whole_rows):
            yield item if len(present) == len(columns) or isinstance(item, BadRow) else _with_absent(item, columns)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(file.name, error) from error


def _present(format: TableName, file: TableFile, columns: Sequence[str]) -> Sequence[str]:
    """Return the `columns` that `file` has, and those that it must have."""
    named = {*FORMATS[format].columns(file), *FORMATS[format].nested(file)}
    if FORMATS[format].is_sparse or not named & {*columns}:
        return columns
    return [name for name in columns if name in named or name not in file.may_lack]


def _with_absent(batch: RowBatch, columns: Sequence[str]) -> RowBatch:
    """Return the rows with `columns` first; those that the file lacks are missing."""
    names = batch.columns.schema.names
    return batch.select([*columns, *(name for name in names if name not in columns)])
