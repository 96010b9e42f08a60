"""Counts the cells of one column, a batch at a time and in bounded memory, and says what the column is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.contract.statistics.drift import EXACT, FeatureStatistics, Histogram, aligned, top_values
from trainyard.quality.far_values import far_values
from trainyard.quality.figures import format_value
from trainyard.quality.profile import ColumnProfile, ColumnType, foreign_kind
from trainyard.quality.tables import hashes
from trainyard.quality.tables.cells import Cells
from trainyard.quality.tables.hashes import Hashes
from trainyard.quality.tables.samples import HashSample
from trainyard.values.columns import word_texts
from trainyard.values.patterns import MISSING
from trainyard.values.text import alike, number

TOP = 20
"""Most frequent values that are kept of a column. Chosen, as preprocess does."""

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The quantiles of a profile."""

DAY_DIGITS = 7
"""The digits of a day since 1970 as a number: 2932896 is 9999-12-31."""

_KEPT = 10_000  # different texts whose counts are kept; chosen, as preprocess does
_SUCH_AS = 5
_GROUPS = 20  # chosen, as the most frequent values
_ZERO_PADDED = r"^0[0-9]+$"
_LONGEST = max(map(len, MISSING))
_MOSTLY = 0.9  # chosen: minimum share of cells of a column's type
_CATEGORY = 50, 0.05  # chosen: maximum number of distinct texts, or their share of the cells
MAX_BINS = 1024
"""Bins with values that are kept while counting. Chosen: quantiles are then good to a thousandth of the range."""

_DRAWN = 64  # most bins of a histogram in a document; chosen
_FREQUENT = 0.002  # chosen: the least share of a value that is counted apart from its bin
_MEAN_DIGITS = 11  # chosen: a mean of float64 does not depend on the order of the additions so far


