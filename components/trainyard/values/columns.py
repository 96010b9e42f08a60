"""Whole columns of Arrow as the texts of `values.text`."""

from __future__ import annotations

import datetime
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.values import patterns
from trainyard.values.text import canonical, canonical_list, day

LIST_SEPARATOR = ";"
"""Between the values of a list in one cell, where no recipe says another."""

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_EPOCH = datetime.date(1970, 1, 1)
_DAYS = ((datetime.date.min - _EPOCH).days, (datetime.date.max - _EPOCH).days + 1)
_DAY_SECONDS = 86400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# What every text holds that `canonical` changes.
_CHANGED = rf"[^\x20-\x7e]|^ | $|^(?:{patterns.WRITTEN_OTHERWISE})$"


def as_texts(values: Any) -> pa.Array:
    """Return the values of an Arrow array as a file of text would have them, empty where one is missing or NaN.

    A time with a zone is written in UTC. Texts stay as they are; the values of a list are joined by `LIST_SEPARATOR`.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if is_list(kind):
        return joined(values, LIST_SEPARATOR)
    if isinstance(values, pa.DictionaryArray):
        return pc.fill_null(as_texts(values.dictionary).take(values.indices), "")
    if pa.types.is_float16(kind):
        return as_texts(values.cast(pa.float32()))
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values)
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit, "UTC"))
    return pc.fill_null(values if pa.types.is_string(kind) else pc.cast(values, pa.string()), "")


def impossible_times(values: Any) -> dict[int, str]:
    """Return the rows of an Arrow array that hold a day outside the years 1 to 9999, or a time outside a day.

    Their values are the stored numbers, for a message. Arrow stores such times, and prints some as other times.
    """
    kind = values.type
    if isinstance(values, pa.DictionaryArray):
        places = impossible_times(values.dictionary)
        indices = values.indices.to_pylist() if places else []
        return {row: places[place] for row, place in enumerate(indices) if place in places}
    if is_list(kind):
        parents = pc.list_parent_indices(values)
        places = impossible_times(pc.call_function("list_flatten", [values]))
        return {parents[place].as_py(): found for place, found in places.items()}
    if not pa.types.is_temporal(kind):
        return {}
    low, high = _limits(kind)
    stored = pc.fill_null(values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()), 0).to_numpy()
    wrong = np.flatnonzero((stored < low) | (stored >= high))
    return {int(row): f"{stored[row]} ({kind})" for row in wrong}


def _limits(kind: Any) -> tuple[int, int]:
    """Return the least stored number of a temporal type that is a time, and the first above it that is none."""
    if pa.types.is_date32(kind):
        return _DAYS
    if pa.types.is_time(kind):
        return 0, _DAY_SECONDS * _PER_SECOND[kind.unit]
    units = _DAY_SECONDS * (1000 if pa.types.is_date64(kind) else _PER_SECOND[kind.unit])
    return _DAYS[0] * units, _DAYS[1] * units


def plain_numbers(values: pa.Array) -> pa.Array | None:
    """Return the values of an Arrow array as float64; None if one is missing, or a text that Arrow takes for no number.

    What Arrow takes for a number, and `are_plain` does not refuse, has the value that `text.number` gives.
    """
    try:
        numbers = values.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return numbers if are_plain(numbers) else None


def are_plain(numbers: pa.Array) -> bool:
    """Return True if there are numbers, and none is missing, NaN, infinite or too large for 32 bits."""
    if numbers.null_count or not len(numbers):
        return False
    found, limit = numbers.to_numpy(), patterns.MAX_FLOAT32
    return bool(found.min() >= -limit and found.max() <= limit)  # NaN is neither


def canonical_texts(values: Any) -> pa.Array:
    """Apply `canonical` to each value of an Arrow array; missing values become empty."""
    texts = as_texts(values)
    changed = pc.match_substring_regex(texts, _CHANGED)
    if not pc.any(changed).as_py():
        return texts
    encoded = texts.filter(changed).dictionary_encode()
    canonicals = pa.array([canonical(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(texts, changed, canonicals.take(encoded.indices))


def canonical_lists(values: Any, separator: str) -> pa.Array:
    """Apply `canonical_list` to each value of an Arrow array of texts."""
    encoded = as_texts(values).dictionary_encode()
    lists = [canonical_list(text, separator) for text in encoded.dictionary.to_pylist()]
    return pa.array(lists, pa.string()).take(encoded.indices)


def days(values: Any, *, hour: bool, zone: datetime.tzinfo) -> pa.Array:
    """Apply `day` to each value of an Arrow array: null if it is no day, empty if it is missing."""
    encoded = as_texts(values).dictionary_encode()
    found = pa.array([day(text, hour=hour, zone=zone) for text in encoded.dictionary.to_pylist()], pa.string())
    return found.take(encoded.indices)


def is_text(kind: Any) -> bool:
    """Return True if a column of the Arrow type `kind` holds texts."""
    return any(test(kind) for test in _TEXTS)


def is_list(kind: Any) -> bool:
    """Return True if a column of the Arrow type `kind` holds lists of values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def joined(lists: Any, separator: str) -> pa.Array:
    """Return the values of each of the Arrow array `lists` that are not missing as one text, the `separator` between.

    Raises `ValueError` with a sentence if a value holds the separator itself.
    """
    texts = as_texts(pc.call_function("list_flatten", [lists]))
    if separator in "".join(texts.to_pylist()):
        wrong = next((text for text in texts.to_pylist() if separator in text), "")
        if wrong:
            raise ValueError(f"the value '{wrong[:40]}' of a list holds the separator '{separator}'. Name another one")
    present = pc.not_equal(texts, "")
    texts, parents = texts.filter(present), pc.list_parent_indices(lists).filter(present)
    lengths = np.bincount(parents.to_numpy(), minlength=len(lists))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.call_function("binary_join", [pa.ListArray.from_arrays(offsets, texts), pa.scalar(separator)])


