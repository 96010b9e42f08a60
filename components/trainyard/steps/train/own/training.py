"""One training by a program of the recipe's own, from its start to the model that it leaves, checked."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from trainyard import events
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError, Preempted
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang import launcher_heartbeat
from trainyard.steps.train.gang.rank import Rank, current_rank, gang_addresses
from trainyard.steps.train.loop import goodput
from trainyard.steps.train.loop.goodput import Past
from trainyard.steps.train.own import program
from trainyard.steps.train.own.told import Told
from trainyard.storage import storage

_MODEL = "model.keras"
_TENSORBOARD = "tensorboard"
_REST = "files"
"""Where the rest of what the program left is, in the output of train."""


def train_by_command(recipe: Recipe, examples: str, checkpoints: str, output: Path, past: str) -> None:
    """Run the recipe's program as the worker that TF_CONFIG names; the chief's leaves what `train.run.run` does.

    past: the gang's restarts before this start, as JSON of `goodput.Past`. Raises as `program.run`, and
    `ConfigurationError` if the chief's program left no model, or one that later steps cannot use.
    """
    start, rank = time.monotonic(), current_rank()
    gang_past = Past.model_validate_json(past) if past else Past(started=start)
    told = Told(gang_past, recipe.train.epochs, storage.join(checkpoints, "epochs.json") if rank.chief else "")
    local = str(storage.local(examples, made_by="preprocess"))
    kept = storage.join(checkpoints, "program")
    if not storage.is_bucket(kept):
        Path(kept).mkdir(parents=True, exist_ok=True)
    with (
        storage.lease(checkpoints) if rank.chief else nullcontext(),
        tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True) as scratch,
    ):
        folder, left = Path(scratch) / "program", Path(scratch) / "output"
        folder.mkdir()
        left.mkdir()
        program.prepare(recipe, folder)
        facts = {
            "TRAINYARD_RECIPE_FILE": str(folder / "recipe.json"),
            "TRAINYARD_EXAMPLES": local,
            "TRAINYARD_CHECKPOINTS": kept,
            "TRAINYARD_OUTPUT": str(left),
            "TRAINYARD_RESTARTS": str(len(gang_past.restarts) + bool(gang_past.last_break)),
        }
        fetched = time.monotonic()
        environment = program.variables(rank, gang_addresses(), facts)
        stopped = program.run(recipe.train.command or [], folder, environment, told)
        ran = time.monotonic() - fetched
        if stopped and not (rank.chief and (left / _MODEL).is_file()):
            raise Preempted
        if rank.chief:
            _take(left, output)
    if rank.chief:
        training = _training(recipe, Examples.read(local), output, told, rank)
        seconds = {"fetch": round(fetched - start, 3), "program": round(ran, 3)}
        split = _goodput(gang_past, told, seconds)
        document = training.model_copy(update={"seconds": seconds, "restarts": gang_past.restarts, **split})
        document.write(output)
        events.emit(
            "trained",
            model=document.model,
            steps=document.steps,
            best_epoch=document.best_epoch,
            examples_per_second=round(document.examples_per_second),
            seconds=round(sum(seconds.values()), 1),
        )


def _take(left: Path, output: Path) -> None:
    """Move what the program left to where the train step has it. Raises `ConfigurationError` without a model."""
    model = left / _MODEL
    if not model.is_file():
        names = ", ".join(sorted(path.name for path in left.iterdir())[:5]) or "nothing"
        raise ConfigurationError(
            f"train.command: the program ended well and left no {_MODEL} in $TRAINYARD_OUTPUT, but {names}. "
            f'Save the trained Keras model there: model.save(os.environ["TRAINYARD_OUTPUT"] + "/{_MODEL}").'
        )
    shutil.move(model, output / _MODEL)
    if (left / _TENSORBOARD).is_dir():
        shutil.move(left / _TENSORBOARD, output / _TENSORBOARD)
    if any(left.iterdir()):
        shutil.move(left, output / _REST)


def _training(recipe: Recipe, examples: Examples, output: Path, told: Told, rank: Rank) -> Training:
    """Return the evidence of what was trained, after a look at the model."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from trainyard.steps.train.own.model import checked  # with TensorFlow, which only the model's check needs

    model = checked(output / _MODEL, examples)
    return Training(
        model=model.name,
        parameters=model.count_params(),
        steps=told.steps,
        epochs=len(told.history),
        best_epoch=told.best_epoch,
        workers=rank.workers,
        devices=[],
        precision="unknown",
        examples_per_second=told.examples_per_second,
        bottleneck="unclear",
        step_ms=1000 * told.step_seconds,
        cached_step_ms=0.0,
        cores=len(os.sched_getaffinity(0)),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        resumed_from=told.resumed_from,
        history=told.history,
        seconds={},
        command=recipe.train.command or [],
    )


def _goodput(past: Past, told: Told, seconds: dict[str, float]) -> dict[str, object]:
    """Return the share of the time that went into steps which count; nothing if the program told of no steps."""
    if not told.step_seconds:
        return {}
    spent = {"import": seconds["fetch"]}
    split = past.split(told.steps, told.step_seconds, spent, launcher_heartbeat.read_queue_seconds())
    return {"goodput": goodput.share(split), "goodput_seconds": split}
