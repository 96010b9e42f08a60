"""Confidence intervals of metrics over resampled examples, bias-corrected and accelerated (BCa).

Measured coverage, beside other methods: docs/decisions/0048-intervals-are-corrected-for-skew.md.
Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from trainyard.contract.artifacts.gate import Interval
from trainyard.spec.gates import Task
from trainyard.steps.evaluate.metrics.predictions import Floats
from trainyard.steps.evaluate.metrics.registry import Answers, Metric, each_statistic, metrics_of, too_few
from trainyard.steps.evaluate.metrics.statistic import MOST_WHOLE, Resampleable, Resampled

CONFIDENCE = 0.95

CELLS = 2_000_000
"""Weights held at once, 16 MB: chosen to stay in a processor's cache and out of small machines' way."""

GROUPS = 2000
"""Groups of a set that is not drawn example by example. Chosen: the width of an interval is then off by 1.6 %, which is
1 / sqrt(2 * GROUPS), and by more of itself because of 1,000 resamples."""

BLOCKS = 200
"""Parts of the examples that are left out in turn. Chosen: the acceleration is then off by 0.4 / BLOCKS."""


@dataclass(frozen=True)
class Resamples:
    """A metric of the examples, of each resample (resamples,), and of the examples without each block (blocks,)."""

    value: float
    draws: Floats
    without_block: Floats

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the BCa interval over the defined draws; None without a defined draw.

        Its ends are percentiles of the draws, moved by the draws' median bias and by the skewness of what single
        examples change.
        """
        normal, draws = NormalDist(), self.draws[np.isfinite(self.draws)]
        if len(draws) == 0:
            return None
        is_equal = np.isclose(draws, self.value, rtol=1e-9, atol=0)
        below = np.where(is_equal, 0.5, draws < self.value).mean()
        bias = normal.inv_cdf(float(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws))))
        left = self.without_block[np.isfinite(self.without_block)]
        moves = left.mean() - left if len(left) else left
        spread = float(np.square(moves).sum())
        acceleration = float((moves**3).sum()) / (6 * spread**1.5) if spread else 0.0
        ends = (bias + normal.inv_cdf(tail) for tail in ((1 - confidence) / 2, (1 + confidence) / 2))
        return _percentiles(draws, [normal.cdf(bias + end / max(1 - acceleration * end, 1e-6)) for end in ends])


def intervals(
    task: Task,
    answers: Answers,
    metrics: Mapping[str, float],
    resamples: int,
    seed: int,
    confidence: float = CONFIDENCE,
) -> dict[str, Interval]:
    """Return the interval of each of `metrics`, which `measure` gave for `answers`; equal for equal seeds.

    A metric whose resamples all agree says no interval, unless it is a share.
    """
    drawn = resample(each_statistic(task, answers, metrics), len(answers), resamples, seed)
    return _intervals(task, answers, metrics, drawn, confidence)


def measure_with_intervals(
    task: Task, answers: Answers, resamples: int, seed: int
) -> tuple[dict[str, float], dict[str, Interval]]:
    """Return the metrics of `measure` and their `intervals`, from statistics that are made once."""
    drawn = resample(each_statistic(task, answers), len(answers), resamples, seed)
    metrics = {name: each.value for name, each in drawn.items() if np.isfinite(each.value)}
    return metrics, _intervals(task, answers, metrics, drawn, CONFIDENCE)


def _intervals(
    task: Task, answers: Answers, metrics: Mapping[str, float], drawn: Mapping[str, Resamples], confidence: float
) -> dict[str, Interval]:
    known = metrics_of(task, answers)
    bounds = {
        name: _interval(known[name], answers, metrics[name], each, confidence)
        for name, each in drawn.items()
        if name in metrics
    }
    return {name: interval for name, interval in bounds.items() if interval is not None}


