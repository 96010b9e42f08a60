"""Parts of the split that share a value of a feature or a label: where a good mean may hide a bad corner.

The gap of a metric is how much better a model is for one group than for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.artifacts.evaluate import SliceMetrics
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.statistics.drift import is_common
from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.spec.columns import Date
from trainyard.spec.gates import MAIN_METRIC, Task
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.gate import MetricPair
from trainyard.steps.evaluate.metrics.bootstrap import intervals, percentiles, resample, unbiased
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions
from trainyard.steps.evaluate.metrics.registry import Answers, each_statistic, measure
from trainyard.steps.evaluate.metrics.statistic import Resampled, Statistic

BINS = 4
"""Bins of a number: the quarters of the training split. Chosen: finer ones hold too few examples of a small split."""

DISTINCT = 8
"""A number with at most this many different values is sliced by value. Chosen."""

MAX_SLICES = 50
"""Slices of one feature: the most frequent values. Chosen, so that a column of names does not fill the report."""

Columns = Mapping[str, NDArray[Any]]
Masks = Mapping[str, NDArray[np.bool_]]


def slice_masks(
    recipe: Recipe,
    columns: Columns,
    train_columns: Columns,
    labels: Sequence[str] | None,
    train_weights: Floats | None = None,
) -> dict[str, NDArray[np.bool_]]:
    """Return the examples of each slice by its name, such as `sex=female` or `age=[30.5, 42.0)`: masks (n,).

    `columns` are the split's raw features and its label by name, each (n,); `train_columns` the numbers of the training
    split, whose quantiles by `train_weights` bound the bins. `labels` are the classes' names in id order. A missing
    value (an empty string, NaN) is a slice, a date counts by month. Raises `ConfigurationError` if a feature is not
    there.
    """
    masks: dict[str, NDArray[np.bool_]] = {}
    for feature in recipe.evaluate.slices:
        if feature not in columns:
            raise ConfigurationError(
                f"evaluate.slices: the examples hold no raw feature '{feature}'.{did_you_mean(feature, columns)} "
                "Name a feature that the served model takes, or the label."
            )
        values = columns[feature]
        if labels is not None and feature == recipe.data.label:
            named_masks = _by_value(labels, values, True)
        elif values.dtype.kind in "if":
            named_masks = _by_number(values, train_columns[feature], train_weights)
        else:
            length = 7 if isinstance(recipe.data.features.get(feature), Date) else None
            known: dict[Any, int] = {}
            ids = np.fromiter((known.setdefault(value, len(known)) for value in values), np.int32, len(values))
            named_masks = _by_value([_text(value)[:length] for value in known], ids, recipe.data.samples)
        for value, mask in named_masks:
            name = f"{feature}={value}"
            if mask.any():  # a category may be called missing, as those without one are
                masks[name] = masks[name] | mask if name in masks else mask
    return masks


def slices_of(feature: str, recipe: Recipe, masks: Masks) -> Masks:
    """Return the slices of `feature`, whose names begin with it and =."""
    features = [f"{name}=" for name in recipe.evaluate.slices]

    def belongs(name: str) -> bool:
        return max(filter(name.startswith, features), key=len) == f"{feature}="

    return {name: mask for name, mask in masks.items() if belongs(name)}


def slice_metrics(recipe: Recipe, masks: Masks, predictions: SplitPredictions) -> list[SliceMetrics]:
    """Return the metrics of each slice, with the interval of the main one."""
    main = MAIN_METRIC[recipe.task]
    slices = []
    for name, mask in masks.items():
        part = predictions.take(mask)
        metrics = measure(recipe.task, part)
        bounds = intervals(recipe.task, part, {main: metrics[main]}, recipe.evaluate.bootstrap, recipe.seed)
        slices.append(SliceMetrics(name=name, examples=int(mask.sum()), metrics=metrics, interval=bounds.get(main)))
    return slices


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _by_value(names: Sequence[str], ids: NDArray[Any], samples: bool) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the most frequent of `names` with the mask of its examples; ids: (n,), the place of each example's name.

    samples: names that are rare or long, too, not only common ones.
    """
    distinct = sorted({*names})
    places = {name: place for place, name in enumerate(distinct)}
    example_places = np.array([places[name] for name in names], np.int32)[ids]
    counts = np.bincount(example_places, minlength=len(distinct))
    most_frequent = np.sort(np.argsort(-counts, kind="stable")[:MAX_SLICES]).tolist()
    for place in sorted(most_frequent, key=lambda place: _order(distinct[place])):
        name = distinct[place]
        if not name or samples or is_common(name, int(counts[place])):
            yield name or "missing", example_places == place


def _order(name: str) -> tuple[bool, float, str]:
    """Return by what names are sorted: numbers by their size, before other texts."""
    try:
        number = float(name)
    except ValueError:
        number = np.nan
    return not np.isfinite(number), number if np.isfinite(number) else 0.0, name


def _by_number(
    values: NDArray[Any], train: NDArray[Any], weights: Floats | None
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    is_known = np.isfinite(train) if weights is None else np.isfinite(train) & (weights > 0)
    known = train[is_known]
    distinct = np.unique(known)
    if len(distinct) <= DISTINCT:
        present = np.unique(values[np.isfinite(values)])
        for value, name in zip(present, _names(present, 6), strict=True):
            yield name, values == value
    else:
        shares = np.arange(1, BINS) / BINS
        if weights is None:
            inner = np.unique(np.quantile(known, shares))
        else:
            inner = np.unique(np.quantile(known, shares, weights=weights[is_known], method="inverted_cdf"))
        edges = [-np.inf, *inner, np.inf]
        names = ["-inf", *map(_with_point, _names(inner, 4)), "inf"]
        for (low, opening), (high, end) in pairwise(zip(edges, names, strict=True)):
            yield f"{'(' if np.isneginf(low) else '['}{opening}, {end})", (values >= low) & (values < high)
    yield "missing", ~np.isfinite(values)


def _names(values: NDArray[Any], digits: int) -> list[str]:
    """Format different `values` with few digits, or with more if two would look the same."""
    names = [f"{value:.{digits}g}" for value in values]
    return names if len({*names}) == len(names) else _names(values, digits + 1)


def _with_point(number: str) -> str:
    """Return it with a point: 30.5, 42.0, 0.1234, 1.235e+06."""
    return number if any(letter in number for letter in ".e") else f"{number}.0"


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
    drawn = resample([(metric, gap)], examples, resamples, seed)[metric]
    interval = percentiles(unbiased(drawn.draws, value), confidence)
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
