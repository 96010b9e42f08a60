"""Statistics of columns, and drift: how far new data have moved from those that a model was trained on."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from trainyard.contract.document import Document, FrozenModel, Split
from trainyard.errors import listed
from trainyard.spec.schedule import LABEL, Bounds
from trainyard.values.zones import DEFAULT_ZONE

MOST_UNKNOWN = 0.1
"""The share of a column's values that may be unknown without a warning; chosen."""

_FLOOR = 1e-4  # chosen: the share that an unseen value counts with in PSI, which is infinite at 0
_LISTED = 3
_LONGEST_VALUE = 40  # characters; chosen: names and codes are shorter, what a person wrote is longer
_GROUPS = 10  # chosen, as is usual for the population stability index
EXACT = -200
"""The exponent of bins that hold one value each. Chosen: below any difference that a float32 near 1e-38 can have."""


class Histogram(FrozenModel):
    """The counts of non-empty bins: one starts at each of `starts` and is 2**exponent wide.

    starts are in order. With the exponent `EXACT` they are the values themselves.
    """

    exponent: int
    starts: list[float]
    counts: list[int]

    def coarsened(self, exponent: int) -> Histogram:
        """Return the same counts in bins of 2**exponent, which must not be finer."""
        counts: dict[float, int] = {}
        for start, count in zip(self.starts, self.counts, strict=True):
            wide = math.ldexp(math.floor(math.ldexp(start, -exponent)), exponent)
            counts[wide] = counts.get(wide, 0) + count
        return Histogram(exponent=exponent, starts=list(counts), counts=list(counts.values()))

    def limited(self, limit: int) -> Histogram:
        """Return the same counts in at most `limit` bins."""
        if len(self.starts) <= limit:
            return self
        # Bins of a `most`-th of the range are coarse enough; finer ones may be, if there are gaps.
        exponent = max(self.exponent, math.frexp((self.starts[-1] - self.starts[0]) / (limit - 1))[1] + 1)
        limited = self.coarsened(exponent)
        while exponent > self.exponent and len((finer := self.coarsened(exponent - 1)).starts) <= limit:
            exponent, limited = exponent - 1, finer
        return limited

    def quantile(self, share: float, frequent: Mapping[float, int] = MappingProxyType({})) -> float:
        """Return about the value that `share` of the values do not exceed.

        frequent: the counts of values that occur often, which are exact. The other values of a bin count as evenly
        spread.
        """
        is_exact, width = self.exponent <= EXACT, 2.0**self.exponent
        ordered, target, below = sorted(frequent), share * sum(self.counts), 0
        for start, count in zip(self.starts, self.counts, strict=True):
            if below + count >= target:
                if is_exact:
                    return start
                inside = ordered[bisect_left(ordered, start) : bisect_left(ordered, start + width)]
                return _within(start, width, count, target - below, {value: frequent[value] for value in inside})
            below += count
        return self.starts[-1] + (0.0 if is_exact else width) if self.starts else 0.0

    def edges(self, groups: int) -> list[float]:
        """Return the inner boundaries of at most `groups` groups of about equal counts."""
        edges: list[float] = []
        total, below = sum(self.counts), 0
        for start, count in zip(self.starts, self.counts, strict=True):
            if below and below >= (len(edges) + 1) * total / groups:
                edges.append(start)
            below += count
        return edges[: groups - 1]

    def grouped(self, edges: Sequence[float]) -> list[int]:
        """Return the counts of the groups that `edges` separate."""
        counts = [0] * (len(edges) + 1)
        for start, count in zip(self.starts, self.counts, strict=True):
            counts[bisect_right(edges, start)] += count
        return counts


def _within(start: float, width: float, count: float, target: float, frequent: Mapping[float, int]) -> float:
    """Return the quantile in a bin that holds `count` values, `target` of them up to the quantile."""
    spread = max(0.0, count - sum(frequent.values()))
    left, low = max(0.0, target), start
    for value, times in frequent.items():
        between = spread * (value - low) / width
        if left < between:
            break
        if left <= between + times:
            return value
        left, low = left - between - times, value
    return min(start + width, low + left / spread * width) if spread else low


