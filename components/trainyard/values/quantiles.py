"""Quantiles of weighted numbers: a number of weight 3 counts like three equal numbers, whatever the unit of weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-9  # chosen: share of the total, far above what sums of float64 lose


def weighted_quantiles(
    values: NDArray[np.floating], weights: NDArray[np.floating] | None, shares: tuple[float, float]
) -> tuple[float, float]:
    """Return the lowest of `values` (n,) with more than the first share of the weight up to it, and the lowest with
    at least the second; weights: (n,), None for 1.

    The two are symmetric: of [0.01, 0.99] and 100 equal weights, the second lowest and the second highest.
    """
    order = np.argsort(values, kind="stable")
    totals = np.ones(len(values)) if weights is None else weights[order].astype(np.float64)
    low, high = (
        index_of_rank(totals, share * totals.sum(), is_low=is_low)
        for share, is_low in zip(shares, (True, False), strict=True)
    )
    return float(values[order[low]]), float(values[order[high]])


def index_of_rank(totals: NDArray[np.floating], rank: float, *, is_low: bool) -> int:
    """Return the index at which the sum of `totals` exceeds `rank` if `is_low`, otherwise reaches it."""
    ends = np.cumsum(totals)
    margin = _ROUNDING * ends[-1]
    found = np.searchsorted(ends, rank + margin, "right") if is_low else np.searchsorted(ends, rank - margin, "left")
    counted = np.flatnonzero(totals)
    return int(np.clip(found, counted[0], counted[-1]))
