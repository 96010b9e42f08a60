"""Counts and statistics of a split, gathered in one pass and mergeable, so that any number of workers can share it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from trainyard.contract.artifacts import Part
from trainyard.steps.preprocess.readers.records import Record

BUCKETS = 1 << 16  # chosen: shards differ by less than 1 in 65,536 of a split
_DISTINCT = 10_000  # chosen: values a feature whose counts are kept exactly
_TOP = 20


@dataclass
class Numbers:
    """Running mean and spread. Source: Chan, Golub, LeVeque (1979), the pairwise update of the sum of squares."""

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float) -> None:
        """Count `value`, NaN as missing."""
        if math.isnan(value):
            self.missing += 1
        else:
            self.merge(Numbers(1, 0, value, 0.0, value, value))

    def merge(self, other: Numbers) -> None:
        """Count all that `other` counted."""
        self.missing += other.missing
        if other.count:
            count = self.count + other.count
            delta = other.mean - self.mean
            self.mean += delta * other.count / count
            self.squares += other.squares + delta * delta * self.count * other.count / count
            self.count = count
            self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def document(self) -> dict[str, float | int | None]:
        """Return the statistics to six digits: the rest depends on the order of the additions."""
        std = math.sqrt(self.squares / self.count) if self.count else None
        values = {"mean": self.mean, "std": std, "min": self.low, "max": self.high} if self.count else {}
        rounded = {name: float(f"{value:.6g}") for name, value in values.items() if value is not None}
        return {"count": self.count, "missing": self.missing, **rounded}


@dataclass
class Texts:
    """How often each text was seen; beyond 10,000 different ones the rarest are forgotten."""

    missing: int = 0
    values: Counter[str] = field(default_factory=Counter)

    def add(self, value: str) -> None:
        """Count `value`, the empty text as missing."""
        if value:
            self.values[value] += 1
            self._forget()
        else:
            self.missing += 1

    def merge(self, other: Texts) -> None:
        """Count all that `other` counted."""
        self.missing += other.missing
        self.values.update(other.values)
        self._forget()

    def document(self) -> dict[str, Any]:
        """Return the counts and the most frequent values, equal counts in the order of the values."""
        top = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))[:_TOP]
        return {
            "count": self.values.total(),
            "missing": self.missing,
            "distinct": len(self.values),
            "top": [{"value": value, "count": count} for value, count in top],
        }

    def _forget(self) -> None:
        if len(self.values) > 2 * _DISTINCT:
            self.values = Counter(dict(self.values.most_common(_DISTINCT)))


class SplitSummary(Part):
    """What is known of one split.

    buckets counts the examples by the first 16 bits of their order key. first is the (source, height, width) of the
    image that comes first by name. digests is the sum of the records' digests modulo 2^256, which no order changes.
    """

    examples: int = 0
    labels: dict[str, int] = {}
    statistics: dict[str, dict[str, Any]] = {}
    buckets: dict[int, int] = {}
    first: tuple[str, int, int] | None = None
    digests: str = "0"


@dataclass
class Summary:
    """A `SplitSummary` in the making."""

    examples: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    features: dict[str, Numbers | Texts] = field(default_factory=dict)
    buckets: Counter[int] = field(default_factory=Counter)
    first: tuple[str, int, int] | None = None
    digests: int = 0


class Summarize(beam.CombineFn):  # type: ignore[misc]
    """Combines (record, order key, digest) into a `Summary`."""

    def __init__(self, target: str | None) -> None:
        """`target` names the number to predict, for regression."""
        self._target = target

    def create_accumulator(self) -> Summary:
        """Return a summary of nothing."""
        return Summary()

    def add_input(self, summary: Summary, element: tuple[Record, str, int]) -> Summary:
        """Return `summary` with one record more."""
        record, order, digest = element
        summary.examples += 1
        summary.digests = (summary.digests + digest) % 2**256
        summary.buckets[bucket(order)] += 1
        if self._target is not None:
            _numbers(summary, self._target).add(float(record.label))
        else:
            summary.labels[record.label] += 1
        for name, value in (*record.raw.items(), *record.measures.items()):
            if isinstance(value, str):
                _texts(summary, name).add(value)
            elif not isinstance(value, bytes):
                _numbers(summary, name).add(value)
        if record.measures:
            size = (record.source, int(record.measures["height"]), int(record.measures["width"]))
            summary.first = min(summary.first or size, size)
        return summary

    def merge_accumulators(self, summaries: Iterable[Summary]) -> Summary:
        """Return one summary of all."""
        merged = Summary()
        for summary in summaries:
            merged.examples += summary.examples
            merged.labels.update(summary.labels)
            merged.buckets.update(summary.buckets)
            merged.digests = (merged.digests + summary.digests) % 2**256
            merged.first = min(filter(None, (merged.first, summary.first)), default=None)
            for name, statistics in summary.features.items():
                if isinstance(statistics, Numbers):
                    _numbers(merged, name).merge(statistics)
                else:
                    _texts(merged, name).merge(statistics)
        return merged

    def extract_output(self, summary: Summary) -> SplitSummary:
        """Return the summary as its document."""
        return SplitSummary(
            examples=summary.examples,
            labels=dict(sorted(summary.labels.items())),
            statistics={name: statistics.document() for name, statistics in sorted(summary.features.items())},
            buckets=dict(sorted(summary.buckets.items())),
            first=summary.first,
            digests=f"{summary.digests:064x}",
        )


def bucket(order: str) -> int:
    """Return which of the `BUCKETS` equal ranges of order keys `order` (in hexadecimal) lies in."""
    return int(order[:4], 16)


def _numbers(summary: Summary, name: str) -> Numbers:
    statistics = summary.features.setdefault(name, Numbers())
    assert isinstance(statistics, Numbers)  # noqa: S101 - a feature's type is the recipe's
    return statistics


def _texts(summary: Summary, name: str) -> Texts:
    statistics = summary.features.setdefault(name, Texts())
    assert isinstance(statistics, Texts)  # noqa: S101 - a feature's type is the recipe's
    return statistics
