"""Reads Parquet files as batches of columns of text, as those of CSV files come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

from trainyard.errors import DataError, did_you_mean
from trainyard.storage.source_stream import seekable_file
from trainyard.values.columns import as_texts, is_list, joined

_PARTITION = re.compile(r"([^/=]+)=([^/]*)/")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_UNREADABLE = (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError)


def column_names(path: str, name: str) -> list[str]:
    """Return the columns of the file at `path` that can be read, those that its folders name last.

    Raises as `read_parquet`.
    """
    try:
        with seekable_file(path) as local, parquet.ParquetFile(local) as opened:
            schema = opened.schema_arrow
            require_names(schema.names, name)
            plain = [column for column in schema.names if is_readable(schema.field(column).type)]
            return list(dict.fromkeys([*plain, *_partitions(name)]))
    except _UNREADABLE as error:
        raise _broken(name, error) from error


def nested_columns(path: str, name: str) -> dict[str, Any]:
    """Return the types of the columns that do not hold one value a row. Raises as `read_parquet`."""
    try:
        with seekable_file(path) as local, parquet.ParquetFile(local) as opened:
            require_names(opened.schema_arrow.names, name)
            kinds = {field.name: field.type for field in opened.schema_arrow}
            return {column: kind for column, kind in kinds.items() if is_list(kind) or not is_readable(kind)}
    except _UNREADABLE as error:
        raise _broken(name, error) from error


def require_names(names: Sequence[str], where: str) -> None:
    """Raise `DataError` if a column has the name of another one."""
    if repeated := [column for column, times in Counter(names).items() if times > 1]:
        raise DataError(f"{where}: names column '{repeated[0][:80]}' twice. Give each column a name of its own.")


def read_parquet(
    path: str,
    name: str,
    columns: Sequence[str],
    rows: int,
    first: int = 0,
    end: int | None = None,
    separators: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Yield `columns` of the file at `path` as record batches of texts of at most `rows` rows, empty where missing.

    `name` stands for the file in messages; a folder `day=2024-03-01` in it is a column `day`. first, end: of the row
    groups; all by default. separators: the columns that may hold lists, and what stands between their values; by
    default all may. Raises `DataError` that names the row group and the column which cannot be read, or the
    column that is missing or not of one value a row.
    """
    parts = _partitions(name)
    with seekable_file(path) as local:
        try:
            opened = parquet.ParquetFile(local)
        except _UNREADABLE as error:
            raise _broken(name, error) from error
        with opened:
            schema = opened.schema_arrow
            require_names(schema.names, name)
            _check(schema, columns, parts, name, separators)
            present = [column for column in columns if column in schema.names]
            for group in range(first, opened.num_row_groups if end is None else end):
                try:
                    for batch in opened.iter_batches(rows, row_groups=[group], columns=present):
                        _require_text(batch, f"{name}: row group {group}")
                        yield _texts(batch, columns, parts, separators or {})
                except _UNREADABLE as error:
                    raise _broken(f"{name}: row group {group}{_column(opened, group, present)}", error) from error
                except ValueError as error:
                    raise DataError(f"{name}: row group {group}: {error}.") from error


def _require_text(batch: Any, where: str) -> None:
    """Raise `DataError` if a column holds bytes that are no text: a writer may have put them there unseen."""
    for column, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{where}: column '{column}': is not UTF-8 or broken ({reason}). Write the file again with texts in "
                "UTF-8, or leave the column out."
            ) from error


def _texts(batch: Any, columns: Sequence[str], parts: dict[str, str], separators: Mapping[str, str]) -> Any:
    present = {
        column: joined(values, separators[column])
        if column in separators and is_list(values.type)
        else as_texts(values)
        for column, values in zip(batch.schema.names, batch.columns, strict=True)
    }
    rows = batch.num_rows
    return pa.RecordBatch.from_pydict(
        {column: present.get(column, pa.array([parts.get(column, "")] * rows, pa.string())) for column in columns}
    )


def _partitions(name: str) -> dict[str, str]:
    """Return the columns that the folders of the file `name` stand for, as Hive writes them."""
    partitions = {unquote(column): unquote(value) for column, value in _PARTITION.findall(name)}
    return {column: "" if value == _NO_VALUE else value for column, value in partitions.items()}


def _check(
    schema: Any, columns: Sequence[str], parts: dict[str, str], name: str, separators: Mapping[str, str] | None
) -> None:
    known = [*schema.names, *parts]
    for column in columns:
        if column not in known:
            raise DataError(
                f"{name}: no column '{column}'.{did_you_mean(column, known[:1000])} The file has: "
                f"{', '.join(known)[:400]}. Correct the recipe's data."
            )
        kind = schema.field(column).type if column in schema.names else pa.string()
        if not is_readable(kind) or (is_list(kind) and separators is not None and column not in separators):
            raise DataError(
                f"{name}: column '{column}' is {kind}. Numbers, texts, days, times, true and false are read, one value "
                "a row, and lists of them where the feature is a text with a separator. Write it so, or leave the "
                "column out."
            )


def is_readable(kind: Any) -> bool:
    """Return whether a column of Arrow's type `kind` is read: one plain value a row, or a list of such."""
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
    """Return which column of the row group cannot be read."""
    for column in columns:
        try:
            opened.read_row_group(group, columns=[column])
        except _UNREADABLE:
            return f": column '{column}'"
    return ""


def _broken(where: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:200]
    return DataError(f"{where}: cannot be read as Parquet ({reason}). Write the file again, or leave it out.")
