"""Values that lie far from all others: stand-ins for missing ones, such as -9999, and outliers that flatten a scale."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.contract.document import FrozenModel
from trainyard.contract.statistics.drift import Histogram

_SHARE = 0.005  # chosen: the least share of values that occur often
_LEAST = 5  # chosen: the least count of such a value
_DISTINCT = 3  # chosen: different other values, because those of two say nothing of their spread
_LIMIT = 3  # chosen: stand-ins on one side, such as 9997, 9998 and 9999
_CENTER = 0.05, 0.95  # chosen: the quantiles between which most values lie
_FLAT = 0.1  # chosen: deviations that most values span, below which a network hardly tells them apart


class FarValues(FrozenModel):
    """Values that lie farther from the others than these lie apart.

    counts: of those that occur often, by value, as of a stand-in for a missing one; {} if there are none. low, high:
    between them lie the others, without such values nine tenths of them. deviations: the standard deviations that low
    and high are apart.
    """

    counts: dict[float, int]
    low: float
    high: float
    deviations: float


def far_values(histogram: Histogram, std: float, known: Mapping[float, int]) -> FarValues | None:
    """Return the values at the ends of `histogram` that may stand for a missing one, or that flatten all others.

    known: values that occur, with their counts, by which a bin gets its value. None if there are no far values.
    """
    bins = list(zip(histogram.starts, histogram.counts, strict=True))
    least = max(_LEAST, _SHARE * sum(histogram.counts))
    found: dict[float, int] = {}
    for is_low in (True, False, True):  # a far value at the other end hides a nearer one
        ordered = bins if is_low else bins[::-1]
        for size in range(min(_LIMIT, len(ordered) - _DISTINCT), 0, -1):
            ends, rest = ordered[:size], ordered[size:]
            gap = abs(rest[0][0] - ends[-1][0])
            values = [_value(start, histogram, known) for start, _ in ends]
            if all(count >= least for _, count in ends) and gap > max(_spread(rest), abs(ends[0][0] - ends[-1][0])):
                found |= {value: count for value, (_, count) in zip(values, ends, strict=True) if value is not None}
                bins = rest if is_low else rest[::-1]
                break
    if found:
        low, high = bins[0][0], bins[-1][0]
        return FarValues(counts=found, low=low, high=high, deviations=(high - low) / std)
    low, high = (histogram.quantile(share, known) for share in _CENTER)
    if not std or low == high or high - low >= _FLAT * std:
        return None
    return FarValues(counts={}, low=low, high=high, deviations=(high - low) / std)


def _spread(bins: list[tuple[float, int]]) -> float:
    """Return the distance between the 1 % and the 99 % quantile of the values in `bins`."""
    ordered = sorted(bins)
    total, below, ends = sum(count for _, count in ordered), 0, list[float]()
    for start, count in ordered:
        below += count
        while len(ends) < 2 and below > (0.01, 0.99)[len(ends)] * total:
            ends.append(start)
    return (ends[1] if len(ends) > 1 else ordered[-1][0]) - ends[0]


def _value(start: float, histogram: Histogram, known: Mapping[float, int]) -> float | None:
    """Return the value that occurs most often in the bin that starts at `start`, None if none is known."""
    inside = [value for value in known if start <= value <= start + 2.0**histogram.exponent]
    return max(inside, key=lambda value: known[value], default=None)
