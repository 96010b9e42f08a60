"""Judges rows of texts or values and turns them into typed raw features: one alone, or many column by column.

Columns take a tenth of the time. What a kernel of Arrow takes for sure goes by the kernel. Every other text, and every
row that a text makes bad, goes by the functions for one row, so that there is one judge.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.document import SPLITS, Split
from trainyard.quality.tables.cells import number_texts
from trainyard.quality.tables.formulas import Derived, without_declared
from trainyard.quality.tables.hashes import row_hashes
from trainyard.readers.formats import read
from trainyard.readers.rows import MOST_ROWS, WHOLE, BadRow, Piece, RowBatch
from trainyard.readers.table_file import TableFile
from trainyard.spec.columns import Category, Date, Numeric, Text
from trainyard.spec.gates import Task
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.readers.files import table_format
from trainyard.steps.preprocess.readers.records import (
    LABELS_APART,
    ROW_HASH,
    WHOLE_HASH,
    BadRecord,
    Record,
    Unselected,
    Value,
    batch_schema,
    content_digest,
    digest_part,
)
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.values.missing import is_declared
from trainyard.values.patterns import COMMA_NUMBER, FALSE, MAX_FLOAT32, MISSING, NUMBER, TRUE
from trainyard.values.text import canonical, canonical_list, day

_MISSING = frozenset(MISSING)
_NUMBER = re.compile(NUMBER)
_TRUTHS = {**dict.fromkeys(TRUE.split("|"), 1.0), **dict.fromkeys(FALSE.split("|"), 0.0)}
SPLIT_NAMES: dict[str, Split] = {
    **{name: name for name in SPLITS},
    **dict.fromkeys(("validation", "val", "dev"), "eval"),
}
"""Names of splits in a column, in any case."""

Mask = npt.NDArray[np.bool_]
_PLAIN_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_NOTHING = pa.scalar(b"", pa.binary())
_REMEMBERED, _REMEMBERED_LENGTH = 1 << 17, 64  # texts of all columns, and characters of one; chosen: 40 MiB at most
_MOST_DIGITS = 32  # of a number as Python writes it: at most 24


def check_row(row: Mapping[str, str], source: str, data: Data, task: Task) -> Record | None:
    """Return the row's features and label, typed as the recipe says; None if `data.where` leaves it out.

    Raises `BadRecord`.
    """
    declared = data.declared.items()
    row = {**row} | {name: "" for name, (kind, texts) in declared if is_declared(row[name], kind, texts, data.zone)}
    if data.derive or data.where:
        derived = Derived(data, {name: pa.array([row[name]], pa.string()) for name in data.columns})
        if not derived.selected[0]:
            return None
        for name in derived.mistyped:
            raise not_a_number(row[name].strip(), name)
        row = {**row, **{name: texts[0].as_py() for name, texts in derived.texts.items()}}
    raw = {name: _typed(row[name], name, feature, data) for name, feature in data.inputs.items()}
    measured = {name: _typed(row[name], name, data.features[name], data) for name in data.derived_features}
    if data.weight:
        measured[data.weight] = weight(row[data.weight], data.weight)
    label = LABELS_APART.join(typed_label(row[name], name, data, task) for name in data.labels)
    by = data.split.column
    return Record(source, label, raw, content_digest(raw), measured, split_by(row[by], data) if by else "")


def _typed(text: str, name: str, feature: Numeric | Category | Date | Text, data: Data) -> Value:
    return typed_number(text, name) if isinstance(feature, Numeric) else typed_text(text, name, feature, data)


def split_by(text: str, data: Data) -> str:
    """Return the split key in a cell: a group, a day or the name of a split. Raises `BadRecord`."""
    split, name = data.split, data.split.column or ""
    text = _day(text, name, data.zone) if split.by == "time" else canonical(text)
    if not text:
        raise BadRecord("missing_split", f"'{name}' is empty, by which data.split goes")
    if split.by == "column" and text.lower() not in SPLIT_NAMES:
        raise BadRecord("unknown_split", f"'{name}' is {text[:40]!r}, none of {', '.join(SPLIT_NAMES)}")
    return text


def typed_label(text: str, name: str, data: Data, task: Task) -> str:
    """Return the class, the number or the classes (see `Record.label`) that the cell `text` of the column `name` holds.

    Raises `BadRecord`.
    """
    label = text.strip()
    if not label and task != "multi_label":
        raise BadRecord("missing_label", f"'{name}' is empty")
    if task == "regression" and math.isnan(_number(label, name)):
        raise BadRecord("missing_label", f"'{name}' is {label!r}")
    if "\n" in label or "\r" in label:
        raise BadRecord("unknown_label", f"'{name}' holds a line break: {label[:40]!r}")
    if task == "multi_label":
        classes = {canonical(part) for part in label.split(data.label_separator)}
        return LABELS_APART.join(sorted(classes - {""}))
    return canonical(repr(_number(label, name)) if task == "regression" else label)


def typed_text(text: str, name: str, feature: Category | Date | Text, data: Data) -> str:
    """Return the category, the prose, the day or the hour that the cell `text` holds, empty if it is missing.

    Raises `BadRecord`.
    """
    if isinstance(feature, Date):
        return _day(text, name, data.zone, hour=feature.hour)
    if isinstance(feature, Text) and feature.separator is not None:
        return canonical_list(text, feature.separator)
    return canonical(text)


def weight(text: str, name: str) -> float:
    """Return the weight that the cell `text` holds. Raises `BadRecord` if it is missing or negative."""
    number = typed_number(text, name)
    if not number >= 0:
        raise BadRecord("bad_weight", f"'{name}': a weight of at least 0 is expected, {text.strip()[:40]!r} was found")
    return number


def typed_number(text: str, name: str) -> float:
    """Return the number that the cell `text` holds, NaN if it is missing. Raises `BadRecord`."""
    return _number(text.strip(), name)


def _number(text: str, name: str) -> float:
    if text.lower() in _MISSING:
        return math.nan
    if (truth := _TRUTHS.get(text)) is not None:
        return truth
    if not _NUMBER.fullmatch(text):
        raise not_a_number(text, name)
    number = float(text)
    if abs(number) > MAX_FLOAT32:
        raise BadRecord("mistyped_value", f"'{name}': {text[:40]} does not fit into float32")
    return number


def not_a_number(text: str, name: str) -> BadRecord:
    """Return the error for the cell `text`, in which a number is expected."""
    hint = ". data.decimal: ',' reads it in CSV" if re.fullmatch(COMMA_NUMBER, text) else ""
    return BadRecord("mistyped_value", f"'{name}': a number is expected, {text[:40]!r} was found{hint}")


def _day(text: str, name: str, zone: datetime.tzinfo, *, hour: bool = False) -> str:
    if (found := day(text, hour=hour, zone=zone)) is not None:
        return found
    expected = "a day YYYY-MM-DD" if day(text.strip()[:10]) is None else "a day and a time HH:MM"
    raise BadRecord("mistyped_value", f"'{name}': {expected} is expected, {text.strip()[:40]!r} was found")


class ColumnValidator:
    """Validates batches of rows against the recipe's `data`; remembers the result for texts that it saw before."""

    def __init__(self, data: Data, task: Task) -> None:
        self._data, self._task = data, task
        kinds = data.features | data.inputs
        share = _REMEMBERED // (len(kinds) + len(data.labels) + 1)
        self._labels = {
            name: _Texts(name, partial(typed_label, name=name, data=data, task=task), share) for name in data.labels
        }
        self._split_by = _Texts(data.split.column or "", partial(split_by, data=data), share)
        self._texts = {
            name: _Texts(name, partial(typed_text, name=name, feature=feature, data=data), share)
            for name, feature in kinds.items()
            if not isinstance(feature, Numeric)
        }

    def check(self, rows: RowBatch) -> tuple[pa.RecordBatch, list[BadRow], Unselected]:
        """Return the good rows as a batch, the bad ones, both in order, and how many others there are.

        rows: the columns of the recipe, as texts.
        """
        read = dict(zip(rows.columns.schema.names, rows.columns.columns, strict=True))
        texts = without_declared(read, self._data.declared, self._data.zone)
        sources = rows.names
        derived = Derived(self._data, texts)
        every = {**texts, **derived.texts}
        columns = {name: self._column(name, every[name]) for name in self._data.inputs}
        computed = [self._column(name, every[name]) for name in self._data.derived_features]
        labels = [label.column(every[name]) for name, label in self._labels.items()]
        split = [self._split_by.column(every[by])] if (by := self._data.split.column) else []
        weight = [_weights(every[by], by)] if (by := self._data.weight) else []
        judged = [*labels, *columns.values(), *computed, *weight, *split]
        bad = np.logical_or.reduce([*(column.bad for column in judged), *derived.mistyped.values()]) & derived.selected
        bad_rows = [
            self._why({name: column[index].as_py() for name, column in texts.items()}, rows, index)
            for index in np.flatnonzero(bad).tolist()
        ]
        content = _digests([part for _, column in sorted(columns.items()) for part in column.digest_parts], len(bad))
        values = [column.values for column in (*columns.values(), *computed, *weight, *split)]
        label = pc.binary_join_element_wise(*(arrays.values for arrays in labels), LABELS_APART)
        batch = pa.RecordBatch.from_arrays([sources, label, content, *values], schema=batch_schema(self._data))
        if rows.hashes is not None:
            for name, hashes in zip((ROW_HASH, WHOLE_HASH), rows.hashes.T, strict=True):
                batch = batch.append_column(name, pa.array(hashes))
        good = derived.selected & ~bad
        unselected = Unselected(int(np.count_nonzero(~derived.selected)))
        return batch if good.all() else batch.filter(pa.array(good)), bad_rows, unselected

    def _column(self, name: str, texts: pa.Array) -> _Column:
        return self._texts[name].column(texts) if name in self._texts else _numbers(texts, name)

    def _why(self, row: Mapping[str, str], rows: RowBatch, index: int) -> BadRow:
        try:
            check_row(row, rows.name(index), self._data, self._task)
        except BadRecord as error:
            return BadRow(rows.file, int(rows.rows[index]), error.reason, error.detail)
        raise AssertionError(f"{rows.name(index)}: a column of it is bad, the row is not")


