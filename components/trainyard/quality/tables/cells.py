"""Tells what the texts of a column are, a whole batch at a time: missing, numbers, days, or unknown to a model."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.contract.statistics.drift import UnknownValues
from trainyard.values.columns import as_texts, canonical_texts, count_known, days, is_text
from trainyard.values.missing import declared_numbers
from trainyard.values.patterns import DAY, FALSE, MAX_FLOAT32, MISSING, NUMBER, TRUE
from trainyard.values.text import UTC

_TRUE, _FALSE = (names.partition("|")[0] for names in (TRUE, FALSE))

# From here to there Python and Arrow write the same digits, but for Python's ".0" of a whole number.
_SAME_DIGITS = (1e-4, 1e10)
_FIRST_DAY = (datetime.date.min - datetime.date(1970, 1, 1)).days  # Arrow knows days before it

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """One column of a batch: the text that stands for each cell, and what it is.

    numbers: NaN if the cell is none. days: since 1970, NaN if the cell is none.
    """

    texts: Any  # pa.StringArray
    missing: Mask
    numbers: NDArray[np.float64]
    days: NDArray[np.float64]

    @property
    def empty(self) -> Mask:
        """Mask of the empty cells."""
        return as_mask(pc.equal(self.texts, ""))

    @property
    def truths(self) -> Mask:
        """Mask of the cells with true or false: 1 and 0 if numbers are expected."""
        return as_mask(pc.is_in(self.texts, value_set=pa.array([_TRUE, _FALSE])))

    @property
    def zoned(self) -> int:
        """Number of times with an offset; `canonical` writes +00:00 behind them."""
        is_day = ~np.isnan(self.days)
        return int((is_day & as_mask(pc.ends_with(self.texts, "+00:00"))).sum()) if is_day.any() else 0

    @property
    def no_numbers(self) -> Mask:
        """Mask of the cells that are neither a number nor a marker of a missing one."""
        none: Mask = np.isnan(self.numbers)
        return none & ~listed_as_missing(self.texts) if none.any() else none


def cells(column: Any, zone: datetime.tzinfo = UTC) -> Cells:
    """Return the parsed cells of the Arrow array `column`, of texts or numbers; days of times are those in `zone`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not is_text(column.type):
        numbers = np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan))
        return Cells(canonical_texts(column), np.isnan(numbers), numbers, np.full(len(numbers), np.nan))
    texts = canonical_texts(column)
    empty = as_mask(pc.equal(texts, ""))
    numbers, parsed = _numbers(texts, empty)
    unparsed = ~parsed & ~empty
    # Without a number in it, `na` may well be a name.
    missing = empty | (listed_as_missing(texts) if parsed.any() and unparsed.any() else False)
    since_1970 = _days(texts, zone) if unparsed.any() else np.full(len(texts), np.nan)
    return Cells(texts, np.asarray(missing), numbers, since_1970)


def numbers(column: Any) -> tuple[NDArray[np.float64], Mask]:
    """Return the numbers (n,) of a column that is to hold some, NaN if missing, and which cells are none.

    True and false are 1 and 0.
    """
    found = cells(as_texts(column))
    wrong = found.no_numbers
    if not wrong.any():
        return found.numbers, wrong
    true = as_mask(pc.equal(found.texts, _TRUE))
    return np.where(found.truths, true.astype(np.float64), found.numbers), wrong & ~found.truths


def number_texts(values: NDArray[np.float64]) -> Any:
    """Return each number as Python's `repr` writes it."""
    size = np.abs(values)
    low, high = _SAME_DIGITS
    whole = (np.floor(values) == values) & (size < high)
    texts = pc.cast(pa.array(values), pa.string())
    if whole.any():
        texts = pc.binary_join_element_wise(texts, pc.if_else(pa.array(whole), ".0", ""), "")
    if (other := ~(whole | np.isnan(values) | ((size >= low) & (size < high)))).any():
        written = pa.array([repr(value) for value in values[other].tolist()], pa.string())
        texts = pc.replace_with_mask(texts, pa.array(other), written)
    return texts


