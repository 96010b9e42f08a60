"""Trains the recipe's model on the examples of a preprocess folder and leaves the best epoch's model."""

from __future__ import annotations

from pathlib import Path

from trainyard.spec.recipe import Recipe
from trainyard.steps.train.engines import engine
from trainyard.steps.train.expected_devices import check_devices
from trainyard.steps.train.process import train_in_process


def run(recipe: Recipe, examples: str, checkpoints: str, output: Path, start: str = "") -> None:
    """Leave model.keras, training.json and tensorboard/ in `output`, resuming from `checkpoints` if there are any.

    start: the version of a pushed model (its folder, or URI) whose weights come first; '' for weights of its own.
    Several workers train as processes of their own on this machine; so does JAX, because a process has one engine, and
    this one may have TensorFlow's already; and so does a program of the recipe's own.
    """
    check_devices()
    if recipe.train.command is None and recipe.train.workers == 1 and engine.engine_name() == "tensorflow":
        train_in_process(recipe, examples, checkpoints, output, start=start)
        return
    from trainyard.steps.train.gang import local_gang

    local_gang.run(recipe, examples, checkpoints, output, start)
