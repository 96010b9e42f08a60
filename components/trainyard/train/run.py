"""Trains the recipe's model on the examples of a preprocess folder and leaves the best epoch's model."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from trainyard.core import events, storage
from trainyard.core.recipe import Recipe


def run(recipe: Recipe, examples: str, checkpoints: str, output: Path) -> None:
    """Leave model.keras, training.json and tensorboard/ in `output`, going on from `checkpoints` where there are any."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start = time.perf_counter()
    # Here and not above: --help and compilation must not load TensorFlow, and its seconds are counted.
    from trainyard.train import session

    imported = time.perf_counter() - start
    manifest = storage.require(examples, made_by="preprocess")
    with storage.lease(checkpoints):
        document = session.train(recipe, examples, checkpoints, _identity(recipe, manifest), output)
    seconds = {"import": round(imported, 3), **document.seconds}
    document.model_copy(update={"seconds": seconds}).write(output)
    events.emit(
        "trained",
        model=document.model,
        steps=document.steps,
        best_epoch=document.best_epoch,
        examples_per_second=round(document.examples_per_second),
        bottleneck=document.bottleneck,
        seconds=round(sum(seconds.values()), 1),
    )


def _identity(recipe: Recipe, examples: storage.Manifest) -> str:
    """Return what a checkpoint must have been made with to be gone on from: the same recipe and the same examples."""
    sections = recipe.model_dump_json(include={"seed", "task", "model", "train"})
    return hashlib.sha256(f"{sections}\0{examples.digest}".encode()).hexdigest()