def without_declared(column: Any, kind: str, declared: Sequence[str], zone: datetime.tzinfo = UTC) -> Any:
    """Return the Arrow array `column` with no value where `values.missing.is_declared` is True: '' if of texts."""
    if not declared or not len(column):
        return column
    mask = as_mask(pc.is_in(canonical_texts(column), value_set=pa.array(declared, pa.string())))
    if kind == "numeric" and (listed := declared_numbers(declared)):
        mask |= np.isin(numbers(column)[0].astype(np.float32), np.array(listed, np.float32))
    if kind == "date":
        mask |= as_mask(pc.is_in(days(column, hour=False, zone=zone), value_set=pa.array(declared, pa.string())))
    if not mask.any():
        return column
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    return pc.if_else(pa.array(mask), pa.scalar("" if is_text(column.type) else None, column.type), column)


def _numbers(texts: Any, empty: Mask) -> tuple[NDArray[np.float64], Mask]:
    """Return the numbers and which texts are one."""
    if empty.all():
        return np.full(len(texts), np.nan), ~empty
    try:
        filled = texts if not empty.any() else pc.if_else(pa.array(empty), "0", texts)
        numbers = np.array(filled.cast(pa.float64()))
        if np.abs(numbers).max() <= MAX_FLOAT32:  # false for NaN and infinity, which Arrow takes for numbers
            return np.where(empty, np.nan, numbers), ~empty
    except pa.ArrowInvalid:
        pass
    like = pc.match_substring_regex(texts, f"^{NUMBER}$")
    unsigned = pc.utf8_ltrim(pc.if_else(like, texts, "nan"), "+")
    numbers = np.array(unsigned.cast(pa.float64()))
    parsed = as_mask(like) & (np.abs(numbers) <= MAX_FLOAT32)
    return np.where(parsed, numbers, np.nan), parsed


def _days(texts: Any, zone: datetime.tzinfo) -> NDArray[np.float64]:
    like = pc.match_substring_regex(texts, f"^{DAY}$")
    if not pc.any(like).as_py():
        return np.full(len(texts), np.nan)
    if zone != UTC:
        texts = days(texts, hour=False, zone=zone)
    written = pc.utf8_slice_codeunits(pc.if_else(like, texts, None), 0, 10)
    parsed = pc.strptime(written, format="%Y-%m-%d", unit="s", error_is_null=True)
    real = pc.equal(pc.strftime(parsed, "%Y-%m-%d"), written)  # strptime takes February 30 for March 1
    seconds = pc.if_else(real, parsed.cast(pa.int64()), None).cast(pa.float64())
    since = np.asarray(pc.fill_null(seconds, np.nan)) / 86400
    return np.where(since >= _FIRST_DAY, since, np.nan)


def listed_as_missing(texts: Any) -> Mask:
    """Return the mask of the texts that stand for a missing number."""
    return as_mask(pc.is_in(pc.utf8_lower(texts), value_set=pa.array(MISSING)))


def as_mask(array: Any) -> Mask:
    """Return an Arrow array of booleans as a mask; a null is False."""
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=bool)


def too_many_classes(distinct: int, rows: int) -> bool:
    """Return True if a column of `distinct` values in `rows` rows has too many values for classes.

    Chosen: more than 100, and more than a tenth of the rows.
    """
    return distinct > 100 and distinct > rows / 10


@dataclass(frozen=True)
class Vocabulary:
    """The values of a category that training saw, or the words or parts of a text.

    separator: as `count_known`. missing: the value that stands for a missing one.
    """

    values: pa.Array
    is_text: bool
    separator: str | None
    missing: str | None


class UnknownCounter:
    """Counts by column, for the columns of `vocabularies`."""

    def __init__(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        self.vocabularies = vocabularies
        self._cells, self._unknown, self._missing = Counter[str](), Counter[str](), Counter[str]()

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        """Count the cells of columns of texts (n,) by name, in which a missing one is empty."""
        for name, known in self.vocabularies.items():
            texts = columns[name]
            missing = pc.sum(pc.equal(texts, "")).as_py() or 0
            self._cells[name] += len(texts)
            self._missing[name] += missing
            self._unknown[name] += (
                len(texts) - missing - count_known(texts, known.values, known.is_text, known.separator)
            )

    def counts(self) -> dict[str, UnknownValues]:
        """Return the counts by column."""
        return {
            name: UnknownValues(
                values=self._cells[name] - self._missing[name],
                unknown=self._unknown[name],
                missing=self._missing[name],
                missing_is_unknown=bool(known.missing) and known.missing not in known.values.to_pylist(),
            )
            for name, known in self.vocabularies.items()
        }
