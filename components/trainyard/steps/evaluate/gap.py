"""The largest gap of a metric between slices: how much better a model is for one group than for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.artifacts.gate import Interval
from trainyard.spec.gates import Task
from trainyard.steps.evaluate.gate import MetricPair
from trainyard.steps.evaluate.metrics.bootstrap import intervals, percentiles, resample, unbiased
from trainyard.steps.evaluate.metrics.measure import Answers, each_statistic, measure
from trainyard.steps.evaluate.metrics.predictions import Floats
from trainyard.steps.evaluate.metrics.resampled import Resampled, Statistic
from trainyard.steps.evaluate.slices import Masks


def largest_gap(
    task: Task, metric: str, parts: Mapping[str, Answers], masks: Masks, resamples: int, seed: int, confidence: float
) -> MetricPair:
    """Return the largest minus the smallest value of `metric` over the slices, NaN if a slice does not define it.

    parts: the answers of each slice, by its name; masks: its examples among all (n,). Each resample is of all
    examples; a slice that a resample does not define is left out of it. The gap of a resample is larger than that of
    the examples by chance, which the interval corrects as that of the calibration error.
    """
    if len(parts) < 2:
        return MetricPair(np.nan, None, note="fewer than two slices have examples")
    values = {name: measure(task, part, [metric]).get(metric, np.nan) for name, part in parts.items()}
    if undefined := next((name for name, value in values.items() if not np.isfinite(value)), None):
        return MetricPair(np.nan, None, note=f"the slice '{undefined}' does not define it")
    gap = _Gap([(masks[name], dict(each_statistic(task, part, [metric]))[metric]) for name, part in parts.items()])
    best, worst = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    value = values[best] - values[worst]
    examples = len(next(iter(masks.values())))
    interval = percentiles(unbiased(resample([(metric, gap)], examples, resamples, seed)[metric], value), confidence)
    if interval is not None and interval.low == interval.high:  # each slice is all right or all wrong
        exact = [
            intervals(task, part, {metric: values[name]}, resamples, seed, confidence).get(metric)
            for name, part in parts.items()
        ]
        widths = [each.high - each.low for each in exact if each is not None]
        interval = Interval(low=value, high=value + max(widths)) if len(widths) == len(parts) else None
    note = f"From {values[worst]:.4g} in '{worst}' to {values[best]:.4g} in '{best}'."
    return MetricPair(value, interval, note=note)


@dataclass(frozen=True)
class _Gap:
    """The gap as a function of the weights of all examples; slices: the mask (n,) and the metric of each."""

    slices: Sequence[tuple[NDArray[np.bool_], Statistic]]

    def __call__(self, weights: Floats) -> Floats:
        return _gap([statistic(weights[:, mask]) for mask, statistic in self.slices])

    def in_groups(self, groups: NDArray[np.uint16], count: int) -> Resampled:
        functions = [statistic.in_groups(groups[mask], count) for mask, statistic in self.slices]
        return lambda weights: _gap([function(weights) for function in functions])


def _gap(values: Sequence[Floats]) -> Floats:
    """Return the gap of each resample, NaN if fewer than two slices define the metric; values: of each slice."""
    drawn = np.stack(values)
    defined = np.isfinite(drawn)
    highest = np.where(defined, drawn, -np.inf).max(axis=0)
    lowest = np.where(defined, drawn, np.inf).min(axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(defined.sum(axis=0) > 1, highest - lowest, np.nan)