def aligned(first: Histogram, second: Histogram) -> tuple[Histogram, Histogram]:
    """Return both with bins of the same width."""
    exponent = max(first.exponent, second.exponent)
    return first.coarsened(exponent), second.coarsened(exponent)


class UnknownValues(FrozenModel):
    """Cells of one category or text: values, those that training never saw (no word of a text), and missing ones.

    missing_is_unknown: training never saw a missing one either.
    """

    values: int
    unknown: int
    missing: int
    missing_is_unknown: bool = False

    def warning(self, name: str) -> str | None:
        """Return a warning if the share of unknown values in column `name` exceeds `MOST_UNKNOWN`."""
        cells = self.values + self.missing
        sentences = []
        if self.unknown > MOST_UNKNOWN * self.values:
            sentences.append(f"{self.unknown:,} of {self.values:,} values of '{name}' are unknown to the model.")
        if self.missing_is_unknown and self.missing > MOST_UNKNOWN * cells:
            sentences.append(f"{self.missing:,} of {cells:,} cells of '{name}' are missing, and none was in training.")
        return " ".join(sentences) or None


class Distance(FrozenModel):
    """Between the shares of the values in two data sets.

    l_infinity: the largest change of any one share, 0 to 1. Source: TensorFlow Data Validation,
    https://www.tensorflow.org/tfx/data_validation/get_started
    jensen_shannon: the mean of both Kullback-Leibler divergences from the middle, in bits, 0 to 1. Source: Lin (1991),
    https://doi.org/10.1109/18.61115
    psi: the population stability index, the symmetric Kullback-Leibler divergence in nats; by a rule of thumb of credit
    scoring 0.1 is small and 0.25 is large. Source: Siddiqi (2006), Credit Risk Scorecards.
    """

    l_infinity: float
    jensen_shannon: float
    psi: float


def distance(before: Sequence[float], now: Sequence[float]) -> Distance:
    """Return the distance between the counts of the same values, in the same order."""
    old, new = _shares(before), _shares(now)
    middle = [(p + q) / 2 for p, q in zip(old, new, strict=True)]
    apart = (_divergence(old, middle) + _divergence(new, middle)) / 2
    floored = [(max(p, _FLOOR), max(q, _FLOOR)) for p, q in zip(old, new, strict=True)]
    return Distance(
        l_infinity=_rounded(max((abs(q - p) for p, q in zip(old, new, strict=True)), default=0.0)),
        jensen_shannon=_rounded(max(0.0, apart)),
        psi=_rounded(sum((q - p) * math.log(q / p) for p, q in floored)),
    )


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _divergence(shares: Sequence[float], reference: Sequence[float]) -> float:
    return sum(p * math.log2(p / q) for p, q in zip(shares, reference, strict=True) if p)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


class TopValue(FrozenModel):
    """A text and how often it occurs."""

    value: str
    count: int


def is_common(value: str, count: int) -> bool:
    """Return True if statistics may hold the text `value` of `count` rows: at most 40 characters, in two or more rows.

    Rarer and longer ones may be personal data.
    """
    return count > 1 and len(value) <= _LONGEST_VALUE


