"""Reads rows from tables, and turns them into what the serving signature takes, as preprocess did for the training."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.errors import DataError, did_you_mean, listed
from trainyard.quality.tables import cells
from trainyard.readers import formats
from trainyard.readers.parquet_rows import require_names
from trainyard.readers.rows import MOST_ROWS, BadRow
from trainyard.spec.columns import input_name
from trainyard.steps.predict.pushed_model import PushedModel, RawColumn, RawInput
from trainyard.steps.predict.source import Array, InputBatch, InputFiles, Items
from trainyard.storage.listing import SourceFile
from trainyard.values.columns import as_texts, canonical_lists, canonical_texts, days, is_list, joined, plain_numbers
from trainyard.values.patterns import MAX_FLOAT32
from trainyard.values.zones import time_zone

_SHOWN, _NAMES = 400, 10  # characters, and columns, in a message; chosen
Mask = npt.NDArray[np.bool_]


def read_rows(source: InputFiles, model: PushedModel, key: str | None, extras: Sequence[str] = ()) -> Items:
    """Yield the rows of all files in order. A file that cannot be read on is set aside from there.

    extras: the columns that are read beside the inputs and the key.

    Raises `DataError` if the first file lacks a column.
    """
    for number, file in enumerate(source.files):
        if file.reason:
            yield BadRow(file.name, None, file.reason, file.detail)
            continue
        try:
            yield from _rows(source, file, model, key, extras)
        except _MissingColumnError as error:
            if number == 0:
                raise DataError(str(error)) from error
            yield BadRow(file.name, None, "missing_column", str(error))
        except DataError as error:
            yield BadRow(file.name, None, "unreadable_file", str(error))


class _MissingColumnError(Exception):
    """A file lacks a column that the model takes."""


def _rows(source: InputFiles, file: SourceFile, model: PushedModel, key: str | None, extras: Sequence[str]) -> Items:
    assert source.kind != "images"  # noqa: S101 - asked of rows alone
    numbers = {feature.name for feature in model.inputs if feature.dtype == "float32"} - {key, *extras}
    inputs = {feature.name for feature in model.inputs}
    may_lack = inputs - {key, *extras} if model.may_lack else set[str]()
    table = source.table(file, model.dialect, numbers, may_lack)
    names = formats.columns(source.kind, table)
    required = model.required(key, extras)
    if missing := set(required) - set(names):  # or of a type that is not read, which the reader says
        names += missing & formats.FORMATS[source.kind].nested(table).keys()
    if set(names) & inputs:
        names += sorted(may_lack - {*names})
    if not (formats.FORMATS[source.kind].is_sparse and set(names) & set(required)):
        try:
            require_columns(names, model, key, file.name, extras)
        except DataError as error:
            raise _MissingColumnError(str(error)) from error
    lists = {feature.name for feature in model.inputs if feature.column and feature.column.separator} | {*extras}
    for item in formats.read(source.kind, table, required, lists):
        if isinstance(item, BadRow):
            yield item
        else:
            yield from table_items(item.columns, item.names, model, key, extras)


def require_columns(
    names: list[str], model: PushedModel, key: str | None, place: str, extras: Sequence[str] = ()
) -> None:
    """Raise `DataError` that names every required column which is not in `names`, or is there twice.

    Required are those that the model takes, `key` and `extras`.
    """
    require_names(names, place)
    required = model.required(key, extras)
    missing = [name for name in required if name not in names]
    if missing:
        raise DataError(
            f"{place}: no column {listed(list(map(repr, missing)), 5)}.{did_you_mean(missing[0], names[:1000])} "
            f"It has: {listed(names, _NAMES)}. The model takes: {listed(required, _NAMES)}. Rename or add the columns."
            + (" The label's column may be named by --label." if set(missing) & set(extras) else "")
        )


def table_items(
    columns: pa.RecordBatch, names: pa.Array, model: PushedModel, key: str | None, extras: Sequence[str] = ()
) -> Items:
    """Yield the rows of `columns` in batches of at most `MOST_ROWS`, and those that do not fit; `names` (n,) name them.

    Columns that are not there count as missing values. extras: the columns that go with the inputs as they are.
    """
    rows = columns.num_rows
    beside = {name: _column(columns, name, rows) for name in extras}
    arrays = {feature.name: _column(columns, feature.name, rows) for feature in model.inputs}
    place = str(names[0].as_py()) if len(names) else "predict"
    zone = time_zone(model.time_zone)
    typed = {feature.name: _typed(arrays[feature.name], feature, zone, place) for feature in model.inputs}
    bad = np.logical_or.reduce([wrong for _, wrong in typed.values()])
    for row in np.flatnonzero(bad).tolist():
        yield _rejected(names[row].as_py(), row, arrays, typed, model)
    keys = names if key is None else canonical_texts(_column(columns, key, rows))
    good = ~bad
    if bad.any():
        keys = keys.filter(pa.array(good))
        beside = {name: column.filter(pa.array(good)) for name, column in beside.items()}
    inputs = {input_name(name): values if not bad.any() else values[good] for name, (values, _) in typed.items()}
    for start in range(0, len(keys), MOST_ROWS):
        end = start + MOST_ROWS
        yield InputBatch(
            keys.slice(start, MOST_ROWS),
            {name: values[start:end] for name, values in inputs.items()},
            {name: column.slice(start, MOST_ROWS) for name, column in beside.items()},
        )


def _column(columns: pa.RecordBatch, name: str, rows: int) -> pa.Array:
    index = columns.schema.get_field_index(name)
    if index < 0:
        return pa.array([None] * rows, pa.string())
    column = columns.column(index)
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _typed(column: pa.Array, feature: RawInput, zone: datetime.tzinfo, place: str) -> tuple[Array, Mask]:
    """Return the values (n,) of a column, and which of them are none; `place` the rows begin."""
    if is_list(column.type):
        if feature.column is None or feature.column.separator is None:
            raise DataError(
                f"{place}: '{feature.name}' is {column.type}, and the model takes one value a row. Choose one."
            )
        try:
            column = joined(column, feature.column.separator)
        except ValueError as error:
            raise DataError(f"{place}: '{feature.name}': {error}.") from error
    if feature.column is not None:
        column = cells.without_declared(column, feature.column.type, feature.column.missing, zone)
    if feature.dtype == "string":
        texts = _texts(column, feature.column, zone)
        wrong = np.asarray(texts.is_null().to_numpy(zero_copy_only=False), np.bool_)
        return np.asarray(texts.to_numpy(zero_copy_only=False), object), wrong
    numbers, wrong = _numbers(column)
    if feature.dtype == "float32":
        return np.where(wrong, np.nan, numbers).astype(np.float32), wrong
    wrong = wrong | ~(np.floor(numbers) == numbers)  # NaN too: the signature knows no missing integer
    return np.where(wrong, 0, numbers).astype(np.int64), wrong


def _numbers(column: pa.Array) -> tuple[npt.NDArray[np.float64], Mask]:
    if (plain := plain_numbers(column)) is not None:
        return plain.to_numpy() + 0.0, np.zeros(len(plain), np.bool_)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        numbers = np.asarray(pc.fill_null(pc.cast(column, pa.float64(), safe=False), np.nan)) + 0.0  # of -0 too
        return numbers, np.abs(numbers) > MAX_FLOAT32
    return cells.numbers(column)


def _texts(column: pa.Array, spec: RawColumn | None, zone: datetime.tzinfo) -> pa.Array:
    """Return the texts of a column as the recipe reads it, null where a day is expected and none is found."""
    if spec is not None and spec.type == "date":
        return days(column, hour=spec.hour, zone=zone)
    if spec is not None and spec.separator is not None:
        return canonical_lists(column, spec.separator)
    return canonical_texts(column)


def _rejected(
    name: str, row: int, arrays: dict[str, pa.Array], typed: dict[str, tuple[Any, Mask]], model: PushedModel
) -> BadRow:
    expected = {"string": "a day YYYY-MM-DD", "float32": "a number", "int64": "a whole number"}
    details = (
        f"'{feature.name}': {expected[feature.dtype]} is expected, "
        f"{as_texts(arrays[feature.name].slice(row, 1))[0].as_py()[:40]!r} was found"
        for feature in model.inputs
        if typed[feature.name][1][row]
    )
    return BadRow(name, None, "mistyped_value", "; ".join(details)[:_SHOWN])
