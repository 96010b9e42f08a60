"""Counts numbers into a `Histogram` of bounded size, a batch at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.histogram import Histogram, aligned

MOST = 1024
"""Bins with values that are kept while counting. Chosen: quantiles are then good to a thousandth of the range."""

_FINEST = -200  # exponent; chosen: below any difference that a float32 near 1e-38 can have


def counted(values: NDArray[np.float64], most: int = MOST) -> Histogram:
    """Return the histogram of `values`, all finite, in at most `most` bins.

    Only as many neighbours are added up as that takes, so that the outcome does not depend on the order and the batches
    in which values come, and a far outlier costs one bin.
    """
    unique, counts = np.unique(values, return_counts=True)
    exponent = _finest(unique, most)
    starts = _starts(unique, exponent)
    first = np.flatnonzero(np.diff(starts, prepend=np.nan) != 0)
    together = np.add.reduceat(counts, first) if len(first) else counts
    return Histogram(exponent=exponent, starts=starts[first].tolist(), counts=together.tolist())


def merged(first: Histogram, second: Histogram, most: int = MOST) -> Histogram:
    """Return the histogram of what both counted: the same that `counted` gives of all the values together."""
    first, second = aligned(first, second)
    counts = dict(zip(first.starts, first.counts, strict=True))
    for start, count in zip(second.starts, second.counts, strict=True):
        counts[start] = counts.get(start, 0) + count
    starts = sorted(counts)
    together = Histogram(exponent=first.exponent, starts=starts, counts=[counts[start] for start in starts])
    return together.limited(most)


def _finest(unique: NDArray[np.float64], most: int) -> int:
    """Return the smallest exponent with which `unique`, in order, lie in at most `most` bins."""
    if len(unique) <= most:
        return _FINEST
    exponent = int(np.frexp((unique[-1] - unique[0]) / (most - 1))[1]) + 1
    step = 1
    while exponent - step > _FINEST and _bins(unique, exponent - step) <= most:
        exponent, step = exponent - step, 2 * step
    while step > 1:
        step //= 2
        if exponent - step > _FINEST and _bins(unique, exponent - step) <= most:
            exponent -= step
    return exponent


def _bins(values: NDArray[np.float64], exponent: int) -> int:
    return 1 + int(np.count_nonzero(np.diff(_starts(values, exponent))))


def _starts(values: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    return np.ldexp(np.floor(np.ldexp(values, -exponent)), exponent) + 0.0