def top_values(counts: Mapping[str, int], limit: int | None = None) -> list[TopValue]:
    """Return the `limit` most frequent texts, all by default; equal counts in the order of the texts."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return [TopValue(value=value, count=count) for value, count in ordered]


class FeatureStatistics(FrozenModel):
    """Of one feature in one split: a number's spread and histogram, or a text's most frequent values (top).

    count leaves the missing ones out. The values of a date are its days; a profile also has the spread of them as
    numbers.

    words: how many words a column of texts has; top and distinct are then those of words, mean, std, min and max those
    of the texts' lengths in characters.
    """

    count: int
    missing: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    distinct: int | None = None
    words: int | None = None
    top: list[TopValue] | None = None
    histogram: Histogram | None = None

    @property
    def has_values(self) -> bool:
        """True if the values themselves were counted, not only their number."""
        return self.count > 0 and (self.top is not None or self.mean is not None)


class Statistics(Document):
    """The counts of preprocess: examples by split, classes by name and split, features by name and split.

    time_zone: in which the days of times with an offset were counted.
    """

    file: ClassVar[str] = "statistics.json"

    examples: dict[Split, int]
    classes: dict[str, dict[Split, int]]
    features: dict[str, dict[Split, FeatureStatistics]]
    time_zone: str = DEFAULT_ZONE


class Movement(FrozenModel):
    """The drift of one feature, or of the classes as `label`, between two data sets.

    shift: of the means, in standard deviations before. missing: the shares before and now. unknown: the share of the
    values of a text that did not occur before, at least; None if too few of those before are known to say. sentences:
    what left the bounds, or [].
    """

    feature: str
    distance: Distance | None
    shift: float | None
    missing: tuple[float, float] | None
    unknown: float | None = None
    sentences: list[str]


def drift(before: Statistics, now: Statistics, bounds: Bounds) -> list[str]:
    """Return one sentence for each way in which `now`'s training split left the `bounds` around `before`'s, or []."""
    return [sentence for movement in compare(before, now, bounds) for sentence in movement.sentences]


def compare(before: Statistics, now: Statistics, bounds: Bounds) -> list[Movement]:
    """Return the drift of each feature of the training split by name, with the classes last.

    A feature that came, went or changed its type left the bounds always. If one side has no values, only the share of
    missing ones is compared. A category's frequency is compared over the most frequent values of both that are common
    (`is_common`), a new value with 0, and over all others as one. A number's values are compared in the tenths of
    those before.
    """
    moved = []
    for name in sorted(before.features.keys() | now.features.keys()):
        old, new = (statistics.features.get(name, {}).get("train") for statistics in (before, now))
        if old is None or new is None:
            moved.append(_changed(name, "is new" if old is None else "is gone"))
        elif old.has_values and new.has_values and (old.top is None) != (new.top is None):
            moved.append(_changed(name, f"was a {_kind(old)}, is a {_kind(new)}"))
        else:
            moved.append(_movement(name, old, new, bounds.for_feature(name)))
    if before.classes or now.classes:
        moved.append(_moved_classes(before, now, bounds.for_feature(LABEL)))
    return moved


@dataclass(frozen=True)
class _Shares:
    """The counts of values among `total` examples; hidden: how many other values there are."""

    counts: dict[str, int]
    total: int
    hidden: int = 0

    @classmethod
    def from_classes(cls, statistics: Statistics) -> _Shares:
        counts = {name: split.get("train", 0) for name, split in statistics.classes.items()}
        return cls(counts, sum(counts.values()))

    @classmethod
    def from_top(cls, top: list[TopValue], statistics: FeatureStatistics) -> _Shares:
        total = statistics.count if statistics.words is None else statistics.words
        counts = {entry.value: entry.count for entry in top if is_common(entry.value, entry.count)}
        distinct = total if statistics.distinct is None else statistics.distinct
        return cls(counts, total, max(0, distinct - len(counts)))

    def share(self, value: str) -> float:
        return self.counts.get(value, 0) / max(1, self.total)

    def at_most(self, value: str) -> float:
        """The share of `value`, or the most that it can be if it is not among the most frequent ones."""
        if value in self.counts or not self.hidden:
            return self.share(value)
        return min(self.counts.values(), default=0) / max(1, self.total)


def _changed(name: str, how: str) -> Movement:
    return Movement(feature=name, distance=None, shift=None, missing=None, sentences=[f"{name}: {how}"])


def _kind(statistics: FeatureStatistics) -> str:
    return "number" if statistics.top is None else "text"


def _moved_classes(before: Statistics, now: Statistics, bounds: Bounds) -> Movement:
    old, new = _Shares.from_classes(before), _Shares.from_classes(now)
    apart = distance(*_text_shares(old, new))
    sentences = _frequencies(LABEL, old, new, bounds.max_frequency_change) + _out_of_bounds(LABEL, apart, bounds)
    return Movement(feature=LABEL, distance=apart, shift=None, missing=None, sentences=sentences)


def _movement(name: str, old: FeatureStatistics, new: FeatureStatistics, bounds: Bounds) -> Movement:
    missing = [feature.missing / max(1, feature.count + feature.missing) for feature in (old, new)]
    sentences = []
    if abs(missing[1] - missing[0]) > bounds.max_missing_change:
        sentences.append(f"{name}: {missing[0]:.1%} missing before, {missing[1]:.1%} now")
    shift, apart, unknown = None, None, None
    if (old.words is None) != (new.words is None) or not (old.has_values and new.has_values):
        return Movement(feature=name, distance=None, shift=None, missing=(missing[0], missing[1]), sentences=sentences)
    if old.top is not None and new.top is not None:
        before, now = _Shares.from_top(old.top, old), _Shares.from_top(new.top, new)
        apart = distance(*_text_shares(before, now))
        moved = _frequencies(name, before, now, bounds.max_frequency_change)
        sentences += moved
        values = new.count if new.words is None else new.words
        unseen = sorted((count for value, count in now.counts.items() if value not in before.counts), reverse=True)
        strange = sum(unseen[before.hidden :])  # as if each hidden value were one of the most frequent unseen ones
        if values and (strange or not before.hidden):
            unknown = float(f"{strange / values:.6g}")
            if not moved and unknown > bounds.max_frequency_change:
                least = "at least " if before.hidden or now.hidden else ""
                sentences.append(f"{name}: {least}{strange:,} of {values:,} values did not occur before")
    elif old.mean is not None and new.mean is not None:
        difference, std = abs(new.mean - old.mean), old.std or 0.0
        shift = float(f"{difference / std:.6g}") if std else None
        apart = _number_distance(old.histogram, new.histogram)
        # A column that held one value has no spread: any other value is then a drift.
        if difference > bounds.max_mean_shift * std:
            sentences.append(f"{name}: mean {old.mean:.12g} before, {new.mean:.12g} now (standard deviation {std:g})")
    sentences += _out_of_bounds(name, apart, bounds)
    return Movement(
        feature=name,
        distance=apart,
        shift=shift,
        missing=(missing[0], missing[1]),
        unknown=unknown,
        sentences=sentences,
    )


def _number_distance(old: Histogram | None, new: Histogram | None) -> Distance | None:
    """Return the distance over the tenths of `old`, None if either side was written by a version without tenths."""
    if old is None or new is None:
        return None
    before, now = aligned(old, new)
    edges = before.edges(_GROUPS)
    return distance(before.grouped(edges), now.grouped(edges))


def _text_shares(old: _Shares, new: _Shares) -> tuple[list[float], list[float]]:
    """Return the shares of the most frequent values of both, before and now; the last is that of all others.

    A value that is not among the most frequent ones of one data set is taken to be as frequent there as it can be.
    """
    values = sorted({**old.counts, **new.counts})
    before = [min(old.at_most(value), max(old.share(value), new.share(value))) for value in values]
    now = [min(new.at_most(value), max(old.share(value), new.share(value))) for value in values]
    return [*before, max(0.0, 1 - sum(before))], [*now, max(0.0, 1 - sum(now))]


def _out_of_bounds(name: str, apart: Distance | None, bounds: Bounds) -> list[str]:
    if apart is None:
        return []
    measures = (
        ("Jensen-Shannon divergence", apart.jensen_shannon, bounds.max_jensen_shannon),
        ("population stability index", apart.psi, bounds.max_psi),
    )
    return [
        f"{name}: {measure} {value:.3g}, more than {bound:g}"
        for measure, value, bound in measures
        if bound is not None and value > bound
    ]


def _frequencies(name: str, old: _Shares, new: _Shares, bound: float) -> list[str]:
    moved = sorted(value for value in {**old.counts, **new.counts} if abs(new.share(value) - old.share(value)) > bound)
    if not moved:
        before, now = _text_shares(old, new)
        if abs(now[-1] - before[-1]) > bound:
            return [f"{name}: other values {before[-1]:.1%} → {now[-1]:.1%}"]
        return []
    moves = [f"'{value}' {old.share(value):.1%} → {new.share(value):.1%}" for value in moved]
    return [f"{name}: {listed(moves, _LISTED)}"]
