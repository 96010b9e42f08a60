"""A trial, the training of one variant of a recipe, and the result of a sweep: its trials, the winner, and charts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.document import FrozenModel
from trainyard.contract.version import champion
from trainyard.errors import ConfigurationError
from trainyard.measured import metric_text
from trainyard.report.pages import in_iframe
from trainyard.report.plots import Figure, Mark, chart, page
from trainyard.spec.gates import METRIC_TITLES
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import compared
from trainyard.storage import storage
from trainyard_control.local.local_run import LocalRun
from trainyard_control.search.search_space import BlockSpace, Dimension


class Trial(FrozenModel):
    """A trained variant. values: by key of the recipe.

    metric: that which chose the epoch on the eval split, or the main one if the loss did, of the best epoch. epochs:
    the metric of each epoch. operations: of a training step per example. milliseconds: of a prediction on one core of
    this machine, None if not measured. dollars: None without a price. why: why it failed, was pruned or was skipped.
    draws: samples that the latency budget excluded before it.
    """

    number: int
    values: dict[str, Any]
    state: Literal["begun", "complete", "pruned", "failed", "skipped"] = "begun"
    metric: float | None = None
    eval_loss: float | None = None
    best_epoch: int = 0
    epochs: list[float] = []
    seconds: float = 0.0
    examples_per_second: float = 0.0
    parameters: int = 0
    operations: float = 0.0
    milliseconds: float | None = None
    dollars: float | None = None
    draws: int = 0
    model: str = ""
    why: str = ""


class Pruned(Exception):
    """Raised to stop a trial that is unlikely to become the best."""


def judge_new(epochs: list[Epoch], events: Iterable[dict[str, Any]], judge: Callable[[Epoch], None]) -> None:
    """Add the epochs among `events` to `epochs`, and call `judge` with each new one.

    A resumed training repeats its earlier epochs.
    """
    for event in events:
        if event.get("event") != "epoch":
            continue
        try:
            epoch = Epoch.model_validate({name: value for name, value in event.items() if name not in ("event", "of")})
        except ValidationError:  # a recipe's module may print anything
            continue
        if not epochs or epoch.epoch > epochs[-1].epoch:
            epochs.append(epoch)
            judge(epoch)


def train(trial: Trial, run: LocalRun, preprocessing: threading.Lock, judge: Callable[[Epoch], None]) -> Trial:
    """Train the variant of `run` and return the trial; `judge` gets each new epoch and may raise `Pruned`.

    Existing examples and models are reused; others are made by one trial at a time, on all cores. Raises what also ends
    the sweep: `Preempted`, Ctrl-C.
    """
    epochs: list[Epoch] = []

    def note(step: str, event: dict[str, Any]) -> None:
        if step == "train":
            judge_new(epochs, [event], judge)

    run.on_event, cores = note, run.cores
    with preprocessing:
        run.cores = None
        run.preprocess()
        run.cores = cores
    start = time.monotonic()
    try:
        model = run.train(champion(keys.models_folder(run.root, run.recipe)))
    except Pruned as pruned:
        _forget(run.unfinished.get("train", ""))
        return as_pruned(trial, epochs, time.monotonic() - start, pruned)
    return with_training(trial, run.recipe.name, model, Training.read(model))


def as_pruned(trial: Trial, epochs: list[Epoch], seconds: float, pruned: Pruned) -> Trial:
    """Return the trial as pruned after `epochs`."""
    metrics = [epoch.compared for epoch in epochs]
    return trial.model_copy(
        update={"state": "pruned", "epochs": metrics, "seconds": round(seconds, 2), "why": str(pruned)}
    )


def with_training(trial: Trial, recipe: str, model: str, trained: Training) -> Trial:
    """Return the trial with the results of its training. Raises `ConfigurationError` if that has no epochs."""
    best = next((epoch for epoch in trained.history if epoch.epoch == trained.best_epoch), None)
    if best is None:
        raise ConfigurationError(
            f"{recipe}: train.command: the program told of no epoch, and trials are compared by them. "
            "Have it print a line of event epoch after each, as docs/how-to/own-script.md shows."
        )
    return trial.model_copy(
        update={
            "state": "complete",
            "metric": best.compared,
            "eval_loss": best.eval_loss,
            "best_epoch": best.epoch,
            "epochs": [epoch.compared for epoch in trained.history],
            "seconds": round(sum(trained.seconds.values()), 2),
            "examples_per_second": trained.speed.examples_per_second,
            "parameters": trained.parameters,
            "operations": trained.costs.flops_per_example,
            "model": model,
        }
    )


def _forget(model: str) -> None:
    """Delete the checkpoints and the record of an abandoned training."""
    if model:
        with storage.lease(model):
            storage.remove(keys.checkpoints(model))
            storage.remove(keys.failure_record(model))


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
        return str(compared(self.recipe))

    @property
    def larger_is_better(self) -> bool:
        """True if a larger metric is better."""
        return compared(self.recipe).sign < 0

    @property
    def skipped(self) -> int:
        """The number of networks that the latency budget excluded."""
        return sum(trial.draws + (trial.state == "skipped") for trial in self.trials)

    def _repr_html_(self) -> str:
        return in_iframe(self.page())

    def page(self) -> str:
        """Render the result as a page of HTML."""
        metric = f"eval {METRIC_TITLES.get(self.metric, self.metric)}"
        done = [trial for trial in self.trials if trial.state == "complete" and trial.metric is not None]
        charts = {**dict(_costs(self, done, metric)), "The search": _history(self, done, metric)}
        dimensions = [dimension for dimension in self.dimensions if isinstance(dimension, Dimension)]
        charts |= {dimension.key: _by_value(dimension, done, self, metric) for dimension in dimensions}
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


def _costs(result: Result, done: list[Trial], metric: str) -> Iterator[tuple[str, Figure]]:
    """Yield the title and chart of metric and cost for operations, latency and money, as far as known."""
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
            yield title, chart((name, metric), marks, {"": line}, log_x=True)


def _history(result: Result, done: list[Trial], metric: str) -> Figure:
    marks = [Mark(trial.number + 1, trial.metric or 0, _title(trial), trial is result.best) for trial in done]
    best = itertools.accumulate((mark.y for mark in marks), max if result.larger_is_better else min)
    line = [(mark.x, value) for mark, value in zip(marks, best, strict=True)]
    return chart(("trial", metric), marks, {"": line})


def _by_value(dimension: Dimension, done: list[Trial], result: Result, metric: str) -> Figure:
    values = [trial.values[dimension.key] for trial in done]
    categories = tuple(str(value) for value in dimension.values)
    positions = [float(dimension.values.index(value)) if categories else float(value) for value in values]
    marks = [
        Mark(position, trial.metric or 0, _title(trial), trial is result.best)
        for position, trial in zip(positions, done, strict=True)
    ]
    return chart((dimension.key, metric), marks, log_x=dimension.log, categories=categories)


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
