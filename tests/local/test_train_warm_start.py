"""Trainings that begin with the weights of a pushed model."""

from __future__ import annotations

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import train_folders
from tests.damage import flip

from trainyard.contract.artifacts.train import TARGET_INVERSE, Training
from trainyard.contract.version import EXTRA
from trainyard.data.examples import open_examples
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import run
from trainyard.steps.train.engines import pushed_models
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

RECIPE = """
name: tiny
seed: 3
data: {{format: image_folder, bundled: digits, channels: 1}}
model: {{name: cnn_small}}
train:
  workers: {workers}
  epochs: 1
  batch_size: 32
  schedule: constant
  warmup_epochs: 0
  optimizer: {{name: sgd, learning_rate: {rate}, weight_decay: 0}}
"""
STILL = 1e-12  # a learning rate that leaves weights where they are, to six digits


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=120)


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory, examples: str) -> str:
    folder = tmp_path_factory.mktemp("champion")
    train(folder, examples, rate=0.05)
    return push(folder / "output" / "model.keras", folder / "models" / "1")


def push(model: Path, version: Path, labels: int = 10) -> str:
    """Leave `model` as push does, without what servers read."""
    with storage.stage(str(version), producer="trainyard.push") as folder:
        (folder / EXTRA).mkdir()
        shutil.copyfile(model, folder / EXTRA / "model.keras")
        (folder / EXTRA / "labels.txt").write_text("".join(f"{label}\n" for label in range(labels)))
    return str(version)


def train(folder: Path, examples: str, rate: float, start: str = "", workers: int = 1) -> Training:
    recipe = documents.parse(RECIPE.format(rate=rate, workers=workers), Recipe, name="tiny")
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)
    run.run(recipe, examples, str(folder / "checkpoints"), output, start)
    return Training.read(str(output))


def weights(path: Path) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in keras.saving.load_model(path).trainable_variables}


def test_a_training_begins_with_the_champions_weights_and_says_so(examples: str, champion: str, tmp_path: Path) -> None:
    assert train(tmp_path, examples, STILL, champion).start.warm_start == champion
    ours, theirs = (
        weights(path) for path in (tmp_path / "output" / "model.keras", Path(champion, EXTRA, "model.keras"))
    )
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-9)


def test_checkpoints_win_over_the_warm_start(examples: str, champion: str, tmp_path: Path) -> None:
    assert train(tmp_path, examples, STILL).start.warm_start == ""
    cold = weights(tmp_path / "output" / "model.keras")
    resumed = train(tmp_path, examples, STILL, champion)
    assert resumed.start.resumed_from == resumed.steps
    for name, value in weights(tmp_path / "output" / "model.keras").items():
        np.testing.assert_array_equal(value, cold[name])


def test_another_model_other_classes_and_a_damaged_file_are_refused(
    examples: str, champion: str, tmp_path: Path
) -> None:
    model = Path(champion, EXTRA, "model.keras")
    image = keras.Input((8, 8, 1), name="image")
    other = keras.Model({"image": image}, keras.layers.Dense(10, name="logits")(keras.layers.Flatten()(image)))
    other.save(tmp_path / "other.keras")
    with pytest.raises(
        ConfigurationError, match=r"another model: its variable 'conv2d/bias' is missing, and \(32,\) in"
    ):
        train(tmp_path / "model", examples, STILL, push(tmp_path / "other.keras", tmp_path / "other"))
    scaled = keras.layers.Activation("exponential", name=TARGET_INVERSE[0])(other.output)
    keras.Model(other.input, scaled).save(tmp_path / "scaled.keras")
    with pytest.raises(ConfigurationError, match=r"its targets on another scale than train\.target\.scale: none"):
        train(tmp_path / "model", examples, STILL, push(tmp_path / "scaled.keras", tmp_path / "scaled"))
    picture = keras.Input((8, 8, 1), name="picture")
    keras.Model({"picture": picture}, other(picture)).save(tmp_path / "renamed.keras")
    with pytest.raises(ConfigurationError, match=r"takes other features \('image' is only in one of them\), so its"):
        train(tmp_path / "model", examples, STILL, push(tmp_path / "renamed.keras", tmp_path / "renamed"))
    fewer = push(model, tmp_path / "fewer", labels=9)
    with pytest.raises(
        ConfigurationError, match=r"tells apart 9 classes, the data have 10 \('9' is only in one of them"
    ):
        train(tmp_path / "classes", examples, STILL, fewer)
    flip(Path(push(model, tmp_path / "damaged"), EXTRA, "model.keras"))
    with pytest.raises(DataError, match="its content differs from its manifest's checksum"):
        train(tmp_path / "bytes", examples, STILL, str(tmp_path / "damaged"))
    with storage.stage(str(tmp_path / "foreign"), producer="somebody") as folder:
        (folder / EXTRA).mkdir()
        shutil.copyfile(model, folder / EXTRA / "model.keras")
        shutil.copyfile(Path(champion, EXTRA, "labels.txt"), folder / EXTRA / "labels.txt")
    with pytest.raises(ConfigurationError, match="no model that Trainyard pushed"):
        train(tmp_path / "producer", examples, STILL, str(tmp_path / "foreign"))


def test_targets_in_another_order_are_refused(examples: str, tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "1"), producer="trainyard.push") as folder:
        (folder / EXTRA).mkdir()
        (folder / EXTRA / "targets.txt").write_text("width\nheight\n")
    document = open_examples(examples).document.model_copy(update={"labels": None, "targets": ["height", "width"]})
    with pytest.raises(ConfigurationError, match=r"1 predicts 2 targets, the data have 2 \(their order changed\)\. Do"):
        pushed_models.require_same_ids(str(tmp_path / "1"), examples, document, "train.teacher", "Do.")


def test_two_workers_begin_as_one_does(examples: str, champion: str, tmp_path: Path) -> None:
    for workers in (1, 2):
        training = train(tmp_path / str(workers), examples, 0.02, champion, workers=workers)
        assert (training.gang.workers, training.start.warm_start) == (workers, champion)
    one, two = (weights(tmp_path / name / "output" / "model.keras") for name in ("1", "2"))
    difference = np.sqrt(sum(np.sum((one[name] - two[name]) ** 2) for name in one))
    assert difference < 1e-5 * np.sqrt(sum(np.sum(value**2) for value in one.values()))
