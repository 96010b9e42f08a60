"""One training by a custom program, from its start to the checked model."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from trainyard.contract import version
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Epoch, Gang, Goodput, Machine, Training, TrainingSpeed, TrainingStart
from trainyard.contract.version import EXTRA
from trainyard.errors import ConfigurationError, Preempted
from trainyard.graph import remedy
from trainyard.spec.gates import require_classes
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.custom_program import program
from trainyard.steps.train.custom_program.checkpoints import ProgramCheckpoints
from trainyard.steps.train.custom_program.program import ProgramRecord
from trainyard.steps.train.loop.checkpoint import best_epoch
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.peers import launcher_heartbeat
from trainyard.steps.train.peers.settings import Rank, current_rank, gang_addresses
from trainyard.storage import storage
from trainyard.storage.manifest import MANIFEST

if TYPE_CHECKING:
    import keras

_MODEL: dict[Literal["keras", "folder"], str] = {"keras": "model.keras", "folder": version.FOLDER}
"""The program's result by `train.result`, under the same name in the step's output."""

_TENSORBOARD = "tensorboard"
_NUMBERS = TypeAdapter(
    dict[
        Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")],
        Annotated[float, Field(strict=True, allow_inf_nan=False)],
    ]
)
_REST = "files"
"""The folder of the program's other files in the step's output."""


def train_by_command(
    recipe: Recipe,
    examples: str,
    checkpoints: str,
    output: Path,
    past: str,
    on_epoch: Callable[[Epoch], None] | None,
) -> Training | None:
    """Run the recipe's program as the worker that TF_CONFIG names; the chief's model goes to `output`.

    Returns the chief's training record, None for other workers. past: the gang's history before this start, as JSON of
    `goodput.GangHistory`. on_epoch: as in `ProgramRecord`.

    Raises as `program.run`, `Ended.check` and `ProgramCheckpoints.kept`, and `ConfigurationError` if the recipe names a
    class that no example has, or the chief's program left no model, or one that later steps cannot use.
    """
    start, rank = time.monotonic(), current_rank()
    gang_history = GangHistory.model_validate_json(past) if past else GangHistory(started=start)
    kept = storage.join(checkpoints, "epochs.json") if rank.chief else ""
    record = ProgramRecord(gang_history, recipe.train.epochs, kept, on_epoch)
    local = str(storage.local(examples, remedy("preprocess")))
    if recipe.train.result == "keras":
        require_classes(recipe.named_classes, Examples.read(local).labels or [])
    with (
        storage.lease(checkpoints) if rank.chief else nullcontext(),
        tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True) as scratch,
    ):
        folder, program_output, saved = (Path(scratch) / name for name in ("program", "output", "checkpoints"))
        for path in (folder, program_output, saved):
            path.mkdir()
        program.prepare(recipe, folder)
        program_checkpoints = ProgramCheckpoints(storage.join(checkpoints, "program"), saved)
        program_checkpoints.restore()
        own_variables = {
            "TRAINYARD_RECIPE_FILE": str(folder / "recipe.json"),
            "TRAINYARD_CHECKPOINTS": str(saved),
            "TRAINYARD_OUTPUT": str(program_output),
            "TRAINYARD_RESTARTS": str(len(gang_history.restarts) + bool(gang_history.last_break)),
        }
        if recipe.data.format != "none":
            own_variables["TRAINYARD_EXAMPLES"] = local
        fetched = time.monotonic()
        environment = program.variables(recipe, rank, gang_addresses(), own_variables)
        with program_checkpoints.kept() if rank.chief else nullcontext():
            ended = program.run(recipe.train.command or [], folder, environment, record)
            program_checkpoints.killed = ended.code < 0
        ended.check()
        ran = time.monotonic() - fetched
        if ended.stopped and not (rank.chief and (program_output / _MODEL[recipe.train.result]).exists()):
            raise Preempted
        if rank.chief:
            metrics = _read_metrics(program_output) if recipe.train.result == "folder" else {}
            _move_result(program_output, output, recipe)
    if rank.chief:
        name, parameters = _check_result(recipe, local, output)
        seconds = {"fetch": round(fetched - start, 3), "program": round(ran, 3)}
        return _training_record(recipe, name, parameters, record, rank, seconds, metrics, gang_history)
    return None


def _move_result(program_output: Path, output: Path, recipe: Recipe) -> None:
    """Move the program's files to the step's output. Raises `ConfigurationError` without a model."""
    result = recipe.train.result
    model = program_output / _MODEL[result]
    if not (model.is_file() if result == "keras" else model.is_dir() and any(model.iterdir())):
        names = ", ".join(sorted(path.name for path in program_output.iterdir())[:5]) or "nothing"
        save = (
            f'Save the trained Keras model there: model.save(os.environ["TRAINYARD_OUTPUT"] + "/{model.name}")'
            if result == "keras"
            else "Leave the files of the model in that folder"
        )
        expected = model.name if result == "keras" else f"{model.name}/ with files in it"
        raise ConfigurationError(
            f"train.command: the program ended well and left no {expected} in $TRAINYARD_OUTPUT, but {names}. {save}."
        )
    if result == "folder":
        _require_servable(model)
    shutil.move(model, output / model.name)
    if (program_output / _TENSORBOARD).is_dir():
        shutil.move(program_output / _TENSORBOARD, output / _TENSORBOARD)
    if any(program_output.iterdir()):
        shutil.move(program_output, output / _REST)


def _require_servable(folder: Path) -> None:
    """Raise `ConfigurationError` if `folder` cannot become a version of the model."""
    reserved = next((name for name in (MANIFEST, EXTRA) if (folder / name).exists()), None)
    if reserved:
        raise ConfigurationError(f"train.command: {folder.name}/{reserved} is a name of Trainyard's own. Rename it.")
    if link := next((path for path in folder.rglob("*") if path.is_symlink()), None):
        link_name = link.relative_to(folder.parent)
        raise ConfigurationError(f"train.command: {link_name} is a link. Leave the file itself there.")


def _read_metrics(program_output: Path) -> dict[str, float]:
    """Return the metrics that the program wrote, empty without any. Raises `ConfigurationError` for a bad file."""
    try:
        return _NUMBERS.validate_json((program_output / version.METRICS).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        fault = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        why = " ".join(filter(None, [".".join(map(str, fault["loc"])), fault["msg"]])) if fault else str(error)
        raise ConfigurationError(
            f"train.command: the {version.METRICS} of the program is no JSON object of finite numbers by name ({why}). "
            'Write it as {"accuracy": 0.97}.'
        ) from error


def _check_result(recipe: Recipe, examples: str, output: Path) -> tuple[str, int]:
    """Return name and number of parameters of the checked model; 0 parameters for a folder."""
    if recipe.train.result == "folder":
        return _MODEL["folder"], 0
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    model = check_model(output / _MODEL["keras"], Examples.read(examples))
    return model.name, model.count_params()


def _training_record(
    recipe: Recipe,
    name: str,
    parameters: int,
    record: ProgramRecord,
    rank: Rank,
    seconds: dict[str, float],
    metrics: dict[str, float],
    past: GangHistory,
) -> Training:
    """Return the training record."""
    best = best_epoch(record.history)
    return Training(
        model=name,
        parameters=parameters,
        steps=record.steps,
        epochs=len(record.history),
        best_epoch=best.epoch if best else 0,
        precision="unknown",
        history=record.history,
        seconds=seconds,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        command=recipe.train.command or [],
        metrics=metrics,
        speed=TrainingSpeed(examples_per_second=record.examples_per_second, step_ms=1000 * record.step_seconds),
        gang=Gang(workers=rank.workers, restarts=past.restarts, worker_counts=past.worker_counts),
        machine=Machine(cores=len(os.sched_getaffinity(0))),
        start=TrainingStart(resumed_from=record.resumed_from),
        goodput=_goodput(past, record, seconds),
    )


def _goodput(past: GangHistory, record: ProgramRecord, seconds: dict[str, float]) -> Goodput | None:
    """Return goodput and its split, None if the program reported no steps."""
    if not record.step_seconds:
        return None
    spent = {"import": seconds["fetch"]}
    return past.goodput(record.steps, record.step_seconds, spent, launcher_heartbeat.read_queue_seconds())


def check_model(path: Path, examples: Examples) -> keras.Model:
    """Return the model at `path`; rewrite it with the feature's name if its only input is unnamed.

    Raises `ConfigurationError` if it does not map a dict of the features of `examples` to logits (batch, classes), or
    to (batch, targets) in their units for a regression, and as `load_foreign`.
    """
    # With TensorFlow, whose seconds and memory the program does not share.
    from trainyard.data import probabilities
    from trainyard.data.trained import load_foreign
    from trainyard.steps.train.engines.pushed_models import shapes_text

    model = _name_input(load_foreign(path), path, examples)
    outputs = examples.outputs
    expected = {feature.name: (None, *feature.shape) for feature in examples.features}
    tensors: Any = model.input
    inputs = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if inputs.keys() != expected.keys() or not all(_fits(inputs[name], expected[name]) for name in expected):
        raise _model_error(f"takes {shapes_text(inputs)}. It must take {shapes_text(expected)}")
    shape = tuple(getattr(model.output, "shape", ()))
    if shape != (None, outputs):
        meaning = "the logits of its classes" if examples.labels else "numbers in the unit of the label"
        raise _model_error(f"gives {shape}. It must give (None, {outputs}), {meaning}")
    if fault := probabilities.fault(model, examples):
        raise _model_error(fault)
    return model


def _name_input(model: keras.Model, path: Path, examples: Examples) -> keras.Model:
    """Return `model` with a dict of inputs. Raises `ConfigurationError` unless it has one, or a single input."""
    import keras

    tensors: Any = getattr(model, "input", None)
    if isinstance(tensors, dict):
        return model
    feature, *rest = examples.features
    if rest or not hasattr(tensors, "shape") or not _fits(tuple(tensors.shape), (None, *feature.shape)):
        names = ", ".join(feature.name for feature in examples.features)
        raise _model_error(f"takes inputs without names. It must be a functional model that takes a dict of {names}")
    inputs = keras.Input(feature.shape, name=feature.name, dtype=feature.dtype)
    named = keras.Model({feature.name: inputs}, model(inputs), name=model.name)
    named.save(path)
    return named


def _fits(shape: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    """Return True if inputs of shape `expected` match `shape`; None is any size."""
    return len(shape) == len(expected) and all(a in (None, b) for a, b in zip(shape, expected, strict=True))


def _model_error(fault: str) -> ConfigurationError:
    return ConfigurationError(f"train.command: the model.keras of the program {fault}.")
