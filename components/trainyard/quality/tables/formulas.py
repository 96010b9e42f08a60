"""Computes with Arrow what a recipe derives from the columns of a table, and which rows it reads at all."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.errors import DataError, did_you_mean
from trainyard.quality.tables import cells
from trainyard.quality.tables.cells import Mask, as_mask, numbers
from trainyard.readers.rows import RowBatch
from trainyard.spec.formula import BIN, COMPARISONS, MAX_BINS, Cell, Constant, Node, parse
from trainyard.spec.recipe import Data, Declared
from trainyard.values.columns import as_texts, canonical_texts

_Rounding = Callable[[Any], Any]


class Derived:
    """The columns that `data` derives from a batch of texts, all of one length.

    texts: the derived columns as texts, empty where a value is missing. selected: the rows that `where` keeps.
    mistyped: by column, the rows in which a number is expected and another text was found.
    """

    def __init__(self, data: Data, texts: Mapping[str, Any]) -> None:
        self._texts = texts
        self.mistyped: dict[str, Mask] = {}
        self._numbers = functools.cache(self._read_numbers)
        rows = len(next(iter(texts.values())))
        self.selected: Mask = np.ones(rows, np.bool_) if data.where is None else self._true(parse(data.where))
        for wrong in self.mistyped.values():
            self.selected |= wrong  # whether it is to be read is not known, so it is bad
        self.texts = {
            name: _as_text(self._value(parse(text), _in_32_bits if name in data.features else _unchanged))
            for name, text in data.derive.items()
        }

    def _true(self, node: Node) -> Mask:
        return as_mask(self._value(node, _unchanged))

    def _value(self, node: Node, rounded: _Rounding) -> Any:
        """Return the value of a formula; `rounded` gives a number the digits with which it is compared."""
        if isinstance(node, Constant):
            return pa.scalar(node.value)
        if isinstance(node, Cell):
            return rounded(self._numbers(node.column)) if node.kind == "number" else self._read_texts(node.column)
        values = [self._value(argument, rounded) for argument in node.arguments]
        if node.kernel in COMPARISONS and node.arguments[0].kind == "number":
            values = [rounded(value) for value in values]
        return _bins(values[0], values[1], rounded) if node.kernel == BIN else pc.call_function(node.kernel, values)

    def _read_texts(self, name: str) -> Any:
        texts = canonical_texts(self._texts[name])
        return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)

    def _read_numbers(self, name: str) -> Any:
        found, wrong = numbers(self._texts[name])
        if wrong.any():
            self.mistyped[name] = wrong
        return pa.array(found, mask=np.isnan(found))


def without_declared(columns: Mapping[str, Any], declared: Declared, zone: datetime.tzinfo) -> dict[str, Any]:
    """Return the columns with no value where one is `declared` as missing; zone: in which days are compared."""
    found = {name: each for name, each in declared.items() if name in columns}
    return {**columns} | {
        name: cells.without_declared(columns[name], kind, texts, zone) for name, (kind, texts) in found.items()
    }


def without_declared_rows(batch: RowBatch, declared: Declared, zone: datetime.tzinfo) -> RowBatch:
    """Return the rows as `without_declared` has their columns."""
    if not declared:
        return batch
    columns = without_declared(
        dict(zip(batch.columns.schema.names, batch.columns.columns, strict=True)), declared, zone
    )
    return replace(batch, columns=pa.RecordBatch.from_pydict(columns))


def with_derived(batch: RowBatch, data: Data) -> RowBatch:
    """Return the rows of `batch` that `data` keeps, with what it derives as further columns.

    Values that `data` declares as missing are empty. Raises `DataError` if the formulas read a column that is not
    there.
    """
    batch = without_declared_rows(batch, data.declared, data.zone)
    if not (data.derive or data.where):
        return batch
    names = batch.columns.schema.names
    for name in data.columns:
        if name not in names:
            raise DataError(f"{batch.file}: no column '{name}'.{did_you_mean(name, names)} Correct the recipe's data.")
    derived = Derived(data, {name: batch.columns[name] for name in names})
    columns = {name: batch.columns[name] for name in names} | derived.texts
    remaining = pa.RecordBatch.from_pydict(columns).filter(pa.array(derived.selected))
    return RowBatch(batch.file, remaining, batch.rows[derived.selected])


def _bins(numbers: Any, width: Any, rounded: _Rounding) -> Any:
    bins = pc.call_function("floor", [rounded(pc.call_function("divide", [numbers, width]))])
    fits = pc.call_function("less", [pc.call_function("abs", [bins]), pa.scalar(MAX_BINS)])
    return pc.if_else(fits, bins, pa.scalar(None, bins.type)).cast(pa.int64()).cast(pa.string())


def _unchanged(numbers: Any) -> Any:
    return numbers


def _in_32_bits(numbers: Any) -> Any:
    return pc.cast(pc.cast(numbers, pa.float32(), safe=False), pa.float64())


def _as_text(values: Any) -> Any:
    """Return values as texts, empty where they are missing or no number: true and false, 3 and 0.25."""
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, values.type))
    return as_texts(values)
