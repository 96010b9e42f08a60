"""A trial: the training of one variant of a recipe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import ValidationError

from trainyard.contract import keys
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.document import FrozenModel
from trainyard.contract.version import champion
from trainyard.errors import ConfigurationError
from trainyard.storage import storage
from trainyard_control.local.local_run import LocalRun


class Trial(FrozenModel):
    """A trained variant. values: by key of the recipe.

    metric: the main one on the eval split, of the best epoch. epochs: the metric of each epoch. operations: of a
    training step per example. milliseconds: of a prediction on one core of this machine, None if not measured. dollars:
    None without a price. why: why it failed, was pruned or was skipped. draws: samples that the latency budget excluded
    before it.
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
    metrics = [epoch.metric for epoch in epochs]
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
            "metric": best.metric,
            "eval_loss": best.eval_loss,
            "best_epoch": best.epoch,
            "epochs": [epoch.metric for epoch in trained.history],
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
