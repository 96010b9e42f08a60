"""Judges one row of named texts or values: turns it into typed raw features."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping

import pyarrow as pa

from trainyard.contract.document import SPLITS, Split
from trainyard.quality.tables.formulas import Derived
from trainyard.spec.columns import Category, Date, Numeric, Text
from trainyard.spec.gates import Task
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.records import LABELS_APART, BadRecord, Record, Value, content_digest
from trainyard.values.patterns import FALSE, MAX_FLOAT32, MISSING, NUMBER, TRUE
from trainyard.values.text import canonical, canonical_list, day

_MISSING = frozenset(MISSING)
_NUMBER = re.compile(NUMBER)
_TRUTHS = {**dict.fromkeys(TRUE.split("|"), 1.0), **dict.fromkeys(FALSE.split("|"), 0.0)}
SPLIT_NAMES: dict[str, Split] = {
    **{name: name for name in SPLITS},
    **dict.fromkeys(("validation", "val", "dev"), "eval"),
}
"""Names of splits in a column, in any case."""


def check_row(row: Mapping[str, str], source: str, data: Data, task: Task) -> Record | None:
    """Return the row's features and label, typed as the recipe says; None if `data.where` leaves it out.

    Raises `BadRecord`.
    """
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
    return BadRecord("mistyped_value", f"'{name}': a number is expected, {text[:40]!r} was found")


def _day(text: str, name: str, zone: datetime.tzinfo, *, hour: bool = False) -> str:
    if (found := day(text, hour=hour, zone=zone)) is not None:
        return found
    expected = "a day YYYY-MM-DD" if day(text.strip()[:10]) is None else "a day and a time HH:MM"
    raise BadRecord("mistyped_value", f"'{name}': {expected} is expected, {text.strip()[:40]!r} was found")