class ColumnCounter:
    """A `ColumnProfile` in the making. Counts numbers, days and texts until the prevailing type is known."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows = 0
        self._missing = 0
        self._zoned = 0
        self._whole = True
        self._padded = False  # a number begins with a zero, as codes and ids do
        self._longest = 0
        self._numbers, self._days = Numbers(), Numbers(least_digits=DAY_DIGITS)
        self._texts: Counter[str] = Counter()
        self._each_day: Counter[float] = Counter()  # at most the 3.7 million of the calendar
        self._listed: Counter[str] = Counter()  # such as na: a missing number, or a name if the column is of texts
        self._distinct = HashSample()
        self._not_numbers: dict[str, str] = {}
        self._not_days: dict[str, str] = {}

    def add(self, cells: Cells, name: Callable[[int], str], first_row: int) -> Hashes:
        """Count `cells`, whose rows have the names that `name` gives. Return the cells' hashes."""
        self._rows += len(cells.missing)
        is_number, is_day = ~np.isnan(cells.numbers), ~np.isnan(cells.days)
        self._padded = self._padded or bool(pc.any(pc.match_substring_regex(cells.texts, _ZERO_PADDED)).as_py())
        self._zoned += cells.zoned
        numbers = cells.numbers[is_number]
        self._whole = self._whole and bool((numbers == np.floor(numbers)).all())
        self._numbers.merge(Numbers.from_values(numbers))
        if is_day.any():
            self._days.merge(Numbers.from_values(cells.days))
            self._each_day.update(dict(zip(*np.unique(cells.days[is_day], return_counts=True), strict=True)))
        cell_hashes, present = self._hash(cells, is_number)
        self._note(self._not_numbers, cells, ~is_number & present, name)
        self._note(self._not_days, cells, ~is_day & ~cells.empty, name)
        rows = np.flatnonzero(present)
        self._distinct.add(cell_hashes[rows], rows + first_row)
        return cell_hashes

    def profile(self) -> ColumnProfile:
        """Return the profile of the column."""
        self._decide()
        count = self._rows - self._missing
        kind = self._type()
        numbers = self._days if kind == "date" else self._numbers if kind in ("integer", "number") else None
        such_as = self._not_days if kind == "date" else self._not_numbers
        mistyped = count - numbers.count if numbers else 0
        top = top_values(self._texts, TOP)
        texts = {"count": count, "distinct": self._distinct.distinct, "top": top}
        statistics = (numbers.document() if numbers else texts) | {"missing": self._missing}
        if kind == "date":
            days = Counter({format_value(day, kind): int(times) for day, times in self._each_day.items()})
            statistics |= {"distinct": len(days), "top": top_values(days, TOP)}
        histogram = numbers.histogram if numbers else None
        frequent = self._frequent(kind)
        quantiles = {share: histogram.quantile(share, frequent) for share in SHARES} if histogram else {}
        digits = numbers.digits if numbers else 6
        far = far_values(histogram, numbers.std, frequent) if histogram and numbers else None
        return ColumnProfile(
            name=self.name,
            type=kind,
            statistics=FeatureStatistics.model_validate(statistics),
            distinct=self._distinct.distinct,
            mistyped=mistyped,
            mistyped_such_as=[f"{place} {text!r}" for place, text in such_as.items()] if mistyped else [],
            quantiles={f"{share:g}": float(f"{value:.{digits}g}") for share, value in quantiles.items()},
            top=top,
            longest=self._longest,
            zoned=self._zoned,
            missing_texts=dict(self._listed),
            far=far,
            mistyped_kind=foreign_kind(such_as.values()) if mistyped else "",
            alike=alike(self._texts)[:_GROUPS] if kind == "category" else [],
        )

    def most_common(self, limit: int) -> dict[str, int]:
        """Return the counts of the `limit` most frequent texts, ties in text order."""
        return {entry.value: entry.count for entry in top_values(self._texts, limit)}

    def _frequent(self, kind: ColumnType) -> dict[float, int]:
        """Return the counts of the numbers, or days, that occur often."""
        if kind == "date":
            counts = {day: int(times) for day, times in self._each_day.items()}
        else:
            counts = Counter[float]()
            for text, times in self._texts.items():
                if (found := number(text)) is not None and not math.isnan(found):
                    counts[found] += times
        least = max(2, _FREQUENT * sum(counts.values()))
        return {value: times for value, times in counts.items() if times >= least}

    def _decide(self) -> None:
        """Count what is listed as missing, or as texts."""
        if self._is_mostly(self._numbers, self._rows - self._missing - self._listed.total()):
            self._missing += self._listed.total()
            return
        if self._listed:
            self._texts.update(self._listed)
            self._distinct.add(hashes.hash_texts([*self._listed]), np.zeros(len(self._listed), np.int64))
        self._listed.clear()

    @staticmethod
    def _is_mostly(numbers: Numbers, count: int) -> bool:
        return 0 < numbers.count >= _MOSTLY * count

    @property
    def _is_code(self) -> bool:
        """True if whole numbers of the column are padded with zeros, as codes and ids are, not numbers."""
        return self._whole and self._padded

    def _type(self) -> ColumnType:
        count = self._rows - self._missing
        if not count:
            return "empty"
        if self._is_mostly(self._numbers, count) and not self._is_code:
            return "integer" if self._whole else "number"
        if self._is_mostly(self._days, count):
            return "date"
        limit, share = _CATEGORY
        return "category" if self._distinct.distinct <= max(limit, share * count) and self._longest <= 100 else "text"

    def _note(
        self, such_as: dict[str, str], cells: Cells, wrong: NDArray[np.bool_], name: Callable[[int], str]
    ) -> None:
        if len(such_as) < _SUCH_AS and 2 * wrong.sum() < len(wrong):
            for index in np.flatnonzero(wrong)[: _SUCH_AS - len(such_as)]:
                such_as[name(int(index))] = cells.texts[int(index)].as_py()[:40]

    def _hash(self, cells: Cells, is_number: NDArray[np.bool_]) -> tuple[Hashes, NDArray[np.bool_]]:
        """Return a hash of each cell and which are present, and count the texts."""
        encoded = cells.texts.dictionary_encode()
        values: list[str] = encoded.dictionary.to_pylist()
        indices = np.asarray(encoded.indices)
        listed = np.array([len(value) <= _LONGEST and value.lower() in MISSING for value in values], np.bool_)
        present = is_number | ~listed[indices]
        times = np.bincount(indices, minlength=len(values))
        for index in np.flatnonzero(listed):
            if values[index]:
                self._listed[values[index]] += int(times[index])
            else:
                self._missing += int(times[index])
        times[listed] = 0
        self._longest = max(self._longest, max((len(value) for value in values), default=0))
        many = len(values) > _KEPT // 2
        frequent = np.argsort(-times, kind="stable")[: _KEPT // 2] if many else np.arange(len(values))
        self._texts.update({values[index]: int(times[index]) for index in frequent if times[index]})
        if len(self._texts) > 2 * _KEPT:
            self._texts = Counter(dict(self._texts.most_common(_KEPT)))
        if is_number.all():
            return hashes.hash_numbers(cells.numbers), present
        value_hashes = hashes.hash_texts(values)
        return np.where(is_number, hashes.hash_numbers(cells.numbers), value_hashes[indices]), present


def with_same_words(column: ColumnProfile, texts: pa.Array) -> ColumnProfile:
    """Return the profile of a column of texts with how many of `texts` (n,) give the words of another one."""
    different = pc.unique(texts)
    encoded = word_texts(different).dictionary_encode()
    numbers = np.asarray(encoded.indices)
    same = np.bincount(numbers, minlength=1)[numbers] > 1
    if not same.any():
        return column
    first = np.flatnonzero(numbers == numbers[same.argmax()])[:2]
    such_as = [different[int(place)].as_py() for place in first]
    return column.model_copy(update={"same_words": int(same.sum()), "same_words_such_as": such_as})


def numbers_profile(name: str, values: NDArray[np.float64]) -> ColumnProfile:
    """Return the profile of `values`, all finite."""
    column = ColumnCounter(name)
    texts = pa.array([f"{value:g}" for value in values])
    column.add(Cells(texts, np.zeros(len(values), bool), values, np.full(len(values), np.nan)), str, 0)
    return column.profile()


@dataclass
class Numbers:
    """Mean and spread. Source: Chan, Golub, LeVeque (1979), the pairwise update of the sum of squares.

    limit, of `from_values` and `merge` alike: as `counted`. least_digits: of the statistics.
    """

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    histogram: Histogram | None = None
    least_digits: int = 6

    @classmethod
    def from_values(cls, values: NDArray[np.float64], limit: int = MAX_BINS) -> Numbers:
        """Summarize `values` (n,); NaN counts as missing."""
        known = values[~np.isnan(values)]
        missing = len(values) - len(known)
        if not len(known):
            return cls(missing=missing)
        with np.errstate(over="ignore", invalid="ignore"):  # values of 1e300 have a spread that float64 does not hold
            mean = float(known.mean())
            squares = float(np.square(known - mean).sum())
        low, high = float(known.min()), float(known.max())
        return cls(len(known), missing, mean, squares, low, high, counted(known, limit))

    def merge(self, other: Numbers, limit: int = MAX_BINS) -> None:
        """Count all that `other` counted."""
        self.missing += other.missing
        if other.count:
            count = self.count + other.count
            delta = other.mean - self.mean
            self.mean += delta * other.count / count
            self.squares += other.squares + delta * delta * self.count * other.count / count
            self.count = count
            self.low, self.high = min(self.low, other.low), max(self.high, other.high)
            if self.histogram is None or other.histogram is None:
                self.histogram = self.histogram or other.histogram
            else:
                self.histogram = merged(self.histogram, other.histogram, limit)

    @property
    def std(self) -> float:
        """The standard deviation of the population."""
        return math.sqrt(self.squares / max(1, self.count))

    @property
    def digits(self) -> int:
        """The digits that resolve a hundredth of the standard deviation, at least `least_digits`."""
        std = self.std
        ratio = abs(self.mean) / std if std else 0.0
        return 3 + math.ceil(math.log10(ratio)) if 1e3 < ratio < 1e12 else self.least_digits

    def document(self) -> dict[str, Any]:
        """Return the statistics to six digits, because the rest depends on the order of the additions.

        Extremes have as many more as tell a hundredth of the standard deviation apart, the mean where float32 can.
        """
        digits = self.digits
        mean_digits = digits if digits <= _MEAN_DIGITS else self.least_digits
        values = {
            "mean": (self.mean, mean_digits),
            "std": (self.std, 6),
            "min": (self.low, digits),
            "max": (self.high, digits),
        }
        rounded = {name: float(f"{value:.{kept}g}") for name, (value, kept) in values.items() if self.count}
        drawn = {"histogram": self.histogram.limited(_DRAWN).model_dump()} if self.histogram else {}
        return {"count": self.count, "missing": self.missing, **rounded, **drawn}


def counted(values: NDArray[np.float64], limit: int = MAX_BINS) -> Histogram:
    """Return the histogram of `values`, all finite, in at most `limit` bins.

    Only as many neighbors are added up as that takes, so that the outcome does not depend on the order and the batches
    in which values come, and a far outlier costs one bin.
    """
    unique, counts = np.unique(values, return_counts=True)
    exponent = _finest(unique, limit)
    starts = _starts(unique, exponent)
    first = np.flatnonzero(np.diff(starts, prepend=np.nan) != 0)
    together = np.add.reduceat(counts, first) if len(first) else counts
    return Histogram(exponent=exponent, starts=starts[first].tolist(), counts=together.tolist())


def merged(first: Histogram, second: Histogram, limit: int = MAX_BINS) -> Histogram:
    """Return the histogram of what both counted: the same that `counted` gives of all the values together."""
    first, second = aligned(first, second)
    counts = dict(zip(first.starts, first.counts, strict=True))
    for start, count in zip(second.starts, second.counts, strict=True):
        counts[start] = counts.get(start, 0) + count
    starts = sorted(counts)
    together = Histogram(exponent=first.exponent, starts=starts, counts=[counts[start] for start in starts])
    return together.limited(limit)


def _finest(unique: NDArray[np.float64], limit: int) -> int:
    """Return the smallest exponent with which `unique`, in order, lie in at most `limit` bins."""
    if len(unique) <= limit:
        return EXACT
    exponent = int(np.frexp((unique[-1] - unique[0]) / (limit - 1))[1]) + 1
    step = 1
    while exponent - step > EXACT and _bins(unique, exponent - step) <= limit:
        exponent, step = exponent - step, 2 * step
    while step > 1:
        step //= 2
        if exponent - step > EXACT and _bins(unique, exponent - step) <= limit:
            exponent -= step
    return exponent


def _bins(values: NDArray[np.float64], exponent: int) -> int:
    return 1 + int(np.count_nonzero(np.diff(_starts(values, exponent))))


def _starts(values: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    return np.ldexp(np.floor(np.ldexp(values, -exponent)), exponent) + 0.0
