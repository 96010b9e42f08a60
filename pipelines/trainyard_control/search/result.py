"""The result of a sweep: its trials, the winner, and charts of metric and cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.measured import metric_text
from trainyard.report.pages import in_iframe
from trainyard.spec.gates import LARGER_MAIN_IS_BETTER, MAIN_METRIC, METRIC_TITLES
from trainyard.spec.recipe import Recipe
from trainyard_control.search.chart import Chart, Mark, chart, page
from trainyard_control.search.search_space import BlockSpace, Dimension
from trainyard_control.search.trials import Trial


@dataclass(frozen=True)
class Result:
    """The result of a sweep. best: the best trial. recipe: its recipe. test: its evaluation on the test split, if any.

    importance: share of each key in the variance of the metric, if known.
    """

    folder: str
    dimensions: Sequence[Dimension | BlockSpace]
    trials: list[Trial]
    best: Trial
    recipe: Recipe
    test: Evaluation | None
    importance: dict[str, float]

    @property
    def metric(self) -> str:
        """The name of the metric that selects."""
        return MAIN_METRIC[self.recipe.task]

    @property
    def larger_is_better(self) -> bool:
        """True if a larger metric is better."""
        return LARGER_MAIN_IS_BETTER[self.recipe.task]

    @property
    def skipped(self) -> int:
        """The number of networks that the latency budget excluded."""
        return sum(trial.draws + (trial.state == "skipped") for trial in self.trials)

    def _repr_html_(self) -> str:
        return in_iframe(self.page())

    def page(self) -> str:
        """Render the result as a page of HTML."""
        metric = f"eval {METRIC_TITLES[self.metric]}"
        done = [trial for trial in self.trials if trial.state == "complete" and trial.metric is not None]
        charts = [*_costs(self, done, metric), _history(self, done, metric)]
        dimensions = [dimension for dimension in self.dimensions if isinstance(dimension, Dimension)]
        charts += [_by_value(dimension, done, self, metric) for dimension in dimensions]
        notes = [f"{key}: {share:.0%} of the differences" for key, share in self.importance.items()]
        keys = [dimension.key for dimension in self.dimensions]
        head = ["trial", "state", metric, "best epoch", "seconds", "dollars", "parameters", "ms an answer", *keys]
        return page(
            f"{self.recipe.name}: {len(self.trials)} trials", notes, charts, [(head, list(map(_row, self.trials)))]
        )

    @property
    def front(self) -> list[Trial]:
        """The Pareto-optimal trials by metric and operations, or parameters, the cheapest first."""
        done = [trial for trial in self.trials if trial.state == "complete" and trial.metric is not None]
        counted = _are_counted(done)
        return self.unbeaten(done, lambda trial: trial.operations if counted else trial.parameters)

    def unbeaten(self, done: list[Trial], cost: Callable[[Trial], float]) -> list[Trial]:
        """Return the trials of `done` that are Pareto-optimal by metric and `cost`, the cheapest first.

        Of tied trials, the one with the smaller eval loss counts, as for the best.
        """
        sign = -1 if self.larger_is_better else 1
        front: list[Trial] = []
        for trial in sorted(done, key=lambda trial: (cost(trial), sign * (trial.metric or 0), trial.eval_loss or 0)):
            if not front or sign * (trial.metric or 0) < sign * (front[-1].metric or 0):
                front.append(trial)
        return front


def _are_counted(done: list[Trial]) -> bool:
    """Return True if the operations of all trials are known; trees and custom programs have none."""
    return all(trial.operations for trial in done)


def _costs(result: Result, done: list[Trial], metric: str) -> Iterator[Chart]:
    """Yield a chart of metric and cost for operations, latency and money, as far as known."""
    counted = _are_counted(done)
    costs: tuple[tuple[str, str, Callable[[Trial], float]], ...] = (
        (
            "Cost; the line is Pareto-optimal",
            "operations of a training step, an example" if counted else "parameters",
            lambda trial: trial.operations if counted else trial.parameters,
        ),
        (
            "Latency; the line is Pareto-optimal",
            "milliseconds an answer, one core",
            lambda trial: trial.milliseconds or 0,
        ),
        (
            "Cost of training; the line is Pareto-optimal",
            "dollars of training",
            lambda trial: trial.dollars or 0,
        ),
    )
    for title, name, cost in costs:
        if known := [trial for trial in done if cost(trial)]:
            front = result.unbeaten(known, cost)
            line = [(cost(trial), trial.metric or 0) for trial in front]
            marks = [Mark(cost(trial), trial.metric or 0, _title(trial), trial in front) for trial in known]
            yield chart(title, (name, metric), marks, {"": line}, log_x=True)


def _history(result: Result, done: list[Trial], metric: str) -> Chart:
    marks = [Mark(trial.number + 1, trial.metric or 0, _title(trial), trial is result.best) for trial in done]
    best = itertools.accumulate((mark.y for mark in marks), max if result.larger_is_better else min)
    line = [(mark.x, value) for mark, value in zip(marks, best, strict=True)]
    return chart("The search", ("trial", metric), marks, {"": line})


def _by_value(dimension: Dimension, done: list[Trial], result: Result, metric: str) -> Chart:
    values = [trial.values[dimension.key] for trial in done]
    categories = tuple(str(value) for value in dimension.values)
    positions = [float(dimension.values.index(value)) if categories else float(value) for value in values]
    marks = [
        Mark(position, trial.metric or 0, _title(trial), trial is result.best)
        for position, trial in zip(positions, done, strict=True)
    ]
    return chart(dimension.key, (dimension.key, metric), marks, log_x=dimension.log, categories=categories)


def _title(trial: Trial) -> str:
    values = ", ".join(f"{name}={value}" for name, value in trial.values.items())
    return f"trial {trial.number + 1}: {metric_text(trial.metric or 0)} ({values})"


def _row(trial: Trial) -> list[str]:
    metric = "" if trial.metric is None else metric_text(trial.metric)
    epoch = f"{trial.best_epoch} of {len(trial.epochs)}" if trial.best_epoch else f"{len(trial.epochs)} done"
    values = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in trial.values.values()]
    took = f"{trial.seconds:.1f}"
    dollars = "" if trial.dollars is None else f"{trial.dollars:.3g}"
    answer = "" if trial.milliseconds is None else f"{trial.milliseconds:.3g}"
    return [str(trial.number + 1), trial.state, metric, epoch, took, dollars, f"{trial.parameters:,}", answer, *values]
