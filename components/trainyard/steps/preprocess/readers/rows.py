"""Judges one row of named texts or values: turns it into typed raw features."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping

from trainyard.spec.recipe import Category, Data, Date, Numeric
from trainyard.steps.preprocess.readers.records import BadRecord, Record, Value, content_digest

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})([T ].*)?")
_MISSING_NUMBERS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
MAX_FLOAT32 = 3.4028234e38


def check_row(row: Mapping[str, str], source: str, data: Data, *, regression: bool) -> Record:
    """Return the row's features and label, typed as the recipe says. Raises `BadRecord`."""
    raw: dict[str, Value] = {
        name: typed_number(row[name], name) if isinstance(feature, Numeric) else typed_text(row[name], name, feature)
        for name, feature in data.features.items()
    }
    label = row[data.label].strip()
    check_label(label, data.label, regression=regression)
    return Record(source, label, raw, content_digest(raw), {})


def check_label(label: str, name: str, *, regression: bool) -> None:
    """Raise `BadRecord` if the text `label` is no class name or, for regression, no number."""
    if not label:
        raise BadRecord("missing_label", f"'{name}' is empty")
    if regression and math.isnan(_number(label, name)):
        raise BadRecord("missing_label", f"'{name}' is {label!r}")
    if "\n" in label or "\r" in label:
        raise BadRecord("unknown_label", f"'{name}' holds a line break: {label[:40]!r}")


def typed_text(text: str, name: str, feature: Category | Date) -> str:
    """Return the category or the day that the cell `text` holds, empty if it is missing. Raises `BadRecord`."""
    return _date(text.strip(), name) if isinstance(feature, Date) else text.strip()


def typed_number(text: str, name: str) -> float:
    """Return the number that the cell `text` holds, NaN if it is missing. Raises `BadRecord`."""
    return _number(text.strip(), name)


def _number(text: str, name: str) -> float:
    if text.lower() in _MISSING_NUMBERS:
        return math.nan
    if not _NUMBER.fullmatch(text):
        raise BadRecord("mistyped_value", f"'{name}': a number is expected, {text[:40]!r} was found")
    number = float(text)
    if abs(number) > MAX_FLOAT32:
        raise BadRecord("mistyped_value", f"'{name}': {text[:40]} does not fit into float32")
    return number


def _date(text: str, name: str) -> str:
    if not text:
        return ""
    wrong = BadRecord("mistyped_value", f"'{name}': a day YYYY-MM-DD is expected, {text[:40]!r} was found")
    match = _DATE.fullmatch(text)
    if match is None:
        raise wrong
    try:
        return datetime.date.fromisoformat(match[1]).isoformat()
    except ValueError as error:
        raise wrong from error
