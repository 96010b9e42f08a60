"""Exact quantiles of columns of any length, in whatever order their rows come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainyard.spec.columns import Numeric
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.parts import SortedRun
from trainyard.steps.preprocess.task_store import TaskStore

_BITS = 16  # of a number are counted at once
_SIGN = np.uint64(1 << 63)

Limits = Mapping[str, tuple[float, float]]
"""The lowest and the highest number that a column keeps, by its name."""


def clip_limits(data: Data, parts: list[SortedRun], work: TaskStore) -> Limits:
    """Return the quantiles of the training split that each feature with `clip` is limited to."""
    named = {name: feature.clip for name, feature in data.features.items() if isinstance(feature, Numeric)}
    columns = {f"{'measure' if name in data.derive else 'raw'}/{name}": clip for name, clip in named.items() if clip}

    def batches() -> Iterable[pa.RecordBatch]:
        return (rows for part in parts for rows in part.batches(work, "train"))

    found = quantiles(batches, columns)
    return {name.partition("/")[2]: (low, high) for name, (low, high) in found.items()}


def quantiles(
    batches: Callable[[], Iterable[pa.RecordBatch]], shares: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return for each column of `shares` the two numbers with these shares of the numbers below them.

    They are the sorted numbers nearest to the share, as NumPy's method `nearest` takes them; NaN does not count.
    batches: read four times, 16 bits of the numbers each, so that memory does not grow with the rows.
    """
    prefixes = {(name, share): np.uint64(0) for name, pair in shares.items() for share in pair}
    ranks: dict[tuple[str, float], int] = {}
    for shift in range(64 - _BITS, -1, -_BITS) if shares else ():
        counts = {key: np.zeros(1 << _BITS, np.int64) for key in prefixes}
        for rows in batches():
            for name in shares:
                keys = _sortable(rows[name].to_numpy(zero_copy_only=False))
                for share in shares[name]:
                    inside = keys if not ranks else keys[keys >> np.uint64(shift + _BITS) == prefixes[name, share]]
                    digits = (inside >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
                    counts[name, share] += np.bincount(digits.astype(np.int64), minlength=1 << _BITS)
        if not ranks:
            ranks = {(name, share): int(np.rint(share * (counts[name, share].sum() - 1))) for name, share in prefixes}
        for key, rank in ranks.items():
            ends = np.cumsum(counts[key])
            digit = int(np.searchsorted(ends, rank, "right"))
            ranks[key] = rank - int(ends[digit] - counts[key][digit])
            prefixes[key] = prefixes[key] << np.uint64(_BITS) | np.uint64(digit)
    return {name: (_number(prefixes[name, low]), _number(prefixes[name, high])) for name, (low, high) in shares.items()}


def _sortable(numbers: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return unsigned integers in the order of the numbers, NaN left out."""
    bits = (numbers[~np.isnan(numbers)] + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _number(key: np.uint64) -> float:
    return float(np.where(key & _SIGN, key ^ _SIGN, ~key).astype(np.uint64).view(np.float64))
