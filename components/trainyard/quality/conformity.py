"""Compares data with their schema, a batch at a time; what batches say can be added up in any order."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.artifacts.preprocess import Anomaly
from trainyard.errors import listed
from trainyard.quality.tables.cells import Cells, Mask, as_mask, cells
from trainyard.spec.data_schema import (
    CategoryColumn,
    Column,
    DateColumn,
    ImageSchema,
    NumberColumn,
    TableSchema,
    TextColumn,
)
from trainyard.values.patterns import MISSING
from trainyard.values.text import UTC, canonical

SUCH_AS = 5
"""Rows that an anomaly names. Chosen."""

_LONGEST = 40  # characters of a cell in a message; chosen
_EPOCH = datetime.date(1970, 1, 1)

Position = tuple[str, int, str]


@dataclass
class Misfit:
    """The number of rows with one kind of fault, and the first of them by name: (file, row, content)."""

    rows: int = 0
    such_as: list[Position] = field(default_factory=list)

    def merge(self, other: Misfit) -> None:
        """Count what `other` counted."""
        self.rows += other.rows
        self.such_as = heapq.nsmallest(SUCH_AS, {*self.such_as, *other.such_as})


@dataclass
class Conformity:
    """The faults of some rows: misfits by column and reason, missing cells by column, absent columns.

    Mergeable: preprocess keeps one a batch and adds them up.
    """

    rows: int = 0
    misfits: dict[str, dict[str, Misfit]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    extra_columns: dict[str, str] = field(default_factory=dict)

    def merge(self, other: Conformity) -> None:
        """Count what `other` counted."""
        self.rows += other.rows
        for name, misfits in other.misfits.items():
            for reason, misfit in misfits.items():
                self.note(name, reason, misfit)
        for name, count in other.missing.items():
            self.missing[name] = self.missing.get(name, 0) + count
        for mine, theirs in ((self.absent, other.absent), (self.extra_columns, other.extra_columns)):
            for name, file in theirs.items():
                mine[name] = min(mine.get(name, file), file)

    def note(self, name: str, reason: str, misfit: Misfit) -> None:
        """Count rows whose column `name` does not fit by `reason`."""
        self.misfits.setdefault(name, {}).setdefault(reason, Misfit()).merge(misfit)


@dataclass(frozen=True)
class Rows:
    """Some rows of one file: Arrow arrays of texts or of numbers (NaN is missing) by column, and each row's name.

    Of images the columns are `label`, `measure/height` and `measure/width`. `name` gives such as `a.csv:17`. zone: in
    which the days of times with an offset are counted.
    """

    count: int
    columns: Mapping[str, Any]
    name: Callable[[int], str]
    zone: datetime.tzinfo = UTC


def check_rows(schema: TableSchema | ImageSchema, rows: Rows) -> Conformity:
    """Compare `rows` with `schema`."""
    if isinstance(schema, ImageSchema):
        return _check_images(schema, rows)
    file = _position(rows.name(0))[0] if rows.count else ""
    result = Conformity(rows=rows.count)
    result.absent = {name: file for name in schema.columns if name not in rows.columns}
    if schema.other_columns == "refused":
        result.extra_columns = {name: file for name in rows.columns if name not in schema.columns}
    for name, column in schema.columns.items():
        if name in rows.columns:
            _check_column(result, name, column, rows)
    return result


def anomalies(schema: TableSchema | ImageSchema, conformity: Conformity) -> list[Anomaly]:
    """Return in which ways all rows together do not fit, by the order of the schema's columns, or []."""
    listed = [
        Anomaly(column=name, reason="absent", expected="a column", received=f"none in {file}")
        for name, file in conformity.absent.items()
    ]
    listed += [
        Anomaly(
            column=name,
            reason="unknown_column",
            expected="no column besides those of the schema",
            received=f"one in {file}",
        )
        for name, file in conformity.extra_columns.items()
    ]
    order = list(schema.columns) if isinstance(schema, TableSchema) else ["class", "size"]
    listed += [
        Anomaly(
            column=name,
            reason=reason,
            expected=_expected(schema, name, reason),
            received=misfit.such_as[0][2],
            rows=misfit.rows,
            such_as=[f"{_name(cell)} {cell[2]}" for cell in misfit.such_as],
        )
        for name in sorted(conformity.misfits, key=order.index)
        for reason, misfit in sorted(conformity.misfits[name].items())
    ]
    if isinstance(schema, TableSchema):
        listed += _missing(schema, conformity)
    return listed


