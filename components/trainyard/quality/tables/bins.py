"""Counts numbers, a batch at a time: how many, their spread, and a `Histogram` of bounded size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.drift import Histogram, aligned

MAX_BINS = 1024
"""Bins with values that are kept while counting. Chosen: quantiles are then good to a thousandth of the range."""

_DRAWN = 64  # most bins of a histogram in a document; chosen
_FINEST = -200  # exponent; chosen: below any difference that a float32 near 1e-38 can have
_MEAN_DIGITS = 11  # chosen: a mean of float64 does not depend on the order of the additions so far


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
    def digits(self) -> int:
        """The digits that resolve a hundredth of the standard deviation, at least `least_digits`."""
        std = math.sqrt(self.squares / max(1, self.count))
        ratio = abs(self.mean) / std if std else 0.0
        return 3 + math.ceil(math.log10(ratio)) if 1e3 < ratio < 1e12 else self.least_digits

    def document(self) -> dict[str, Any]:
        """Return the statistics to six digits, for the rest depends on the order of the additions.

        Extremes have as many more as tell a hundredth of the standard deviation apart, the mean where float32 can.
        """
        std = math.sqrt(self.squares / max(1, self.count))
        digits = self.digits
        mean_digits = digits if digits <= _MEAN_DIGITS else self.least_digits
        values = {
            "mean": (self.mean, mean_digits),
            "std": (std, 6),
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
        return _FINEST
    exponent = int(np.frexp((unique[-1] - unique[0]) / (limit - 1))[1]) + 1
    step = 1
    while exponent - step > _FINEST and _bins(unique, exponent - step) <= limit:
        exponent, step = exponent - step, 2 * step
    while step > 1:
        step //= 2
        if exponent - step > _FINEST and _bins(unique, exponent - step) <= limit:
            exponent -= step
    return exponent


def _bins(values: NDArray[np.float64], exponent: int) -> int:
    return 1 + int(np.count_nonzero(np.diff(_starts(values, exponent))))


def _starts(values: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    return np.ldexp(np.floor(np.ldexp(values, -exponent)), exponent) + 0.0
