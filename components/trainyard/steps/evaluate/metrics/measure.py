"""Metrics of predictions, as numbers and as functions that the bootstrap resamples."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from trainyard.spec.gates import Task
from trainyard.steps.evaluate.metrics.predictions import OneClass, SplitPredictions
from trainyard.steps.evaluate.metrics.registry import CLASS_METRICS, METRICS, Metric
from trainyard.steps.evaluate.metrics.resampled import Statistic

Answers = SplitPredictions | OneClass
"""The subject of a metric: all classes or targets, or one class against the rest."""


def measure(task: Task, answers: Answers, names: Collection[str] | None = None) -> dict[str, float]:
    """Return every metric, or those of `names`, that is defined for these examples (AUC of one class is not).

    Which way is better says `spec.gates.METRIC_SPECS`. macro_f1, roc_auc and pr_auc are means over the classes that
    have examples, all metrics of several targets means over them.
    """
    values = {name: float(statistic.at_own_weights()[0]) for name, statistic in each_statistic(task, answers, names)}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def metrics_of(task: Task, answers: Answers) -> dict[str, Metric[Any]]:
    """Return the metrics that `answers` have."""
    if isinstance(answers, OneClass):
        return {name: metric for name, metric in CLASS_METRICS.items()}
    return {name: metric for name, metric in METRICS[task].items()}


def each_statistic(
    task: Task, answers: Answers, names: Collection[str] | None = None
) -> Iterator[tuple[str, Statistic]]:
    """Yield the metrics of `measure` by name, each made when it is asked for: it may hold columns of all examples."""
    for name, metric in metrics_of(task, answers).items():
        if (names is None or name in names) and (statistic := metric.statistic(answers)) is not None:
            yield name, statistic