def differences(
    task: Task,
    metrics: Collection[str],
    candidate: Answers,
    rival: Answers,
    resamples: int,
    seed: int,
    confidence: float = CONFIDENCE,
) -> dict[str, Interval]:
    """Return the interval of candidate - rival of each of `metrics`, over the same examples in the same order.

    Each resample draws the same examples for both, so examples that are hard for both do not widen the interval.
    Metrics that are undefined in every resample are left out, and those that need more examples.
    """
    known = metrics_of(task, candidate)
    metrics = [name for name in metrics if name in known and not too_few(known[name], candidate)]
    ours, theirs = (
        resample(each_statistic(task, answers, metrics), len(candidate), resamples, seed)
        for answers in (candidate, rival)
    )
    both = ours.keys() & theirs.keys()
    paired = {name: percentiles(ours[name].draws - theirs[name].draws, confidence) for name in both}
    return {name: interval for name, interval in sorted(paired.items()) if interval is not None}


def resample(
    statistics: Iterable[tuple[str, Resampleable]], examples: int, resamples: int, seed: int
) -> dict[str, Resamples]:
    """Return each statistic of `resamples` sets of `examples` drawn with replacement, by name.

    More than `MOST_WHOLE` examples are drawn in `GROUPS` random groups of equal size: the sums of a group are those of
    independent examples too, so the intervals estimate the same, from sums that are made once.
    """
    generator = np.random.default_rng(seed)
    functions: dict[str, Resampled]
    if examples <= MOST_WHOLE:
        functions, units = dict(statistics), examples
    else:
        groups, units = (generator.permutation(examples) % GROUPS).astype(np.uint16), GROUPS
        functions = {name: statistic.in_groups(groups, GROUPS) for name, statistic in statistics}
    parts: dict[str, list[Floats]] = {name: [] for name in functions}
    for weights in _weights(generator, resamples, units):
        for name, function in functions.items():
            parts[name].append(function(weights))
    drawn = {name: np.concatenate(part) for name, part in parts.items()}
    return {
        name: Resamples(float(values[0]), values[1 : 1 + resamples], values[1 + resamples :])
        for name, values in drawn.items()
    }


def percentiles(draws: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the central share `confidence` of `draws`, undefined ones left out; None if none is left."""
    defined = draws[np.isfinite(draws)]
    return _percentiles(defined, [(1 - confidence) / 2, (1 + confidence) / 2]) if len(defined) else None


def _percentiles(draws: Floats, levels: list[float]) -> Interval:
    low, high = np.quantile(draws, levels)
    return Interval(low=float(low), high=float(high))


def unbiased(draws: Floats, value: float) -> Floats:
    """Return the `draws` of a metric of at least 0 without what resampling adds to its `value`.

    The metric of a resample is larger than that of the examples by about as much as the examples' is than the truth's.
    """
    result: Floats = np.maximum(draws - (np.nanmean(draws) - value), 0)
    return result


def _weights(generator: np.random.Generator, resamples: int, units: int) -> Iterator[Floats]:
    """Yield the weights (rows, units) of the units themselves, of `resamples` of them, and without each block."""
    yield np.ones((1, units))
    capacity = max(1, CELLS // units)
    for first in range(0, resamples, capacity):
        rows = min(capacity, resamples - first)
        drawn = generator.integers(0, units, (rows, units)) + np.arange(rows)[:, None] * units
        yield np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
    count = min(BLOCKS, units)
    blocks = generator.permutation(units) % count
    for first in range(0, count, capacity):
        yield (blocks != np.arange(first, min(first + capacity, count))[:, None]).astype(np.float64)


def _interval(
    metric: Metric[Any], answers: Answers, value: float, drawn: Resamples, confidence: float
) -> Interval | None:
    if metric.trials and value in (0, 1):
        return _all_alike(value, metric.trials(answers), confidence)
    if too_few(metric, answers):
        return None
    # A resample repeats examples, which moves the accuracy of a bin away from its confidence.
    draws = unbiased(drawn.draws, value) if metric.is_biased else drawn.draws
    interval = drawn.interval(confidence) if metric.is_corrected else percentiles(draws, confidence)
    return None if interval is not None and interval.low == interval.high else interval


def _all_alike(value: float, examples: float, confidence: float) -> Interval:
    """Return the exact interval of a share of 0 or 1: its resamples all agree, and do not say how sure it is.

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, Biometrika 26, 1934.
    """
    margin = 1 - ((1 - confidence) / 2) ** (1 / examples)
    return Interval(low=1 - margin, high=1.0) if value else Interval(low=0.0, high=margin)
