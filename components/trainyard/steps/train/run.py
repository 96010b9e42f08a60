"""Trains the recipe's model on the examples of a preprocess folder and leaves the best epoch's model."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import nullcontext
from pathlib import Path

from trainyard import events
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import promise
from trainyard.steps.train.engines import engine
from trainyard.storage import storage


def run(recipe: Recipe, examples: str, checkpoints: str, output: Path, start: str = "") -> None:
    """Leave model.keras, training.json and tensorboard/ in `output`, going on from `checkpoints` where there are any.

    start: the version of a pushed model (its folder, or URI) whose weights come first; '' for weights of its own.
    Several workers train as processes of their own on this machine; so does JAX, for a process has one engine, and this
    one may have TensorFlow's already.
    """
    promise.check()
    if recipe.train.workers == 1 and engine.chosen() == "tensorflow":
        join(recipe, examples, checkpoints, output, start=start)
        return
    from trainyard.steps.train.gang import gang

    gang.run(recipe, examples, checkpoints, output, start)


def join(recipe: Recipe, examples: str, checkpoints: str, output: Path, past: str = "", start: str = "") -> None:
    """Train in this process, alone or as the worker that TF_CONFIG says, and leave what `run` does.

    examples: also in a bucket, of which a worker fetches the shards that it reads. past: what the gang has survived
    before this start, as `goodput.Past` reads it. start: as `run`.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    before_import, began = time.perf_counter(), time.monotonic()
    # Here and not above: --help and compilation must not load TensorFlow, and its seconds are counted.
    engine.prepare()
    from trainyard.steps.train import session
    from trainyard.steps.train.gang.place import place
    from trainyard.steps.train.input import input as training_input
    from trainyard.steps.train.loop.goodput import Past

    imported = time.perf_counter() - before_import
    before = Past.parse(past) if past else Past(started=began)
    before.spent["import"] = imported
    manifest = storage.require(examples, made_by="preprocess")
    needed = training_input.needed(recipe, examples, place())
    examples = str(storage.local(examples, made_by="preprocess", only=needed))
    champion = str(storage.local(start, made_by="push")) if start else ""
    with storage.lease(checkpoints) if place().chief else nullcontext():
        document = session.train(recipe, examples, checkpoints, _identity(recipe, manifest), output, before, champion)
    seconds = {"import": round(imported, 3), **document.seconds}
    document.model_copy(update={"seconds": seconds, "warm_start": start}).write(output)
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
    """Return what a checkpoint must have been made with to be gone on from: the same recipe and the same examples.

    The number of workers is left out: it changes no batch.
    """
    sections = recipe.model_dump_json(include={"seed", "task", "model", "train"}, exclude={"train": {"workers"}})
    return hashlib.sha256(f"{sections}\0{examples.digest}".encode()).hexdigest()
