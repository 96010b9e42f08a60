"""Fine-tuning in Trainyard against what one would write in bare Keras: the same network, weights, images and steps.

    python -m benchmarks.training.fine_tuning

prints its part of docs/benchmarks.md. The weights come from a training on the digits 0 to 4, the images are the
digits 5 to 9. Each training is a process of its own; they take turns, an epoch each, so that another load on the
machine meets all of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from benchmarks.data import random_images
from trainyard.contract.document import SPLITS
from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.models.weights import HEAD, load_weights
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import session
from trainyard.steps.train.engines.network import network
from trainyard.steps.train.engines.tensorflow_engine import TensorFlowSteps
from trainyard.steps.train.input.input import InMemory

SEEDS = (1, 2, 3)
OURS, FIT = "Trainyard", "`fit`"
SIDE, A_CLASS, LEARNT, BATCH = 64, 160, 64, 32
"""Pixels of a side; images a class, and how many of them are learnt; examples a batch."""
SOURCE_EPOCHS, HEAD_EPOCHS, EPOCHS, FACTOR = 8, 4, 12, 0.1
"""Epochs of the weights' own training, of the last layer alone and of both phases; the second one's learning rate."""
STEPS = 5 * LEARNT // BATCH
"""Steps an epoch: no batch is padded."""
RECIPE = """
name: digits
data: {{format: image_folder, bundled: digits, channels: 1}}
model: {{name: mobilenet_v3_small, dropout: 0{weights}}}
train:
  epochs: {epochs}
  batch_size: {batch}
  optimizer: {{name: adamw, learning_rate: 0.003}}
{fine_tune}
"""


@dataclass(frozen=True)
class Cost:
    """Wall and CPU seconds."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Cost:
        """Return the process's clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Cost) -> Cost:
        """Return the time that passed in between."""
        return Cost(self.wall - start.wall, self.cpu - start.cpu)


@dataclass
class Turns:
    """The turns of one training: `epochs` are the costs of the steps in each epoch, without evaluation and saving."""

    pipe: Connection
    epochs: list[Cost] = field(default_factory=list)
    waited: float = 0.0
    _start: Cost = Cost(0, 0)

    def start_steps(self) -> None:
        """Begin an epoch."""
        self._start = Cost.now()

    def end_steps(self) -> None:
        """Note that the epoch's steps are done."""
        self.epochs.append(Cost.now().since(self._start))

    def pass_on(self) -> None:
        """Let the other trainings have an epoch each."""
        start = time.perf_counter()
        self.pipe.send(None)
        self.pipe.recv()
        self.waited += time.perf_counter() - start


@dataclass(frozen=True)
class Result:
    """One fine-tuning: its epochs' steps, all of it from the network to the saved model, the accuracy on the test."""

    epochs: list[Cost]
    whole: Cost
    accuracy: float

    def phase(self, number: int) -> list[Cost]:
        """Return the epochs of a phase; the first one traces."""
        return self.epochs[:HEAD_EPOCHS] if number == 0 else self.epochs[HEAD_EPOCHS:]

    def step_ms(self, number: int, clock: str) -> float:
        """Return the median milliseconds a step of a phase, without its first epoch."""
        return 1000 * statistics.median(getattr(epoch, clock) for epoch in self.phase(number)[1:]) / STEPS

    def tracing(self, clock: str) -> float:
        """Return by how many seconds both phases' first epochs are longer than the others."""
        longer = (getattr(self.phase(n)[0], clock) - self.step_ms(n, clock) * STEPS / 1000 for n in (0, 1))
        return sum(longer)


