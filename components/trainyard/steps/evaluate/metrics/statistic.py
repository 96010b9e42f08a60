"""A metric as a function of weights: how often each example counts in a resample of the bootstrap.

    examples (n,)      columns (n, k)          sums (resamples, k)          metric (resamples,)
    labels, outputs -> what each example -> weights @ columns of all -> value(sums)
                       adds to the sums    resamples at once

The metric itself is what the function gives for the examples' own weights. Predictions are whole in memory; only the
columns of more than `MOST_WHOLE` examples are made in blocks, and drawn in groups, whose sums are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.steps.evaluate.metrics.predictions import Floats

MOST_WHOLE = 50_000
"""Examples whose columns are in memory at once; of more, sums are made in blocks. Chosen."""

_BLOCK = 1 << 16  # examples; chosen

Resampled = Callable[[Floats], Floats]
"""From weights (resamples, n), of examples or of groups of them, to the metric of each resample (resamples,)."""


class Resampleable(Protocol):
    """A metric of examples that can be drawn one by one, or in groups."""

    def __call__(self, weights: Floats, /) -> Floats:
        """Return the metric of each resample; weights: (resamples, n), of examples."""

    def in_groups(self, groups: NDArray[np.uint16], count: int, /) -> Resampled:
        """Return it as a function of weights (resamples, count) of groups; groups: (n,) that of each example."""


@dataclass(frozen=True)
class Statistic:
    """A metric of `count` examples that depends on them through sums alone.

    columns: the columns of the examples in a slice, each (n,) or (n, k). value: the metric of each resample
    (resamples,), from the sums of the weights (resamples,) and of each column by the weights, (resamples,) or
    (resamples, k). sample_weights: (n,), None without weights. is_change: the sums of the first column
    are differences from those by the sample weights.
    """

    count: int
    columns: Callable[[slice], tuple[Floats, ...]]
    value: Callable[..., Floats]
    sample_weights: Floats | None = None
    is_change: bool = False

    def __call__(self, weights: Floats) -> Floats:
        """Return the metric of each resample (resamples,); weights: how often each holds each example, (resamples, n).

        It is NaN if it is undefined.
        """
        if self.sample_weights is not None:
            weights = weights * self.sample_weights
        sums = [weights @ column for column in self._whole]
        if self.is_change:
            sums[0] = (weights - (1.0 if self.sample_weights is None else self.sample_weights)) @ self._whole[0]
        return self.value(weights.sum(axis=1), *sums)

    def at_own_weights(self) -> Floats:
        """Return the metric of the examples themselves, (1,)."""
        if self.count <= MOST_WHOLE:
            return self(np.ones((1, self.count)))
        return self.in_groups(np.zeros(self.count, np.uint16), 1)(np.ones((1, 1)))

    def in_groups(self, groups: NDArray[np.uint16], count: int) -> Resampled:
        """Return it as a function of weights (resamples, count) of groups; groups: (n,) that of each example."""
        blocks = [slice(first, first + _BLOCK) for first in range(0, self.count, _BLOCK)]
        total, sums = np.zeros(count), list[Floats]()
        for block in blocks:
            sample_weights = None if self.sample_weights is None else self.sample_weights[block]
            total = total + np.bincount(groups[block], sample_weights, count)
            parts = [_by_group(groups[block], column, sample_weights, count) for column in self.columns(block)]
            sums = [before + part for before, part in zip(sums, parts, strict=True)] if sums else parts

        def value(weights: Floats) -> Floats:
            drawn = [weights @ part for part in sums]
            if self.is_change:
                drawn[0] = (weights - 1) @ sums[0]
            return self.value(weights @ total, *drawn)

        return value

    @cached_property
    def _whole(self) -> tuple[Floats, ...]:
        return self.columns(slice(None))


def _by_group(groups: NDArray[np.uint16], column: Floats, sample_weights: Floats | None, count: int) -> Floats:
    parts = column.reshape(len(column), -1).T
    weighed = (part if sample_weights is None else part * sample_weights for part in parts)
    sums = [np.bincount(groups, part, count) for part in weighed]
    result: Floats = np.stack(sums, axis=1, dtype=np.float64).reshape(count, *column.shape[1:])
    return result


def mean_of(statistics: Sequence[Statistic]) -> Statistic:
    """Return the mean of metrics of the same kind of the same examples."""
    first = statistics[0]

    def columns(rows: slice) -> tuple[Floats, ...]:
        return tuple(column for statistic in statistics for column in statistic.columns(rows))

    def value(total: Floats, *sums: Floats) -> Floats:
        each = len(sums) // len(statistics)
        parts = [sums[at : at + each] for at in range(0, len(sums), each)]
        result: Floats = np.mean(
            [statistic.value(total, *part) for statistic, part in zip(statistics, parts, strict=True)], axis=0
        )
        return result

    return Statistic(first.count, columns, value, first.sample_weights)