@dataclass(frozen=True)
class _Column:
    """values: typed; null or NaN in a bad row. digest_parts: what is joined in each row for its digest."""

    values: pa.Array
    digest_parts: list[pa.Array]
    bad: Mask


class _Texts:
    """Judges the texts of one column by `judge`, which returns the value or raises `BadRecord`.

    The verdicts on so many texts as `remembered` are kept.
    """

    def __init__(self, name: str, judge: Callable[[str], str], remembered: int) -> None:
        self._name, self._judge = name, judge
        self._remembered = lru_cache(remembered)(self._verdict)

    def column(self, texts: pa.Array) -> _Column:
        encoded = texts.dictionary_encode()
        verdicts = [
            self._remembered(text) if len(text) <= _REMEMBERED_LENGTH else self._verdict(text)
            for text in encoded.dictionary.to_pylist()
        ]
        values = pa.array([value for value, _ in verdicts], pa.string()).take(encoded.indices)
        parts = pa.array([part for _, part in verdicts], pa.binary()).take(encoded.indices)
        return _Column(values, [parts], values.is_null().to_numpy(zero_copy_only=False).astype(np.bool_))

    def _verdict(self, text: str) -> tuple[str | None, bytes]:
        """Return the value and what the digest takes of it; None and nothing if it is bad."""
        try:
            value = self._judge(text)
        except BadRecord:
            return None, b""
        return value, digest_part(self._name, value)


