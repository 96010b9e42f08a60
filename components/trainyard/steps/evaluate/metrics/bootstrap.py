"""How sure a metric is: percentile intervals over resampled examples.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from trainyard.contract.artifacts.gate import Interval
from trainyard.spec.gates import Task
from trainyard.steps.evaluate.metrics.measure import statistics
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions
from trainyard.steps.evaluate.metrics.resampled import Statistic

CONFIDENCE = 0.95

CELLS = 2_000_000
"""Weights held at once, 16 MB: chosen to stay in a processor's cache and out of small machines' way."""


def intervals(
    task: Task, predictions: SplitPredictions, metrics: Mapping[str, float], resamples: int, seed: int
) -> dict[str, Interval]:
    """Return the 95 % interval of each of `metrics`, which `measure` gave for `predictions`; equal for equal seeds.

    A metric whose resamples all agree (an AUC of 1) gets none: they do not say how sure it is.
    """
    chosen = {name: statistic for name, statistic in statistics(task, predictions).items() if name in metrics}
    drawn = resample(chosen, len(predictions.labels), resamples, seed)
    count = _effective_count(predictions)
    bounds = {name: _interval(name, metrics[name], count, draws) for name, draws in drawn.items()}
    return {name: interval for name, interval in bounds.items() if interval is not None}


def differences(
    task: Task,
    metrics: Collection[str],
    candidate: SplitPredictions,
    rival: SplitPredictions,
    resamples: int,
    seed: int,
) -> dict[str, Interval]:
    """Return the interval of candidate - rival of each of `metrics`, over the same examples in the same order.

    Each resample draws the same examples for both, so examples that are hard for both do not widen the interval.
    Metrics that are undefined in every resample are left out.
    """
    draws = [
        resample(
            {name: statistic for name, statistic in statistics(task, predictions).items() if name in metrics},
            len(candidate.labels),
            resamples,
            seed,
        )
        for predictions in (candidate, rival)
    ]
    paired = {name: percentiles(draws[0][name] - draws[1][name]) for name in draws[0].keys() & draws[1].keys()}
    return {name: interval for name, interval in sorted(paired.items()) if interval is not None}


def resample(statistics: Mapping[str, Statistic], examples: int, resamples: int, seed: int) -> dict[str, Floats]:
    """Return each statistic of `resamples` sets of `examples` drawn with replacement: (resamples,) by name."""
    generator = np.random.default_rng(seed)
    parts: dict[str, list[Floats]] = {name: [] for name in statistics}
    rows = max(1, CELLS // examples)
    for first in range(0, resamples, rows):
        weights = _weights(generator, min(rows, resamples - first), examples)
        for name, statistic in statistics.items():
            parts[name].append(statistic(weights))
    return {name: np.concatenate(part) for name, part in parts.items()}


def percentiles(draws: Floats) -> Interval | None:
    """Return the central 95 % of `draws`, those that are undefined left out; None if none is left."""
    defined = draws[np.isfinite(draws)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(low=float(low), high=float(high))


def _weights(generator: np.random.Generator, rows: int, examples: int) -> Floats:
    drawn = generator.integers(0, examples, (rows, examples)) + np.arange(rows)[:, None] * examples
    return np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float64)


def _effective_count(predictions: SplitPredictions) -> float:
    """Return how many examples of one weight say as much: their number if all count the same.

    Source: L. Kish, Survey Sampling, 1965, section 11.7.
    """
    if predictions.weights is None:
        return len(predictions.labels)
    weights = predictions.weights.astype(np.float64)
    return float(weights.sum() ** 2 / np.square(weights).sum())


def _interval(metric: str, value: float, examples: float, draws: Floats) -> Interval | None:
    if metric in ("accuracy", "top5_accuracy", "exact_match") and value in (0, 1):
        return _all_alike(value, examples)
    if metric == "calibration_error":
        # A resample repeats examples, which moves the accuracy of a bin away from its confidence: the error of a
        # resample is larger than that of the examples by about as much as the examples' is than the truth's.
        draws = np.maximum(draws - (np.mean(draws) - value), 0)
    interval = percentiles(draws)
    return None if interval is not None and interval.low == interval.high else interval


def _all_alike(value: float, examples: float) -> Interval:
    """Return the exact interval of a share of 0 or 1: its resamples all agree, and do not say how sure it is.

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, Biometrika 26, 1934.
    """
    margin = 1 - ((1 - CONFIDENCE) / 2) ** (1 / examples)
    return Interval(low=1 - margin, high=1.0) if value else Interval(low=0.0, high=margin)
