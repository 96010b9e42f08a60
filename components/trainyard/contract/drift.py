"""Drift: how far new data have moved from those that a model was trained on, judged by their statistics alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainyard.contract.artifacts import Document, Part, Split
from trainyard.spec.drift_bounds import Bounds

_LISTED = 3


class TopValue(Part):
    """A text and how often it was seen."""

    value: str
    count: int


class FeatureStatistics(Part):
    """Of one feature in one split: a number's spread, or a text's most frequent values (top); missing ones are not in count."""

    count: int
    missing: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    distinct: int | None = None
    top: list[TopValue] | None = None


class Statistics(Document):
    """What preprocess counted: examples by split, classes by name and split, features by name and split."""

    file: ClassVar[str] = "statistics.json"

    examples: dict[Split, int]
    classes: dict[str, dict[Split, int]]
    features: dict[str, dict[Split, FeatureStatistics]]


def drift(before: Statistics, now: Statistics, bounds: Bounds) -> list[str]:
    """Return one sentence for each way in which `now`'s training split left the `bounds` around `before`'s, or [].

    A feature that came, went or changed its type counts always. A category's frequency is compared over the most
    frequent values of both, a new value with 0. Source: the L-infinity distance between the frequencies of a category is
    the comparator of TensorFlow Data Validation, https://www.tensorflow.org/tfx/data_validation/get_started
    """
    found = []
    for name in sorted(before.features.keys() | now.features.keys()):
        old, new = (each.features.get(name, {}).get("train") for each in (before, now))
        if old is None or new is None:
            found.append(f"{name}: {'is new' if old is None else 'is gone'}")
        elif (old.top is None) != (new.top is None):
            found.append(f"{name}: was a {_kind(old)}, is a {_kind(new)}")
        else:
            found += _moved(name, old, new, bounds)
    classes = (_Shares.of_classes(before), _Shares.of_classes(now))
    return found + _frequencies("label", *classes, bounds.max_frequency_change)


@dataclass(frozen=True)
class _Shares:
    """How many of `total` examples have each value."""

    counts: dict[str, int]
    total: int

    @classmethod
    def of_classes(cls, statistics: Statistics) -> _Shares:
        counts = {name: split.get("train", 0) for name, split in statistics.classes.items()}
        return cls(counts, sum(counts.values()))

    def of(self, value: str) -> float:
        return self.counts.get(value, 0) / max(1, self.total)


def _kind(statistics: FeatureStatistics) -> str:
    return "number" if statistics.top is None else "text"


def _moved(name: str, old: FeatureStatistics, new: FeatureStatistics, bounds: Bounds) -> list[str]:
    found = []
    missing = [each.missing / max(1, each.count + each.missing) for each in (old, new)]
    if abs(missing[1] - missing[0]) > bounds.max_missing_change:
        found.append(f"{name}: {missing[0]:.1%} missing before, {missing[1]:.1%} now")
    if old.top is not None and new.top is not None:
        before, now = (
            _Shares({each.value: each.count for each in top}, statistics.count)
            for top, statistics in ((old.top, old), (new.top, new))
        )
        return found + _frequencies(name, before, now, bounds.max_frequency_change)
    if old.mean is not None and new.mean is not None:
        shift = abs(new.mean - old.mean)
        # A column that held one value has no spread: any other value is then a drift.
        if shift > bounds.max_mean_shift * (old.std or 0.0):
            found.append(f"{name}: mean {old.mean:g} before, {new.mean:g} now (standard deviation {old.std or 0:g})")
    return found


def _frequencies(name: str, old: _Shares, new: _Shares, bound: float) -> list[str]:
    moved = sorted(value for value in {**old.counts, **new.counts} if abs(new.of(value) - old.of(value)) > bound)
    if not moved:
        return []
    listed = ", ".join(f"'{value}' {old.of(value):.1%} → {new.of(value):.1%}" for value in moved[:_LISTED])
    more = f" and {len(moved) - _LISTED} more" if len(moved) > _LISTED else ""
    return [f"{name}: {listed}{more}"]