def measure(seeds: tuple[int, ...] = SEEDS) -> dict[str, list[Result]]:
    """Return the results of every way, one a seed."""
    results: dict[str, list[Result]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as base:
        weights = Path(base) / "weights"
        weights.mkdir()
        source = _examples(f"{base}/source", 0, A_CLASS * 3 // 5)
        session.train(_recipe(1, SOURCE_EPOCHS), source.uri, f"{base}/checkpoints", "source", weights)
        folder = _examples(f"{base}/few", 5, LEARNT)
        fine_tune = f"  fine_tune: {{head_epochs: {HEAD_EPOCHS}, learning_rate_factor: {FACTOR}}}"
        for seed in seeds:
            recipe = _recipe(seed, EPOCHS, f", weights: {weights / 'model.keras'}", fine_tune)
            for way, result in _in_turn(recipe, folder.uri).items():
                results[way].append(result)
                print(way, seed, result, file=sys.stderr)
    return results


def section(results: dict[str, list[Result]]) -> str:
    """Return the part of the page."""
    rows = "\n".join(_row(way, runs) for way, runs in results.items())
    head, layers, whole = (
        " and ".join(f"{_ratio(results, partial(number, clock=clock)):.2f}" for clock in ("wall", "cpu"))
        for number in (*(partial(Result.step_ms, number=phase) for phase in (0, 1)), _whole)
    )
    rest, judged = EPOCHS - HEAD_EPOCHS, 5 * (A_CLASS - LEARNT - A_CLASS // 5)
    return f"""`mobilenet_v3_small` at {SIDE} x {SIDE} pixels: {HEAD_EPOCHS} epochs of the last layer, {rest} of all,
{STEPS} steps of {BATCH} images each. Medians over {len(results[OURS])} seeds, CPU time in parentheses. *Tracing* is the
extra time of each phase's first epoch; *total* is from building the network to the saved model. Trainyard / `fit`, wall
and CPU: a step of the last layer **{head}**, of all layers **{layers}**, total **{whole}**.

| | last layer, ms a step | all layers, ms a step | tracing, s | total, s | accuracy on {judged} others, % |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}"""


def _row(way: str, runs: list[Result]) -> str:
    cells = [
        " ".join(
            text.format(statistics.median(number(run, clock=clock) for run in runs))
            for clock, text in (("wall", "{:.1f}"), ("cpu", "({:.1f})"))
        )
        for number in (partial(Result.step_ms, number=0), partial(Result.step_ms, number=1), Result.tracing, _whole)
    ]
    accuracy = [100 * run.accuracy for run in runs]
    cells.append(f"{statistics.mean(accuracy):.1f} ({min(accuracy):.1f} – {max(accuracy):.1f})")
    return f"| {way} | {' | '.join(cells)} |"


def _ratio(results: dict[str, list[Result]], number: Callable[[Result], float]) -> float:
    return statistics.median(
        number(ours) / number(theirs) for ours, theirs in zip(results[OURS], results[FIT], strict=True)
    )


def _whole(run: Result, clock: str) -> float:
    return float(getattr(run.whole, clock))


def _in_turn(recipe: Recipe, examples: str) -> dict[str, Result]:
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    results: dict[str, Result] = {}
    for way in WAYS:
        pipes[way], pipe = spawn.Pipe()
        spawn.Process(target=_work, args=(way, recipe, examples, pipe), daemon=True).start()
        pipe.close()
    for pipe in pipes.values():
        pipe.recv()  # imported
    while len(results) < len(pipes):
        for way in [way for way in WAYS if way not in results]:
            pipes[way].send(None)
            if (result := pipes[way].recv()) is not None:
                results[way] = result
    return results


def _work(way: str, recipe: Recipe, examples: str, pipe: Connection) -> None:
    turns, folder = Turns(pipe), open_examples(examples)
    turns.pass_on()
    turns.waited, start = 0.0, Cost.now()
    with tempfile.TemporaryDirectory() as output:
        WAYS[way](recipe, folder, turns, Path(output))
        whole = Cost.now().since(start)
        model = keras.saving.load_model(Path(output) / "model.keras")
    test = InMemory.read(folder, "test", encoded=False)
    logits = model.predict({name: values.numpy() for name, values in test.features.items()}, verbose=0)
    accuracy = float(np.mean(np.argmax(logits, axis=-1) == test.labels.numpy()))
    pipe.send(Result(turns.epochs, Cost(whole.wall - turns.waited, whole.cpu), accuracy))


def _trainyard(recipe: Recipe, folder: ExampleFolder, turns: Turns, output: Path) -> None:
    train, write_summary = TensorFlowSteps.train, session.write_summary

    def timed(self: TensorFlowSteps, *arguments: Any) -> list[float]:
        # After the last epoch the loop measures a step on one batch over and over.
        measured = len(turns.epochs) == EPOCHS
        if not measured and self.step % STEPS == 0:
            turns.start_steps()
        values = train(self, *arguments)
        if not measured and self.step % STEPS == 0:
            turns.end_steps()
        return values

    def ended(*arguments: Any) -> None:
        write_summary(*arguments)
        turns.pass_on()

    with mock.patch.object(TensorFlowSteps, "train", timed), mock.patch.object(session, "write_summary", ended):
        training = session.train(recipe, folder.uri, f"{output}/checkpoints", "benchmark", output)
    print(training.seconds, file=sys.stderr)


def _fit(recipe: Recipe, folder: ExampleFolder, turns: Turns, output: Path) -> None:
    train = _batches(folder, "train").shuffle(1024, seed=recipe.seed).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    evaluation = _batches(folder, "eval").batch(BATCH).prefetch(tf.data.AUTOTUNE)
    flat = network(recipe, folder.document, (0.0, 1.0), "float32")
    load_weights(recipe.model, flat, folder.document.labels)
    # As https://keras.io/guides/transfer_learning does: BatchNormalization in inference mode in both phases.
    base = keras.Model(flat.input, flat.layers[-1].input)
    model = keras.Model(flat.input, flat.get_layer(HEAD)(base(flat.input, training=False)))
    callbacks = [
        keras.callbacks.ModelCheckpoint(output / "model.keras", save_best_only=True),
        _Clock(turns),
    ]
    for frozen, epochs, factor in ((True, HEAD_EPOCHS, 1.0), (False, EPOCHS - HEAD_EPOCHS, FACTOR)):
        base.trainable = not frozen
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0,
            (epochs - 1) * STEPS,
            warmup_target=factor * recipe.train.optimizer.learning_rate,
            warmup_steps=STEPS,
        )
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=1e-4, global_clipnorm=1.0)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        model.fit(train, validation_data=evaluation, epochs=epochs, callbacks=callbacks, verbose=0)


class _Clock(keras.callbacks.Callback):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names them
        self.turns.start_steps()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras names it
        self.turns.end_steps()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names them
        self.turns.pass_on()


WAYS: dict[str, Callable[[Recipe, ExampleFolder, Turns, Path], None]] = {
    OURS: _trainyard,
    FIT: _fit,
}


def _batches(folder: ExampleFolder, split: Any) -> tf.data.Dataset:
    examples = InMemory.read(folder, split, encoded=False)
    return tf.data.Dataset.from_tensor_slices((examples.features, examples.labels))


def _examples(uri: str, first: int, learnt: int) -> ExampleFolder:
    """Return the five digits from `first` on as preprocess writes them, `learnt` images of each to learn from."""
    bunch = load_digits()
    rows: dict[str, list[tuple[bytes, int]]] = {split: [] for split in SPLITS}
    for label in range(5):
        for number, image in enumerate(bunch.images[bunch.target == first + label][:A_CLASS]):
            pixels = np.kron(np.clip(image * 16, 0, 255).astype(np.uint8), np.ones((SIDE // 8, SIDE // 8), np.uint8))
            split = "eval" if number < A_CLASS // 5 else "train" if number < A_CLASS // 5 + learnt else "test"
            rows[split].append((tf.io.encode_png(pixels[..., None]).numpy(), label))
    return open_examples(random_images.commit(uri, (SIDE, SIDE, 1), 5, rows))


def _recipe(seed: int, epochs: int, weights: str = "", fine_tune: str = "") -> Recipe:
    text = RECIPE.format(epochs=epochs, batch=BATCH, weights=weights, fine_tune=fine_tune)
    return documents.parse(text, Recipe, name="digits").model_copy(update={"seed": seed})


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # events of the training
        found = measure()
    print(section(found))
