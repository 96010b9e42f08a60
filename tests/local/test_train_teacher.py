"""A small network that learns from the answers of a pushed model too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import train_folders
from test_train_warm_start import push

from trainyard.contract import weights as weights_contract
from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError
from trainyard.models.costs.cost import cost
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import run
from trainyard_control.planning import cost as planned
from trainyard_control.planning.data import DataSummary

pytestmark = pytest.mark.usefixtures("warm_processes")

RECIPE = """
name: tiny
seed: 3
data: {{format: image_folder, bundled: digits, channels: 1}}
model: {{name: cnn_small, dropout: 0{weights}}}
train:
  epochs: {epochs}
  batch_size: 8
  workers: {workers}
  optimizer: {{name: {optimizer}, learning_rate: 0.003, clip_norm: null}}
  augment: {{shift: 0.1, rotate: 10}}
{teacher}
"""
TOLERANCE = 1e-5  # of the weights after two epochs of SGD in float32, whose sums have another order


def recipe(teacher: str = "", weights: str = "", **settings: object) -> Recipe:
    settings = {"epochs": 20, "workers": 1, "optimizer": "adamw", **settings}
    settings["teacher"] = teacher and f"  teacher: {{model: {teacher}}}"
    text = RECIPE.format(weights=weights and f", weights: {weights}", **settings)
    return documents.parse(text, Recipe, name="tiny")


def train(folder: Path, examples: str, settings: Recipe) -> Training:
    output = folder / "output"
    output.mkdir(parents=True)
    run.run(settings, examples, str(folder / "checkpoints"), output)
    return Training.read(str(output))


def best(training: Training) -> float:
    return max(epoch.metric for epoch in training.history)


def weights(folder: Path) -> np.ndarray:
    model = keras.saving.load_model(folder / "output" / "model.keras")
    return np.concatenate([weight.numpy().ravel() for weight in model.trainable_variables])


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All digits, of which 40 to learn from."""
    return train_folders.digits(tmp_path_factory.mktemp("few") / "examples", train_limit=40)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pushed model that has learned from all digits."""
    folder = tmp_path_factory.mktemp("teacher")
    assert best(train(folder, train_folders.digits(folder / "examples"), recipe(epochs=3))) > 0.9
    return push(folder / "output" / "model.keras", folder / "models" / "1")


def test_a_teacher_takes_a_student_further_than_the_labels_alone(version: str, examples: str, tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", examples, recipe())
    taught = train(tmp_path / "taught", examples, recipe(version))
    assert best(taught) > best(alone) + 0.04  # measured: 0.08 to 0.17
    assert (alone.start.teacher, taught.start.teacher) == ("", version)
    teacher = cost(keras.saving.load_model(f"{version}/assets.extra/model.keras")).flops_per_example
    assert taught.costs.flops_per_example == pytest.approx(alone.costs.flops_per_example + teacher / 3)


def test_the_plan_counts_the_teachers_forward_pass_and_the_key_its_version(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "_CACHE", tmp_path / "costs")
    data = DataSummary(40, 200, 10, (8, 8, 1))
    alone, taught = (planned.from_recipe(student, data) for student in (recipe(), recipe(version)))
    teacher = cost(keras.saving.load_model(f"{version}/assets.extra/model.keras"))
    assert taught.flops_per_example == pytest.approx(alone.flops_per_example + teacher.flops_per_example / 3)
    assert (taught.parameters, taught.saved_activations_per_example) == (
        alone.parameters,
        alone.saved_activations_per_example,
    )
    assert planned.from_recipe(recipe(version), data) == taught and len([*(tmp_path / "costs").iterdir()]) == 1
    other = push(Path(version, "assets.extra", "model.keras"), tmp_path / "models" / "2")
    assert len({weights_contract.digest(recipe(model)) for model in ("", version, other)}) == 2  # of equal content
    with pytest.raises(ConfigurationError, match=r"train\.teacher: .*nowhere: is not the folder of a version"):
        weights_contract.digest(recipe(str(tmp_path / "nowhere")))


def test_two_workers_and_the_other_engine_learn_the_same(
    version: str, examples: str, tmp_path: Path, train_with_jax: Callable[[Path, str], None]
) -> None:
    train(tmp_path / "untaught", examples, recipe(epochs=2))
    # The engines draw other first weights.
    first = push(tmp_path / "untaught" / "output" / "model.keras", tmp_path / "models" / "1")
    settings = {"epochs": 2, "optimizer": "sgd", "weights": first}
    train(tmp_path / "one", examples, recipe(version, **settings))
    train(tmp_path / "two", examples, recipe(version, workers=2, **settings))
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "recipe.yaml").write_text(recipe(version, **settings).model_dump_json(by_alias=True))
    train_with_jax(tmp_path / "jax", examples)
    assert Training.read(str(tmp_path / "jax" / "output")).machine.engine == "jax"
    one = weights(tmp_path / "one")
    for other in ("two", "jax"):
        difference = np.linalg.norm(weights(tmp_path / other) - one) / np.linalg.norm(one)
        assert difference < TOLERANCE, other
    assert np.linalg.norm(weights(tmp_path / "untaught") - one) / np.linalg.norm(one) > 100 * TOLERANCE


def test_a_teacher_of_other_images_or_classes_is_refused(version: str, tmp_path: Path) -> None:
    larger = train_folders.digits(tmp_path / "larger", limit=60, scale=2)
    with pytest.raises(ConfigurationError, match=r"takes image \(8, 8, 1\), .* are image \(16, 16, 1\)\."):
        train(tmp_path / "a", larger, recipe(version))
    half = train_folders.digits(tmp_path / "half", limit=60, classes=range(5))
    with pytest.raises(ConfigurationError, match=r"train\.teacher: .* tells apart 10 classes, the data have 5"):
        train(tmp_path / "b", half, recipe(version))
    with pytest.raises(ConfigurationError, match=r"half/assets.extra/model.keras: no model that Trainyard pushed"):
        train(tmp_path / "c", half, recipe(half))
