"""Trains in this process, and measures how long the imports take."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from trainyard import events
from trainyard.contract import weights
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.graph import STEPS, remedy
from trainyard.report import mlflow_epochs
from trainyard.spec import selection
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.engines import engine
from trainyard.steps.train.peers.settings import current_rank
from trainyard.storage import storage


def train_in_process(
    recipe: Recipe, examples: str, checkpoints: str, output: Path, past: str = "", start: str = ""
) -> None:
    """Train in this process, alone or as the worker that TF_CONFIG names, and write the files that `run` describes.

    examples: if they are in a bucket, the worker fetches the shards that it reads. past: the gang's history before this
    start, as JSON of `goodput.GangHistory`. start: as in `run`. The chief logs the epochs as `mlflow_epochs` says.
    """
    chief = current_rank().chief
    with mlflow_epochs.logged(recipe, checkpoints) if chief else nullcontext() as on_epoch:
        _train(recipe, examples, checkpoints, output, past, start, on_epoch)


def _train(
    recipe: Recipe,
    examples: str,
    checkpoints: str,
    output: Path,
    past: str,
    start: str,
    on_epoch: Callable[[Epoch], None] | None,
) -> None:
    if recipe.train.command is not None:
        from trainyard.steps.train.custom_program.training import train_by_command

        if by_command := train_by_command(recipe, examples, checkpoints, output, past, on_epoch):
            _finish(by_command, output)
        return
    if recipe.model.name == TREES:
        _train_trees(recipe, examples, checkpoints, output, on_epoch)
        return
    start_of_import, started = time.perf_counter(), time.monotonic()
    # Imported here, because --help and compilation must not load TensorFlow, and its seconds are counted.
    engine.prepare()
    from trainyard.steps.train import session
    from trainyard.steps.train.input import input as inputs
    from trainyard.steps.train.input.service.client import InputService
    from trainyard.steps.train.input.shard_ranges import Feed
    from trainyard.steps.train.loop.goodput import GangHistory

    import_seconds = time.perf_counter() - start_of_import
    gang_history = GangHistory.model_validate_json(past) if past else GangHistory(started=started)
    gang_history.spent["import"] = import_seconds
    gang_history.reads_since = time.time()
    manifest = storage.require(examples, remedy("preprocess"))
    service = InputService.from_environment()
    streamed = set() if service else inputs.streamed_files(recipe, examples, current_rank())
    stream = storage.stream(examples, streamed, remedy("preprocess")) if streamed else None
    needed_files = inputs.needed_files(recipe, examples, current_rank(), stream is not None, service is not None)
    examples = str(storage.local(examples, remedy("preprocess"), only=needed_files))
    feed = Feed(stream, examples) if stream else None
    champion = str(storage.local(start, remedy("push"))) if start else ""
    with storage.lease(checkpoints) if current_rank().chief else nullcontext(), stream or nullcontext():
        document = session.train(
            recipe,
            examples,
            checkpoints,
            _identity(recipe, manifest),
            output,
            gang_history,
            champion,
            feed,
            service,
            on_epoch,
        )
    seconds = {"import": round(import_seconds, 3), **document.seconds}
    begun = document.start.model_copy(update={"warm_start": start})
    _finish(document.model_copy(update={"seconds": seconds, "start": begun}), output)


def _train_trees(
    recipe: Recipe, examples: str, checkpoints: str, output: Path, on_epoch: Callable[[Epoch], None] | None
) -> None:
    start = time.perf_counter()
    from trainyard.steps.train import trees

    import_seconds = time.perf_counter() - start
    local = str(storage.local(examples, remedy("preprocess")))
    with storage.lease(checkpoints):
        document = trees.train(recipe, local, output, on_epoch)
    seconds = {"import": round(import_seconds, 3), **document.seconds}
    _finish(document.model_copy(update={"seconds": seconds}), output)


def _finish(document: Training, output: Path) -> None:
    """Write the training record and emit its summary."""
    document.write(output)
    events.emit(
        "trained",
        model=document.model,
        steps=document.steps,
        best_epoch=document.best_epoch,
        examples_per_second=round(document.speed.examples_per_second),
        bottleneck=document.speed.bottleneck,
        seconds=round(sum(document.seconds.values()), 1),
    )


def _identity(recipe: Recipe, examples: storage.Manifest) -> str:
    """Return the digest of recipe, examples and weights that a checkpoint must match to be resumed.

    The number of workers is left out because it changes no batch.
    """
    sections = recipe.model_dump_json(include=set(STEPS["train"].sections), exclude={"train": {"workers"}})
    return hashlib.sha256(
        "\0".join([sections, examples.digest, weights.digest(recipe), selection.digest(recipe)]).encode()
    ).hexdigest()
