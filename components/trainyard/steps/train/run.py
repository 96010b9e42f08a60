"""Trains the recipe's model on the examples of a preprocess folder and leaves the best epoch's model."""

from __future__ import annotations

from pathlib import Path

from trainyard.contract.training.gang import check_input_workers
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import MOST_INPUT_WORKERS
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.engines import engine
from trainyard.steps.train.expected_devices import check_devices
from trainyard.steps.train.process import train_in_process


def run(
    recipe: Recipe, examples: str, checkpoints: str, output: Path, start: str = "", input_workers: str = "0"
) -> None:
    """Leave model.keras, training.json and tensorboard/ in `output`, resuming from `checkpoints` if there are any.

    start: the version of a pushed model (its folder, or URI) whose weights come first; '' for weights of its own.
    input_workers: how many processes of their own prepare the batches; 0 if those that train do.
    Several workers train as processes of their own on this machine; so does JAX, because a process has one engine, and
    this one may have TensorFlow's already; so does a program of the recipe's own, and what input workers feed.
    """
    check_devices()
    if not input_workers.isdecimal() or int(input_workers) > MOST_INPUT_WORKERS:
        raise ConfigurationError(
            f"--input-workers: '{input_workers}' is no number of processes. Give 0 to {MOST_INPUT_WORKERS}."
        )
    count = int(input_workers)
    check_input_workers(recipe, count)
    alone = recipe.train.command is None and recipe.train.workers == 1 and not count
    if alone and engine.engine_name() == "tensorflow":
        train_in_process(recipe, examples, checkpoints, output, start=start)
        return
    from trainyard.steps.train.gang import local_gang

    local_gang.run(recipe, examples, checkpoints, output, start, count)
