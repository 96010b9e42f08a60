"""Progressive resizing: the first epochs see smaller images, with the same layers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import train_folders

from trainyard.contract import epochs
from trainyard.contract.artifacts.preprocess import Feature
from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError
from trainyard.models.build import build
from trainyard.runtime import step
from trainyard.spec.model import ModelConfig
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Stage
from trainyard.steps.train import run as train
from trainyard.steps.train.engines.resizing import Resizing, triangle
from trainyard.steps.train.loop.speed import SpeedMeter

IMAGE = Feature(name="image", dtype="float32", shape=(48, 64, 3), vocabulary_size=None, encoded=True)


def test_images_are_shrunk_as_tensorflow_does_without_aliasing() -> None:
    images = np.random.default_rng(1).uniform(0, 255, (2, 48, 64, 3)).astype(np.float32)
    resizing = Resizing(build(ModelConfig(name="mobilenet_v3_small"), [IMAGE], 5, 1), [Stage(epochs=2, size=36)], 10)
    resizing.enter(19)
    small = resizing.resize_images({"image": tf.constant(images)})["image"]
    expected = tf.image.resize(images, (36, 48), antialias=True)
    assert small.shape == (2, 36, 48, 3)
    np.testing.assert_allclose(small, expected, atol=1e-3)
    resizing.enter(20)
    assert resizing.resize_images({"image": tf.constant(images)})["image"].shape == images.shape
    np.testing.assert_allclose(triangle(4, 2), [[3 / 7, 3 / 7, 1 / 7, 0], [0, 1 / 7, 3 / 7, 3 / 7]], rtol=1e-6)


def test_the_small_model_has_the_layers_of_the_large_one() -> None:
    model = build(ModelConfig(name="resnet50_v1_5"), [IMAGE], 5, 1)
    resizing = Resizing(model, [Stage(epochs=1, size=32), Stage(epochs=1, size=40)], 10)
    assert [resizing.number(step) for step in (0, 9, 10, 19, 20, 99)] == [0, 0, 1, 1, 2, 2]
    small = resizing.model()
    assert small.input["image"].shape == (None, 32, 43, 3)
    assert all(
        ours is theirs for ours, theirs in zip(small.trainable_variables, model.trainable_variables, strict=True)
    )


def test_a_network_of_one_size_is_named() -> None:
    own = keras.Sequential([keras.Input((48, 64, 3), name="image"), keras.layers.Flatten(), keras.layers.Dense(5)])
    functional = keras.Model({"image": own.inputs[0]}, own.outputs[0], name="own")
    with pytest.raises(ConfigurationError, match="the network 'own' takes images of one size only"):
        Resizing(functional, [Stage(epochs=1, size=32)], 10)


MODULE = """
import keras
def build_model(features, outputs):
    image = keras.Input((40, 40, 1), name="image")
    x = keras.layers.Conv2D(8, 3, activation="relu", name="conv")(keras.layers.Rescaling(1 / 255)(image))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.BatchNormalization()(x))
    return keras.Model({"image": image}, keras.layers.Dense(outputs)(x), name="pooled")
"""


def growing(**settings: object) -> Recipe:
    """Return a recipe of two epochs, the first of them on smaller images."""
    return Recipe.model_validate(
        {
            "name": "grows",
            "data": {"format": "image_folder", "bundled": "digits", "channels": 1},
            "module": "own.py",
            "files": {"own.py": MODULE},
            "train": {"epochs": 2, "progressive_resizing": [{"epochs": 1, "size": 32}], **settings},
        }
    )


def test_a_training_grows_its_images_and_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[int] = []
    shrunk = Resizing.resize_images

    def noted(self: Resizing, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        smaller = shrunk(self, features)
        sides.append(int(smaller["image"].shape[1]))
        return smaller

    monkeypatch.setattr(Resizing, "resize_images", noted)
    recipe = growing(batch_size=32, checkpoints={"every_steps": 1, "keep": 20})
    examples = train_folders.digits(tmp_path / "examples", limit=120, scale=5)

    def trained(name: str) -> Training:
        folders = {"examples": examples, "checkpoints": str(tmp_path / "checkpoints")}
        step.execute(train.run, str(tmp_path / name), recipe=recipe, **folders)
        return Training.read(str(tmp_path / name))

    whole = trained("whole")
    assert (sides[0], sides[-1]) == (32, 40), "traced once a size, the small one first"
    assert epochs.pixel_share(recipe, 40) == pytest.approx((1 + 0.8**2) / 2)
    length = whole.steps // 2
    for checkpoint in (tmp_path / "checkpoints").glob("ckpt-*"):
        if int(checkpoint.name[5:]) >= length:
            shutil.rmtree(checkpoint)
    again = trained("again")
    assert again.start.resumed_from is not None and 0 < again.start.resumed_from < length
    weights = [keras.saving.load_model(tmp_path / name / "model.keras").get_weights() for name in ("whole", "again")]
    assert all(np.array_equal(one, other) for one, other in zip(*weights, strict=True))


def test_the_call_that_compiles_for_another_size_leaves_steps_that_show_its_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[bool, int]] = []
    add = SpeedMeter.add

    def noted(self: SpeedMeter, steps: int, seconds: float) -> None:
        calls.append((self.cold, steps))
        add(self, steps, seconds)

    monkeypatch.setattr(SpeedMeter, "add", noted)
    recipe = growing(batch_size=16)
    folders = {"examples": train_folders.digits(tmp_path / "examples", limit=120, scale=5)}
    folders["checkpoints"] = str(tmp_path / "checkpoints")
    step.execute(train.run, str(tmp_path / "trained"), recipe=recipe, **folders)
    assert max(steps for _, steps in calls) > 1
    assert [steps for cold, steps in calls if cold] == [1, 1]
