"""Confidence intervals of metrics: percentile intervals over resampled examples.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    functions, units, generator = _functions(each_statistic(task, answers), len(answers), seed)
    values = {name: float(function(np.ones((1, units)))[0]) for name, function in functions.items()}
    metrics = {name: value for name, value in values.items() if np.isfinite(value)}
    drawn = _draw({name: functions[name] for name in metrics}, units, resamples, generator)
    return metrics, _intervals(task, answers, metrics, drawn, CONFIDENCE)


def _intervals(
    task: Task, answers: Answers, metrics: Mapping[str, float], drawn: Mapping[str, Floats], confidence: float
) -> dict[str, Interval]:
    known = metrics_of(task, answers)
    bounds = {name: _interval(known[name], answers, metrics[name], draws, confidence) for name, draws in drawn.items()}
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
    draws = [
        resample(each_statistic(task, answers, metrics), len(candidate), resamples, seed)
        for answers in (candidate, rival)
    ]
    both = draws[0].keys() & draws[1].keys()
    paired = {name: percentiles(draws[0][name] - draws[1][name], confidence) for name in both}
    return {name: interval for name, interval in sorted(paired.items()) if interval is not None}


def resample(
    statistics: Iterable[tuple[str, Resampleable]], examples: int, resamples: int, seed: int
) -> dict[str, Floats]:
    """Return each statistic of `resamples` sets of `examples` drawn with replacement: (resamples,) by name.

    More than `MOST_WHOLE` examples are drawn in `GROUPS` random groups of equal size: the sums of a group are those of
    independent examples too, so the intervals estimate the same, from sums that are made once.
    """
    functions, units, generator = _functions(statistics, examples, seed)
    return _draw(functions, units, resamples, generator)


def _functions(
    statistics: Iterable[tuple[str, Resampleable]], examples: int, seed: int
) -> tuple[dict[str, Resampled], int, np.random.Generator]:
    """Return each statistic as a function of the weights of units, the number of units, and what draws them."""
    generator = np.random.default_rng(seed)
    if examples <= MOST_WHOLE:
        return dict(statistics), examples, generator
    groups = (generator.permutation(examples) % GROUPS).astype(np.uint16)
    return {name: statistic.in_groups(groups, GROUPS) for name, statistic in statistics}, GROUPS, generator


def _draw(
    functions: Mapping[str, Resampled], units: int, resamples: int, generator: np.random.Generator
) -> dict[str, Floats]:
    parts: dict[str, list[Floats]] = {name: [] for name in functions}
    rows = max(1, CELLS // units)
    for first in range(0, resamples, rows):
        weights = _weights(generator, min(rows, resamples - first), units)
        for name, function in functions.items():
            parts[name].append(function(weights))
    return {name: np.concatenate(part) for name, part in parts.items()}


def percentiles(draws: Floats, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the central share `confidence` of `draws`, undefined ones left out; None if none is left."""
    defined = draws[np.isfinite(draws)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(low=float(low), high=float(high))


def unbiased(draws: Floats, value: float) -> Floats:
    """Return the `draws` of a metric of at least 0 without what resampling adds to its `value`.

    The metric of a resample is larger than that of the examples by about as much as the examples' is than the truth's.
    """
    result: Floats = np.maximum(draws - (np.nanmean(draws) - value), 0)
    return result


def _weights(generator: np.random.Generator, rows: int, examples: int) -> Floats:
    drawn = generator.integers(0, examples, (rows, examples)) + np.arange(rows)[:, None] * examples
    return np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float64)


def _interval(metric: Metric[Any], answers: Answers, value: float, draws: Floats, confidence: float) -> Interval | None:
    if metric.trials and value in (0, 1):
        return _all_alike(value, metric.trials(answers), confidence)
    if too_few(metric, answers):
        return None
    if metric.is_biased:
        # A resample repeats examples, which moves the accuracy of a bin away from its confidence.
        draws = unbiased(draws, value)
    interval = percentiles(draws, confidence)
    return None if interval is not None and interval.low == interval.high else interval


def _all_alike(value: float, examples: float, confidence: float) -> Interval:
    """Return the exact interval of a share of 0 or 1: its resamples all agree, and do not say how sure it is.

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, Biometrika 26, 1934.
    """
    margin = 1 - ((1 - confidence) / 2) ** (1 / examples)
    return Interval(low=1 - margin, high=1.0) if value else Interval(low=0.0, high=margin)
