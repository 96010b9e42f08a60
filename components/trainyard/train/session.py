"""One training run in this process, from the examples to the saved model and its evidence."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import tensorflow as tf

from trainyard.core import events
from trainyard.core.artifacts import Epoch, Training
from trainyard.core.errors import DataError
from trainyard.core.recipe import Recipe
from trainyard.data.examples import open_examples
from trainyard.train import strategy as devices
from trainyard.train.checkpoint import Checkpoints
from trainyard.train.input import Input, class_weights
from trainyard.train.loop import Loop
from trainyard.train.network import deployable, network, target_moments
from trainyard.train.objective import Classification, Objective, Regression
from trainyard.train.optimizer import Schedule, optimizer
from trainyard.train.steps import Steps

# Chosen: real batches slower than a cached one by more than this say that the input is the bottleneck.
_INPUT_BOUND = 1.2


def train(recipe: Recipe, examples: str, checkpoints: str, identity: str, output: Path) -> Training:
    """Write model.keras and tensorboard/ into `output` and return the evidence, without the import's seconds.

    Goes on from the newest checkpoint below `checkpoints` that was made with the same `identity`.
    """
    start = time.perf_counter()
    folder = open_examples(examples)
    document = folder.document
    split = document.splits["train"]
    data = Input(recipe, folder, class_weights(recipe, document.labels, split.class_counts))
    targets = target_moments(folder.labels("train")) if document.task == "regression" else (0.0, 1.0)
    precision = devices.precision(recipe.train)
    steps = _build(recipe, data, targets, precision)
    events.emit(
        "training",
        model=steps.model.name,
        parameters=steps.model.count_params(),
        devices=",".join(devices.devices()),
        precision=precision,
        examples=split.examples,
        steps_per_epoch=data.steps_per_epoch,
        seconds_to_build=round(time.perf_counter() - start, 2),
    )
    built = time.perf_counter() - start
    writer = tf.summary.create_file_writer(str(output / "tensorboard"))
    saved = Checkpoints(checkpoints, identity, recipe.train.checkpoints.keep)
    loop = Loop(recipe.train, steps, data, saved, lambda epoch: _write_summary(writer, epoch))
    try:
        loop.run()
    except tf.errors.DataLossError as error:
        raise DataError(
            f"{examples}: a shard is corrupt ({error.message.splitlines()[0]}). Run with --from preprocess to write it again."
        ) from error
    finally:
        writer.close()
    return _finish(recipe, loop, output, {"build": built}, targets, precision)


def _build(recipe: Recipe, data: Input, targets: tuple[float, float], precision: str) -> Steps:
    strategy = devices.strategy()
    document = data.folder.document
    objective: Objective = Regression(targets[1])
    if document.task == "classification":
        objective = Classification(len(document.labels or []), recipe.train.label_smoothing)
    # Layers count from one again, so that their names do not depend on what the process built before.
    keras.utils.clear_session(free_memory=False)
    with strategy.scope():
        model = network(recipe, document, targets, precision)
        schedule = Schedule(recipe.train, data.steps_per_epoch)
        chosen = optimizer(recipe.train, schedule, float16=precision == "float16")
        chosen.build(model.trainable_variables)
        return Steps(strategy, model, chosen, schedule, objective)


def _finish(
    recipe: Recipe, loop: Loop, output: Path, seconds: dict[str, float], targets: tuple[float, float], precision: str
) -> Training:
    cached = loop.cached_step_seconds()
    best = loop.restore_best()
    model = loop.steps.model
    deployable(model, recipe, loop.data.folder.document, targets).save(output / "model.keras")
    real = loop.step_seconds
    return Training(
        model=recipe.model.name or model.name,
        parameters=model.count_params(),
        steps=loop.history[-1].step,
        epochs=len(loop.history),
        best_epoch=best.epoch,
        workers=1,
        devices=devices.devices(),
        precision=precision,
        examples_per_second=loop.data.batch_size / real,
        bottleneck="input" if real > _INPUT_BOUND * cached else "compute",
        step_ms=1000 * real,
        cached_step_ms=1000 * cached,
        resumed_from=loop.resumed_from,
        history=loop.history,
        seconds={name: round(value, 3) for name, value in {**seconds, **loop.seconds}.items()},
    )


def _write_summary(writer: tf.summary.SummaryWriter, epoch: Epoch) -> None:
    with writer.as_default(step=epoch.step):
        for name in ("learning_rate", "train_loss", "eval_loss", "metric", "examples_per_second"):
            tf.summary.scalar(name, getattr(epoch, name))