def count_known(texts: pa.Array, vocabulary: pa.Array, is_text: bool, separator: str | None = None) -> int:
    """Count the canonical `texts` in the `vocabulary`; if `is_text`, those with a known word or part.

    separator: between the parts of a text; None cuts it into words.
    """
    if not is_text:
        return pc.sum(pc.is_in(texts, value_set=vocabulary)).as_py() or 0  # no vocabulary has the empty text
    if separator is None:
        lists = pc.call_function("ascii_split_whitespace", [_spaced(texts)])
    else:
        lists = pc.split_pattern(texts, separator)
    found = pc.is_in(pc.list_flatten(lists), value_set=vocabulary)
    return len(pc.unique(pc.filter(pc.list_parent_indices(lists), found)))


def word_texts(texts: pa.Array) -> pa.Array:
    """Return the words of each text with one space between two."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(_spaced(texts), r"[\t-\r\x20]+", " "))


def _spaced(texts: pa.Array) -> pa.Array:
    """Return the texts in lower case, with white space between their words."""
    texts = _lower(texts)
    for pattern, replacement in patterns.TIDY_SIGNS + patterns.SPLIT_WORDS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def _lower(texts: pa.Array) -> pa.Array:
    """Apply `str.lower`. Arrow does not know the other form of a Greek sigma that ends a word, nor the dot of İ."""
    special = pc.match_substring_regex(texts, "[Σİ]")
    if pc.any(special).as_py():
        lower = pa.array([text.lower() for text in texts.filter(special).to_pylist()], pa.string())
        texts = pc.replace_with_mask(texts, special, lower)
    return pc.utf8_lower(texts)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def block_pandas_import() -> None:
    """Have pyarrow take pandas for not installed, unless it is imported already.

    Most of pyarrow's functions import pandas once, only to see whether their arguments are of it. That takes 3
    CPU-seconds, more than to profile 100,000 rows (seen with pyarrow 25, which has no setting for it).
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.scalar("")
        finally:
            sys.meta_path.remove(finder)
