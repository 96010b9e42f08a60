"""A device without TensorFlow: from raw rows to the inputs of a LiteRT file, by what lies beside that file alone."""

from __future__ import annotations

import bisect
import datetime
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.values.text import canonical, canonical_list

_K0, _K2, _64_BITS = 0xC3A5C85C97CB3127, 0x9AE16A3B2F90404F, (1 << 64) - 1
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ].*)?", re.ASCII)


class Device:
    """Reads `folder`, an export's, and makes inputs of rows: values by column, NaN or '' where one is missing.

    Computed features stand in the rows like the others: their formulas are the caller's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = json.loads((folder / "preprocessing.json").read_text())
        assert content["transform"] == "columns"
        self._inputs = content["inputs"]
        self._columns = [
            column for column in (*content["raw_features"], *content["computed_features"]) if "learned" in column
        ]
        self._ids = {
            name: {line: index for index, line in enumerate((folder / "vocabularies" / name).read_bytes().split(b"\n"))}
            for name in content["vocabularies"]
        }

    def inputs(self, row: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return a batch of one by the names of the LiteRT file."""
        features: dict[str, Any] = {}
        for column in self._columns:
            name, kind, learned = column["name"], column["column"]["type"], column["learned"]
            if kind == "category":
                features[name] = self._id(canonical(row[name]).encode(), learned)
            elif kind == "text":
                features[name] = self._term_ids(row[name], column["column"], learned)
            elif kind == "numeric":
                features[name] = _number(float(np.float32(row[name])), learned)
            else:
                text = _as_read(row[name], column["column"]["hour"])
                month, date = text[5:7], _date(text)
                days = (date - datetime.date(1970, 1, 1)).days if date else math.nan
                features[f"{name}_days"] = _number(days, learned)
                features[f"{name}_month"] = int(month) if date else 0
                features[f"{name}_weekday"] = date.isoweekday() if date else 0
                if column["column"]["hour"]:
                    time = re.fullmatch(r"[T ]([01]\d|2[0-3])([:.].*)?", text[10:], re.ASCII)
                    features[f"{name}_hour"] = int(time[1]) + 1 if date and time else 0
        return {
            model_input["name"]: np.array(features[model_input["feature"]], model_input["dtype"]).reshape(
                model_input["shape"]
            )
            for model_input in self._inputs
        }

    def answers(self, rows: list[dict[str, Any]]) -> np.ndarray:
        """Return what the float32 LiteRT file of the export answers to each of `rows`: (n, outputs)."""
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(self._folder / "model_float32.tflite"))  # which must outlive its runner
        ask = interpreter.get_signature_runner()
        return np.concatenate([next(iter(ask(**self.inputs(row)).values())) for row in rows])

    def _term_ids(self, text: str, settings: dict[str, Any], learned: dict[str, Any]) -> list[int]:
        if separator := settings.get("separator"):
            plain = canonical_list(text, separator).split(separator) if canonical_list(text, separator) else []
        else:
            plain = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
        runs = [
            " ".join(plain[at : at + n]) for n in range(1, settings["ngrams"] + 1) for at in range(len(plain) - n + 1)
        ]
        ids = [1 + self._id(word.encode(), {**learned, "missing": ""}) for word in runs[: settings["words"]]]
        return ids + [0] * (settings["words"] - len(ids))

    def _id(self, value: bytes, learned: dict[str, Any]) -> int:
        value, unknown = value or learned["missing"].encode(), learned["unknown"]
        assert unknown["hash"] == "farmhash fingerprint64"
        hashed = unknown["first_id"] + fingerprint64(value) % unknown["buckets"]
        return self._ids[learned["vocabulary"]].get(value, hashed)


def _number(value: float, learned: dict[str, Any]) -> float:
    if learned.get("log"):
        value = math.copysign(math.log1p(abs(value)), value)
    value = value if math.isfinite(value) else learned["imputed"]
    if "boundaries" in learned:
        return bisect.bisect_right(learned["boundaries"], float(np.float32(value)))
    if "low" in learned:
        return _divide(value - learned["low"], learned["high"] - learned["low"])
    return _divide(value - learned["mean"], learned["standard_deviation"]) if "mean" in learned else value


def _divide(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor else 0.0


def _as_read(text: str, hour: bool) -> str:
    """Return the text of a date as docs/reference/values.md reads it: a day alone is midnight."""
    return f"{text.strip()}T00" if hour and re.fullmatch(r"\d{4}-\d{2}-\d{2}", text.strip(), re.ASCII) else text.strip()


def _date(text: str) -> datetime.date | None:
    if not _DATE.fullmatch(text):
        return None
    year, month, day = (int(part) for part in text[:10].split("-"))
    return datetime.date(year, month, 1) + datetime.timedelta(days=day - 1)


def fingerprint64(text: bytes) -> int:
    """Return FarmHash's Fingerprint64 of at most 16 bytes (source: google/farmhash, farmhashna::HashLen0to16)."""
    size, mul = len(text), _K2 + 2 * len(text)
    assert size <= 16
    if size >= 8:
        a, b = _integer(text[:8]) + _K2 & _64_BITS, _integer(text[-8:])
        return _mix((_rotate(b, 37) * mul + a) & _64_BITS, (_rotate(a, 25) + b) * mul & _64_BITS, mul)
    if size >= 4:
        return _mix(size + (_integer(text[:4]) << 3), _integer(text[-4:]), mul)
    if not size:
        return _K2
    y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
    return _shift(y * _K2 & _64_BITS ^ z * _K0 & _64_BITS) * _K2 & _64_BITS


def _mix(u: int, v: int, mul: int) -> int:
    a = _shift((u ^ v) * mul & _64_BITS)
    return _shift((v ^ a) * mul & _64_BITS) * mul & _64_BITS


def _shift(value: int) -> int:
    return value ^ value >> 47


def _rotate(value: int, by: int) -> int:
    return (value >> by | value << 64 - by) & _64_BITS


def _integer(part: bytes) -> int:
    return int.from_bytes(part, "little")