def _numbers(texts: pa.Array, name: str) -> _Column:
    try:
        numbers = pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        plain = pc.match_substring_regex(texts, _PLAIN_NUMBER)
        numbers = pc.cast(pc.if_else(plain, texts, pa.scalar(None, pa.string())), pa.float64())
    values = np.array(numbers.to_numpy(zero_copy_only=False))
    odd = ~(np.abs(values) <= MAX_FLOAT32)
    bad = np.zeros(len(texts), np.bool_)
    if odd.any():
        values[odd], bad[odd] = _odd_numbers(texts.filter(pa.array(odd)), name)
    return _Column(pa.array(values), _number_parts(values, name), bad)


def _weights(texts: pa.Array, name: str) -> _Column:
    column = _numbers(texts, name)
    negative_or_missing = ~(column.values.to_numpy(zero_copy_only=False) >= 0)
    return _Column(column.values, column.digest_parts, column.bad | negative_or_missing)


def _odd_numbers(texts: pa.Array, name: str) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return the numbers that are written in another way, are missing (NaN) or are none (bad)."""
    encoded = texts.dictionary_encode()
    values, bad = [], []
    for text in encoded.dictionary.to_pylist():
        try:
            values.append(typed_number(text, name))
            bad.append(False)
        except BadRecord:
            values.append(math.nan)
            bad.append(True)
    indices = encoded.indices.to_numpy()
    return np.array(values)[indices], np.array(bad)[indices]


def _number_parts(values: npt.NDArray[np.float64], name: str) -> list[pa.Array]:
    """Return `digest_part` of each number, in two parts to join."""
    texts = number_texts(values + 0.0)
    lengths = pa.array([f"{name}\0{length}\0".encode() for length in range(_MOST_DIGITS)], pa.binary())
    return [lengths.take(pc.binary_length(texts)), pc.cast(texts, pa.binary())]


def _digests(parts: list[pa.Array], rows: int) -> pa.Array:
    """Return the SHA-256 of the joined parts of each row: what `content_digest` gives."""
    joined = pc.binary_join_element_wise(*parts, _NOTHING)
    offsets = np.frombuffer(memoryview(joined.buffers()[1]), np.int32)[
        joined.offset : joined.offset + rows + 1
    ].tolist()
    content = joined.buffers()[2].to_pybytes()
    digests = b"".join([sha256(content[start:end]).digest() for start, end in pairwise(offsets)])
    return pa.Array.from_buffers(pa.binary(32), rows, [None, pa.py_buffer(digests)])


def judged_rows(
    file: TableFile, recipe: Recipe, piece: Piece = WHOLE, dataset: Dataset | None = None
) -> Iterator[pa.RecordBatch | BadRow | Unselected]:
    """Yield the good rows of `file` in batches, why one is bad, and how many `data.where` leaves out.

    With a TFDS `dataset`, integer labels get their names. Raises `DataError` if the file is wrong as a whole, or holds
    another number of records than the data set's own description says.
    """
    data, count = recipe.data, 0
    validator = ColumnValidator(data, recipe.task)
    for item in read(table_format(data), file, data.columns, data.separators, piece, data.hashes_rows):
        count += 1 if isinstance(item, BadRow) else len(item.rows)
        if isinstance(item, BadRow):
            yield item
            continue
        if data.hashes_rows:
            hashes = row_hashes(item.columns, data.judging)
            item = replace(item, columns=item.columns.select(data.columns), hashes=hashes)
        for rows in item.texts(data.separators).slices(MOST_ROWS):
            if dataset and dataset.label_names is not None and data.label in rows.columns.schema.names:
                rows, unnamed = _with_label_names(rows, data.label, dataset)
                yield from unnamed
            batch, bad, unselected = validator.check(rows)
            if batch.num_rows:
                yield batch
            yield from bad
            if unselected.rows:
                yield unselected
    if dataset:
        dataset.require_count(file.name, count)


def _with_label_names(rows: RowBatch, label: str, dataset: Dataset) -> tuple[RowBatch, list[BadRow]]:
    """Return the rows with the names of their labels, and those whose label has none."""
    encoded = rows.columns[label].dictionary_encode()
    names: list[str] = []
    unnamed: dict[int, BadRecord] = {}
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            names.append(dataset.label_name(text, label))
        except BadRecord as error:
            names.append("")
            unnamed[place] = error
    place = rows.columns.schema.get_field_index(label)
    named = rows.columns.set_column(place, label, pa.array(names, pa.string()).take(encoded.indices))
    places = encoded.indices.to_numpy()
    is_bad = np.isin(places, list(unnamed))
    bad = [
        BadRow(rows.file, int(rows.rows[index]), unnamed[places[index]].reason, unnamed[places[index]].detail)
        for index in np.flatnonzero(is_bad).tolist()
    ]
    return replace(rows, columns=named).filter(~is_bad), bad
