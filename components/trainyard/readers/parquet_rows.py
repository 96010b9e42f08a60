"""Reads Parquet files in batches of columns of Arrow, as they are stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from trainyard.errors import DataError, did_you_mean
from trainyard.readers.rows import MOST_ROWS, PIECE_BYTES, WHOLE, BadRow, Piece, RowBatch
from trainyard.readers.table_file import ABSENT_HINT, TableFile
from trainyard.spec.columns import column_names
from trainyard.storage.listing import is_gzip, seekable_file
from trainyard.uris import is_bucket
from trainyard.values.columns import impossible_times, is_list, is_text
from trainyard.values.text import column_name

_PACKED = 8  # chosen: a column is seldom packed closer
_PARTITION = re.compile(r"([^/=]+)=([^/]*)/")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_UNREADABLE = (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError)
"""The errors of pyarrow for a damaged file."""


def parquet_columns(file: TableFile) -> list[str]:
    """Return the columns of `file` that can be read, those that its folders name last. Raises as `read_parquet`."""
    with opened_parquet(file) as (_, schema):
        plain = [field.name for field in schema if is_readable(field.type)]
        return list(dict.fromkeys([*plain, *_partitions(file.name)]))


def nested_columns(file: TableFile) -> dict[str, Any]:
    """Return the types of the columns that do not hold one value a row. Raises as `read_parquet`."""
    with opened_parquet(file) as (_, schema):
        kinds = {field.name: field.type for field in schema}
        return {column: kind for column, kind in kinds.items() if is_list(kind) or not is_readable(kind)}


def count_parquet(file: TableFile) -> int | None:
    """Return the number of rows of a file, None if it cannot be read."""
    try:
        with seekable_file(file.path) as local:
            return int(parquet.read_metadata(local).num_rows)
    except _UNREADABLE:
        return None


def parquet_pieces(file: TableFile) -> list[Piece]:
    """Return the pieces of `file`: row groups of about 64 MiB, unpacked."""
    if is_bucket(file.path) and file.size < PIECE_BYTES // _PACKED:  # not worth two requests
        return [WHOLE]
    try:
        with seekable_file(file.path) as local:
            about = parquet.read_metadata(local)
    except (OSError, pa.ArrowInvalid):  # whoever reads it says why
        return [WHOLE]
    starts, unpacked, row = [(0, 1)], 0, 1
    for group in range(about.num_row_groups):
        if unpacked >= PIECE_BYTES:
            starts.append((group, row))
            unpacked = 0
        unpacked += about.row_group(group).total_byte_size
        row += about.row_group(group).num_rows
    ends = [*(start for start, _ in starts[1:]), None]
    return [Piece(start, end, row) for (start, row), end in zip(starts, ends, strict=True)]


def read_parquet(
    file: TableFile,
    columns: Sequence[str],
    lists: Collection[str] | None = None,
    piece: Piece = WHOLE,
    whole_rows: bool = False,
) -> Iterator[RowBatch | BadRow]:
    """Yield `columns`, with `whole_rows` all that can be read, of the rows in batches; the first row is row 1.

    A folder `day=2024-03-01` in its name is a column `day`. lists: the columns that may hold lists, by default all.
    Raises `DataError` that names the row group and the column which cannot be read, or the column that is missing or
    not of one value a row.
    """
    name, parts, row = file.name, _partitions(file.name), piece.row
    with opened_parquet(file) as (opened, schema):
        stored = dict(zip(schema.names, opened.schema_arrow.names, strict=True))
        _check(schema, columns, parts, name, lists)
        extra = [field.name for field in schema if is_readable(field.type)] if whole_rows else []
        extra = [name for name in dict.fromkeys([*extra, *(parts if whole_rows else ())]) if name not in columns]
        named = [*columns, *extra]
        present = [stored[column] for column in named if column in stored]
        for group in range(piece.start, opened.num_row_groups if piece.end is None else piece.end):
            try:
                for batch in opened.iter_batches(MOST_ROWS, row_groups=[group], columns=present):
                    batch = batch.select(present).rename_columns([name for name in named if name in stored])
                    batch = _text_or_missing(batch, extra)
                    _require_text(batch, f"{name}: row group {group}")
                    numbers = np.arange(row, row + batch.num_rows)
                    row += batch.num_rows
                    rows, bad = RowBatch(name, _with_parts(batch, named, parts), numbers).without_impossible_times(
                        columns
                    )
                    if len(rows.rows):
                        yield rows
                    yield from bad
            except _UNREADABLE as error:
                raise _broken(f"{name}: row group {group}{_column(opened, group, present)}", error) from error


def require_names(names: Sequence[str], place: str) -> None:
    """Raise `DataError` if a column has the name of another one."""
    if repeated := [column for column, times in Counter(names).items() if times > 1]:
        raise DataError(
            f"{place}: names column '{repeated[0][:80]}' twice. Give each column a different name; white space around "
            "it does not count."
        )


@contextmanager
def opened_parquet(file: TableFile) -> Iterator[tuple[Any, pa.Schema]]:
    """Open a Parquet file, with its columns by their names here (see `column_names`).

    Raises `DataError` if it, or what the block reads of it, cannot be read.
    """
    with seekable_file(file.path) as local:
        try:
            # INT96, of Spark and Hive: nanoseconds would hold the years from 1677 to 2262 alone, and others as these.
            opened = parquet.ParquetFile(local, coerce_int96_timestamp_unit="us")
        except _UNREADABLE as error:
            if is_gzip(file.path):
                raise DataError(
                    f"{file.name}: is compressed with gzip as a whole, and Parquet is read where its parts lie. Store "
                    "it unpacked (in a bucket without Content-Encoding: gzip)."
                ) from error
            raise _broken(file.name, error) from error
        with opened:
            stored = opened.schema_arrow
            names = column_names(stored.names)
            require_names(names, file.name)
            try:
                yield opened, pa.schema(zip(names, stored.types, strict=True))
            except _UNREADABLE as error:
                raise _broken(file.name, error) from error


def _require_text(batch: Any, place: str) -> None:
    """Raise `DataError` if a column holds bytes that are no text: a writer may have put them there unseen."""
    for column, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values.validate(full=not pa.types.is_temporal(values.type))
        except pa.ArrowInvalid as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{place}: column '{column}': is not UTF-8 or broken ({reason}). Write the file again with texts in "
                "UTF-8, or leave the column out."
            ) from error


def _text_or_missing(batch: Any, columns: Sequence[str]) -> Any:
    """Return the batch without the values of `columns` that cannot be read: texts not in UTF-8, impossible times."""
    for column in columns:
        if column not in batch.schema.names:
            continue
        if wrong := impossible_times(batch[column]):
            rows = np.arange(batch.num_rows)
            values = batch[column].take(pa.array(rows, mask=np.isin(rows, [*wrong])))
            batch = batch.set_column(batch.schema.get_field_index(column), column, values)
        if is_text(batch[column].type):
            try:
                batch[column].validate(full=True)
            except pa.ArrowInvalid:
                texts = [_decoded(value) for value in batch[column].cast(pa.binary()).to_pylist()]
                batch = batch.set_column(batch.schema.get_field_index(column), column, pa.array(texts, pa.string()))
    return batch


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _with_parts(batch: Any, columns: Sequence[str], parts: dict[str, str]) -> pa.RecordBatch:
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = batch.num_rows
    return pa.RecordBatch.from_pydict(
        {
            column: present[column] if column in present else pa.array([parts.get(column, "")] * rows, pa.string())
            for column in columns
        }
    )


def _partitions(name: str) -> dict[str, str]:
    """Return the columns that the folders of the file `name` stand for, as Hive writes them."""
    partitions = {unquote(column): unquote(value) for column, value in _PARTITION.findall(name)}
    return {column_name(column): "" if value == _NO_VALUE else value for column, value in partitions.items()}


def _check(
    schema: Any, columns: Sequence[str], parts: dict[str, str], name: str, lists: Collection[str] | None
) -> None:
    known = [*schema.names, *parts]
    for column in columns:
        if column not in known:
            raise DataError(
                f"{name}: no column '{column}'.{did_you_mean(column, known[:1000])} The file has: "
                f"{', '.join(known)[:400]}. Correct the recipe's data{ABSENT_HINT}."
            )
        kind = schema.field(column).type if column in schema.names else pa.string()
        require_readable(column, kind, name, may_be_list=lists is None or column in lists)


def require_readable(column: str, kind: Any, place: str, *, may_be_list: bool = True) -> None:
    """Raise `DataError` if a column of the Arrow type `kind` cannot be read."""
    if not is_readable(kind) or (is_list(kind) and not may_be_list):
        raise DataError(
            f"{place}: column '{column}' is {kind}. Numbers, texts, days, times, true and false are read, one value "
            "a row, and lists of them where the feature is a text with a separator. Write it so, or leave the "
            "column out."
        )


def is_readable(kind: Any) -> bool:
    """Return True if a column of the Arrow type `kind` can be read: one plain value per row, or a list of them."""
    if pa.types.is_dictionary(kind) or is_list(kind):
        return is_readable(kind.value_type) and not is_list(kind.value_type)
    tests = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_date,
        pa.types.is_time,
        pa.types.is_timestamp,
        pa.types.is_null,
    )
    return any(test(kind) for test in tests)


def _column(opened: Any, group: int, columns: Sequence[str]) -> str:
    """Return the column of the row group that cannot be read."""
    for column in columns:
        try:
            opened.read_row_group(group, columns=[column])
        except _UNREADABLE:
            return f": column '{column}'"
    return ""


def _broken(place: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:200]
    return DataError(f"{place}: cannot be read as Parquet ({reason}). Write the file again, or leave it out.")
