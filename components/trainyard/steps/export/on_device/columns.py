"""The columns of a row as the model's features, by the rules of docs/reference/outputs.md."""

from __future__ import annotations

import bisect
import datetime
import json
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.steps.export.on_device.files import Files
from trainyard.steps.export.on_device.fingerprint import fingerprint64
from trainyard.steps.export.on_device.words import plain_words
from trainyard.values.missing import is_declared
from trainyard.values.text import canonical, canonical_list, column_name, day, json_number, json_object, number
from trainyard.values.zones import time_zone

_EPOCH = datetime.date(1970, 1, 1)

_MOST_BINS = 2.0**53


class Preprocessing(Files):
    """Makes features of rows, whose values are numbers, texts, lists, or None where one is missing, by column."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._raw, self._computed = self._content["raw_features"], self._content["computed_features"]
        self._zone = time_zone(self._content["time_zone"])
        vocabularies = {name: folder / "vocabularies" / name for name in self._content["vocabularies"]}
        self._ids = {
            name: {line: number for number, line in enumerate(path.read_bytes().split(b"\n")[:-1])}
            for name, path in vocabularies.items()
        }

    def read(self, path: str) -> list[dict[str, Any]]:
        """Return the rows in a JSON file: one object, or a list of them."""
        text = Path(path).read_text(encoding="utf-8-sig")
        content = json.loads(text, parse_float=json_number, object_pairs_hook=json_object)
        rows = content if isinstance(content, list) else [content]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a row is expected to be a JSON object with its values by column")
        return rows

    def _values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        cells = {column_name(name): value for name, value in row.items()}
        if len(cells) < len(row):
            raise ValueError("a row names a column twice; white space around a name does not count")
        if absent := [raw["name"] for raw in self._raw if raw["name"] not in cells]:
            raise ValueError(f"a row has no column '{absent[0]}'; give each column, null where its value is missing")
        values = {raw["name"]: _as_read(cells[raw["name"]], raw, self._zone) for raw in self._raw}
        values.update({column["name"]: computed(column["tree"], values) for column in self._computed})
        features: dict[str, Any] = {}
        for column in [*self._raw, *self._computed]:
            if column.get("learned") is not None:
                features.update(self._features(column["name"], values[column["name"]], column))
        return features

    def _features(self, name: str, value: Any, column: Mapping[str, Any]) -> dict[str, Any]:
        settings, learned = column["column"], column["learned"]
        kind = settings["type"]
        if kind == "numeric":
            told = {learned["indicator"]: float(not math.isfinite(value))} if learned.get("indicator") else {}
            return {name: _scaled(float(value), learned), **told}
        if kind == "category":
            return {name: self._id(value or learned["missing"], learned)}
        if kind == "text":
            return {name: self._word_ids(value, settings, learned)}
        date = datetime.date.fromisoformat(value[:10]) if value else None
        features = {
            f"{name}_days": _scaled((date - _EPOCH).days if date else math.nan, learned),
            f"{name}_month": date.month if date else 0,
            f"{name}_weekday": date.isoweekday() if date else 0,
        }
        if settings["hour"]:
            features[f"{name}_hour"] = int(value[11:13]) + 1 if date else 0
        return features

    def _word_ids(self, text: str, settings: Mapping[str, Any], learned: Mapping[str, Any]) -> list[int]:
        separator = settings.get("separator")
        words = plain_words(text) if separator is None else list(filter(None, text.split(separator)))
        terms = [
            " ".join(words[start : start + size])
            for size in range(1, settings["ngrams"] + 1)
            for start in range(len(words) - size + 1)
        ]
        ids = [1 + self._id(term, learned) for term in terms[: settings["words"]]]
        return ids + [0] * (settings["words"] - len(ids))

    def _id(self, value: str, learned: Mapping[str, Any]) -> int:
        encoded, unknown = value.encode(), learned["unknown"]
        known = self._ids[learned["vocabulary"]].get(encoded)
        return unknown["first_id"] + fingerprint64(encoded) % unknown["buckets"] if known is None else known


def _as_read(value: Any, column: Mapping[str, Any], zone: datetime.tzinfo) -> Any:
    """Return a raw `value` as training reads it: a 32-bit float, or a canonical text."""
    settings = column.get("column") or {}
    if isinstance(value, np.ndarray):
        value = list(value) if value.ndim else value[()]
    declared = settings.get("missing") or []
    if declared and is_declared(_text(value, column["name"]), settings["type"], declared, zone):
        value = None
    if column["dtype"] == "float32":
        return np.float32(_as_number(value, column["name"]))
    if isinstance(value, (list, tuple)):
        if settings.get("separator") is None:
            raise ValueError(f"'{column['name']}': one value is expected, {len(value)} were found")
        texts = [canonical(_text(item, column["name"])) for item in value]
        separator = settings["separator"]
        if wrong := [text for text in texts if separator in text]:
            raise ValueError(
                f"'{column['name']}': a value without {separator!r} is expected, {wrong[0][:40]!r} was found"
            )
        value = separator.join(texts)
    text = _text(value, column["name"])
    if settings.get("type") == "date":
        if (found := day(text, hour=settings["hour"], zone=zone)) is None:
            raise ValueError(f"'{column['name']}': a day YYYY-MM-DD is expected, {text[:40]!r} was found")
        return found
    separator = settings.get("separator")
    return canonical(text) if separator is None else canonical_list(text, separator)


def _text(value: Any, name: str) -> str:
    """Return a value of JSON or Python as a cell of a file would have it, empty if it is missing."""
    if isinstance(value, (dict, list, tuple, np.ndarray)):
        raise ValueError(f"'{name}': one value is expected, {str(value)[:40]} was found")
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else str(value)


def _as_number(value: Any, name: str) -> float:
    found = number(_text(value, name))
    if found is None:
        raise ValueError(f"'{name}': a number is expected, {str(value)[:40]!r} was found")
    return found


def _scaled(value: float, learned: Mapping[str, Any]) -> float:
    if "clip_low" in learned:
        low, high = learned["clip_low"], learned["clip_high"]
        value = low if value < low else high if value > high else value  # NaN stays
    if learned.get("log"):
        value = math.copysign(math.log1p(abs(value)), value)
    value = value if math.isfinite(value) else learned["imputed"]
    if "boundaries" in learned:
        return bisect.bisect_right(learned["boundaries"], float(np.float32(value)))
    if "low" in learned:
        return _divided(value - learned["low"], learned["high"] - learned["low"])
    return _divided(value - learned["mean"], learned["standard_deviation"]) if "mean" in learned else value


def _divided(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor else 0.0


def computed(tree: list[Any], row: Mapping[str, Any]) -> Any:
    """Evaluate `tree` for `row`: float32, NaN if missing, or a text, empty if missing; truths are texts too.

    row: float32 numbers and canonical texts by column.
    """
    with np.errstate(all="ignore"):
        value, known = _value(tree, row)
    if isinstance(value, (str, bool, np.bool_)):
        text = value if isinstance(value, str) else "true" if value else "false"
        return canonical(text) if known else ""
    return np.float32(value) if known and np.isfinite(value) else np.float32("nan")


def _value(tree: list[Any], row: Mapping[str, Any]) -> tuple[Any, bool]:
    kind, *rest = tree
    if kind == "constant":
        (value,) = rest
        return (np.float64(value) if isinstance(value, float) else value), True
    if kind == "cell":
        cell = row[rest[0]]
        if isinstance(cell, str):
            return cell, cell != ""
        return np.float64(cell), bool(np.isfinite(cell))
    kernel, *arguments = rest
    pairs = [_value(argument, row) for argument in arguments]
    values, all_known = [value for value, _ in pairs], all(known for _, known in pairs)
    if kernel == "is_null":
        return not all_known, True
    if kernel in ("or_kleene", "and_kleene"):
        decides = kernel == "or_kleene"  # whatever the other is
        decided = any(known and bool(value) == decides for value, known in pairs)
        return (decides if decided else not decides), decided or all_known
    if kernel == "bin":
        number = np.float64(np.floor(np.float32(values[0] / values[1])))
        fits = bool(np.abs(number) < _MOST_BINS)
        return str(int(number)) if fits else "0", all_known and fits
    if kernel == "binary_join_element_wise":
        return values[-1].join(values[:-1]), all_known
    if kernel in _COMPARISONS:
        values = [np.float32(value) if isinstance(value, float) else value for value in values]
    return _KERNELS[kernel](*values), all_known


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_KERNELS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negate": operator.neg,
    "abs": abs,
    "ln": np.log,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "invert": operator.not_,
    "if_else": lambda truth, yes, no: yes if truth else no,
}
