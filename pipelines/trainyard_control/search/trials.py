"""One training of a variant of a recipe, and what is kept of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import ValidationError

from trainyard.contract import keys
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.champion import champion
from trainyard.contract.document import FrozenModel
from trainyard.errors import ConfigurationError
from trainyard.storage import storage
from trainyard_control.local.local_run import LocalRun


class Trial(FrozenModel):
    """A variant that was trained: `values` by key of the recipe.

    metric: the main one, of the best epoch on the eval split; epochs: that of each epoch so far.
    operations: of a training step, for one example. milliseconds: that an answer takes on one core of this machine,
    None if it was not measured. dollars: of its seconds, None if no price is known. why: of one that failed, was
    pruned, or was left out because no answer may take so long. draws: those that were left out before it for that.
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
    """The trial is left: it would hardly become the best."""


def judge_new(epochs: list[Epoch], events: Iterable[dict[str, Any]], judge: Callable[[Epoch], None]) -> None:
    """Add to `epochs` those that the events of a training tell of, and have `judge` judge each.

    A training that goes on tells of the earlier ones again.
    """
    for event in events:
        if event.get("event") != "epoch":
            continue
        try:
            epoch = Epoch.model_validate({name: value for name, value in event.items() if name not in ("event", "of")})
        except ValidationError:  # a recipe's module may print what it likes
            continue
        if not epochs or epoch.epoch > epochs[-1].epoch:
            epochs.append(epoch)
            judge(epoch)


def train(trial: Trial, run: LocalRun, preprocessing: threading.Lock, judge: Callable[[Epoch], None]) -> Trial:
    """Return `trial` with what the training of `run` gave; `judge` receives each new epoch, and may raise `Pruned`.

    Examples and a model that are there already are used; others are made by one trial at a time, on all cores. Raises
    what ends the sweep as well: `Preempted`, Ctrl-C.
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
    """Return `trial` as it was left after `epochs`."""
    metrics = [epoch.metric for epoch in epochs]
    return trial.model_copy(
        update={"state": "pruned", "epochs": metrics, "seconds": round(seconds, 2), "why": str(pruned)}
    )


def with_training(trial: Trial, recipe: str, model: str, trained: Training) -> Trial:
    """Return `trial` with what its training gave. Raises `ConfigurationError` if that has no epochs to compare."""
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
            "examples_per_second": trained.examples_per_second,
            "parameters": trained.parameters,
            "operations": trained.flops_per_example,
            "model": model,
        }
    )


def _forget(model: str) -> None:
    """Remove what a training that nobody goes on with left: its checkpoints and its record."""
    if model:
        with storage.lease(model):
            storage.remove(keys.checkpoints(model))
            storage.remove(keys.failure_record(model))
