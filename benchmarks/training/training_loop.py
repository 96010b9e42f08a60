"""Trainyard's training loop against a bare Keras `fit` of the same model, data, batch and schedule.

    python -m benchmarks.training.training_loop

prints one JSON object. A step's time leaves out each run's first epoch, which compiles, and all evaluation. The two are
run in turn for each seed, so that another load on the machine meets both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Augment
from trainyard.steps.train import session
from trainyard.steps.train.engines.network import network
from trainyard.steps.train.engines.optimizer import RateSchedule, optimizer
from trainyard.steps.train.input.input import Input

SEEDS = (1, 2, 3)


def compare(recipe: Recipe, examples: str, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """Return step milliseconds, their ratio, and the test accuracy of both loops, a value a seed."""
    folder = open_examples(examples)
    result: dict[str, Any] = {
        "recipe": recipe.name,
        "batch_size": recipe.train.batch_size,
        "epochs": recipe.train.epochs,
    }
    runs: dict[str, list[tuple[float, float]]] = {"trainyard": [], "keras_fit": []}
    for seed in seeds:
        seeded = recipe.model_copy(update={"seed": seed})
        runs["keras_fit"].append(_keras_fit(seeded, folder))
        runs["trainyard"].append(_trainyard(seeded, folder))
    for name, pairs in runs.items():
        result[name] = {"step_ms": [round(step, 3) for step, _ in pairs], "accuracy": [round(a, 4) for _, a in pairs]}
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(runs["trainyard"], runs["keras_fit"], strict=True)]
    result["step_time_ratio"] = round(statistics.median(ratios), 3)
    means = {name: statistics.mean(accuracy for _, accuracy in pairs) for name, pairs in runs.items()}
    result["accuracy_difference"] = round(means["trainyard"] - means["keras_fit"], 4)
    return result


def main() -> None:
    """Print the comparison on the digits, without augmentation, which `fit` has no counterpart of.

    With --part it is the part of docs/benchmarks.md, else JSON.
    """
    recipe = recipes.load("digits")
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"augment": Augment()})})
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainyard.steps", "preprocess"]
        subprocess.run([*command, "--recipe", "digits", "--output", f"{folder}/examples"], check=True)
        found = compare(recipe, f"{folder}/examples")
    print(section(found) if "--part" in sys.argv else json.dumps(found, indent=1))


def section(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    ours, theirs = (statistics.median(result[name]["step_ms"]) for name in ("trainyard", "keras_fit"))
    return f"""The same model (`cnn_small`), data, batch ({result["batch_size"]}), schedule and number of epochs
({result["epochs"]}); `fit` with its defaults, one step a call. Trainyard runs many steps a call: {ours:.2f} ms a step
against {theirs:.2f}, median ratio **{result["step_time_ratio"]:.2f}** of {len(SEEDS)} seeds. Difference of mean test
accuracy: {result["accuracy_difference"]:+.4f}."""


def _trainyard(recipe: Recipe, folder: ExampleFolder) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "output"
        output.mkdir()
        training = session.train(recipe, folder.uri, f"{name}/checkpoints", "benchmark", output)
        model = keras.saving.load_model(output / "model.keras")
    warm = [recipe.train.batch_size / epoch.examples_per_second for epoch in training.history[1:]]
    return 1000 * statistics.mean(warm), _accuracy(model, folder)


def _keras_fit(recipe: Recipe, folder: ExampleFolder) -> tuple[float, float]:
    data = Input(recipe, folder, None)
    model = network(recipe, folder.document, (0.0, 1.0), "float32")
    classes = len(folder.document.labels or [])
    model.compile(
        optimizer(recipe.train, RateSchedule(recipe.train, data.steps_per_epoch), float16=False),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=recipe.train.label_smoothing),
        metrics=["accuracy"],
    )
    clock = _Clock()
    train, evaluation = (_arrays(folder, split, classes) for split in ("train", "eval"))
    best = keras.callbacks.ModelCheckpoint(
        Path(tempfile.mkdtemp()) / "best.weights.h5", save_best_only=True, save_weights_only=True
    )
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[1]), seed=recipe.seed)
    model.fit(
        batches.batch(recipe.train.batch_size).prefetch(tf.data.AUTOTUNE),
        validation_data=tf.data.Dataset.from_tensor_slices(evaluation).batch(recipe.train.batch_size),
        epochs=recipe.train.epochs,
        callbacks=[clock, best],
        verbose=0,
    )
    model.load_weights(best.filepath)
    return 1000 * statistics.mean(clock.seconds[1:]) / data.steps_per_epoch, _accuracy(model, folder)


class _Clock(keras.callbacks.Callback):
    """Seconds of each epoch from its beginning to the beginning of its validation."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._start = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names them
        self._start = time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras names it
        self.seconds.append(time.perf_counter() - self._start)


def _arrays(folder: ExampleFolder, split: Any, classes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    parts = [(features, labels.numpy()) for features, labels, _ in folder.batches(split, 1024)]
    features = {name: np.concatenate([part[name].numpy() for part, _ in parts]) for name in parts[0][0]}
    return features, np.eye(classes, dtype=np.float32)[np.concatenate([labels for _, labels in parts])]


def _accuracy(model: keras.Model, folder: ExampleFolder) -> float:
    right = total = 0
    for features, labels, _ in folder.batches("test", 256):
        right += int(np.sum(np.argmax(model.predict_on_batch(features), axis=-1) == labels.numpy()))
        total += len(labels)
    return right / total


if __name__ == "__main__":
    main()