def _check_column(result: Conformity, name: str, column: Column, rows: Rows) -> None:
    parsed = cells(rows.columns[name], rows.zone)
    missing = _is_in(pc.utf8_lower(parsed.texts), MISSING if isinstance(column, NumberColumn) else [""])
    result.missing[name] = int(missing.sum())
    for reason, mask in _wrong(column, parsed).items():
        _note(result, (name, reason), mask & ~missing, lambda index: parsed.texts[index].as_py(), rows)


def _wrong(column: Column, parsed: Cells) -> dict[str, Mask]:
    """Return masks of the cells that do not fit, by reason; missing cells may be included."""
    if isinstance(column, CategoryColumn):
        return {"values": ~_is_in(parsed.texts, [canonical(value) for value in column.values])}
    if isinstance(column, TextColumn):
        longest = column.max_length
        return {} if longest is None else {"max_length": np.asarray(pc.utf8_length(parsed.texts)) > longest}
    values = parsed.days if isinstance(column, DateColumn) else parsed.numbers
    wrong = {"type": np.isnan(values)}
    if column.type == "integer":
        wrong["type"] = wrong["type"] | (values != np.floor(values))
    if column.min is not None:
        wrong["min"] = values < _number(column.min)
    if column.max is not None:
        wrong["max"] = values > _number(column.max)
    return wrong


def _check_images(schema: ImageSchema, rows: Rows) -> Conformity:
    result = Conformity(rows=rows.count)
    labels = rows.columns["label"]
    classes = [canonical(name) for name in schema.classes]
    _note(result, ("class", "values"), ~_is_in(labels, classes), lambda index: labels[index].as_py(), rows)
    heights, widths = (np.asarray(rows.columns[f"measure/{side}"]) for side in ("height", "width"))

    def size(index: int) -> str:
        return f"{heights[index]:.0f} x {widths[index]:.0f}"

    _note(result, ("size", "min"), np.minimum(heights, widths) < schema.min_side, size, rows)
    _note(result, ("size", "max"), np.maximum(heights, widths) > schema.max_side, size, rows)
    return result


def _note(result: Conformity, key: tuple[str, str], wrong: Mask, text: Callable[[int], str], rows: Rows) -> None:
    indices = np.flatnonzero(wrong).tolist()
    if indices:
        first = heapq.nsmallest(SUCH_AS, ((_position(rows.name(index)), index) for index in indices))
        examples = [(*row, _shown(text(index))) for row, index in first]
        result.note(*key, Misfit(len(indices), examples))


def _is_in(texts: Any, values: Sequence[str]) -> Mask:
    return as_mask(pc.is_in(texts, value_set=pa.array(values, pa.string())))


def _position(source: str) -> tuple[str, int]:
    file, _, row = source.rpartition(":")
    return (file, int(row)) if file and row.isascii() and row.isdecimal() else (source, 0)


def _name(cell: Position) -> str:
    return f"{cell[0]}:{cell[1]}" if cell[1] else cell[0]


def _shown(text: str) -> str:
    return repr(text[:_LONGEST]) + ("…" if len(text) > _LONGEST else "")


def _missing(schema: TableSchema, conformity: Conformity) -> list[Anomaly]:
    rows = max(1, conformity.rows)
    return [
        Anomaly(
            column=name,
            reason="missing",
            expected=f"a value in all rows but {column.max_missing:.2%}",
            received=f"{conformity.missing[name] / rows:.2%} missing",
            rows=conformity.missing[name],
        )
        for name, column in schema.columns.items()
        if conformity.missing.get(name, 0) > column.max_missing * conformity.rows
    ]


def _expected(schema: TableSchema | ImageSchema, name: str, reason: str) -> str:
    if isinstance(schema, ImageSchema):
        if name == "class":
            return f"one of {listed(list(map(repr, schema.classes)), SUCH_AS)}"
        return f"at least {schema.min_side} pixels" if reason == "min" else f"at most {schema.max_side} pixels"
    column = schema.columns[name]
    if reason in ("min", "max") and isinstance(column, NumberColumn | DateColumn):
        bound = column.min if reason == "min" else column.max
        return f"{'at least' if reason == 'min' else 'at most'} {bound if isinstance(bound, str) else f'{bound:g}'}"
    if isinstance(column, CategoryColumn):
        return f"one of {listed(list(map(repr, column.values)), SUCH_AS)}"
    if isinstance(column, TextColumn):
        return f"a text of at most {column.max_length} characters"
    return {"date": "a day YYYY-MM-DD", "integer": "a whole number"}.get(column.type, "a number")


def _number(bound: float | str) -> float:
    return (datetime.date.fromisoformat(bound) - _EPOCH).days if isinstance(bound, str) else bound
