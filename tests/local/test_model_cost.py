"""What a network costs is counted from its layers; TensorFlow's own profiler counts the same."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.models import profiles
from trainyard.models.build import build
from trainyard.models.cost import TRAINING_PASSES, cost
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Model
from trainyard_control.planning import cost as planned
from trainyard_control.planning import data


@pytest.mark.parametrize(
    ("name", "side"), [("cnn_small", 8), ("mobilenet_v3_small", 96), ("resnet50", 64), ("alexnet", 64)]
)
def test_the_counted_operations_are_those_of_tensorflows_profiler(name: str, side: int) -> None:
    model = build(Model(name=name), [Feature(name="image", dtype="float32", shape=(side, side, 3))], 10, seed=1)
    forward = tf.function(lambda image: model({"image": image}, training=False))
    graph = forward.get_concrete_function(tf.TensorSpec((1, side, side, 3))).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation() | {"output": "none"}
    profiled = tf.compat.v1.profiler.profile(graph, options=options).total_float_ops
    assert cost(model).flops_per_example / TRAINING_PASSES == pytest.approx(profiled, rel=0.03)


def test_a_perceptron_costs_what_its_matrices_say() -> None:
    features = [Feature(name=name, dtype="float32", shape=()) for name in "abcd"]
    found = cost(build(Model(name="mlp", hidden=[8]), features, 2, seed=1))
    assert found.parameters == 4 * 8 + 8 + 8 * 2 + 2
    # The matrices, the joined inputs, and one operation a number where there is no kernel (casts, dropout, reshapes).
    assert found.flops_per_example / TRAINING_PASSES == pytest.approx(2 * (4 * 8 + 8 * 2), abs=40)


def test_what_the_backward_pass_reads_is_kept_once_and_nothing_else() -> None:
    layers = keras.layers
    image = keras.Input((8, 8, 1))
    convolved = layers.Conv2D(4, 3, padding="same")(layers.ZeroPadding2D(0)(image))  # reads 8 · 8 · 1
    active = layers.ReLU()(
        layers.BatchNormalization()(convolved)
    )  # 8 · 8 · 4 for the norm's mean, as many for the sign
    doubled = layers.Add()([active, active])  # nothing
    logits = layers.Dense(2)(layers.GlobalAveragePooling2D()(doubled))  # 4
    assert cost(keras.Model(image, logits)).kept_per_example == 64 + 256 + 256 + 4


@pytest.mark.parametrize(("name", "side", "channels"), [("cnn_small", 28, 1), ("mobilenet_v3_small", 96, 3)])
def test_the_bundled_profiles_are_what_the_networks_cost(name: str, side: int, channels: int) -> None:
    bundled = json.loads(profiles.FILE.read_text(encoding="utf-8"))[name]["channels"][str(channels)][str(side)]
    assert profiles.measure(name, side, channels) == bundled


def test_a_network_of_the_recipes_own_is_built_once_to_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_control.planning.cost._CACHE", tmp_path / "cache")
    (tmp_path / "own.py").write_text(
        "import keras\n"
        "def build_model(features, outputs):\n"
        "    image = keras.Input((8, 8, 1), name='image')\n"
        "    return keras.Model({'image': image}, keras.layers.Dense(outputs)(keras.layers.Flatten()(image)))\n"
    )
    file = tmp_path / "own.yaml"
    file.write_text("name: own\nmodule: own.py\ndata: {format: image_folder, bundled: digits, channels: 1}\n")
    recipe = recipes.load(str(file))
    found = planned.of_recipe(recipe, data.find(recipe, None, None))
    assert (found.parameters, found.flops_per_example) == (650, TRAINING_PASSES * (2 * 640 + 64))
    monkeypatch.setattr("trainyard_control.planning.cost.subprocess", None)  # what is remembered needs no process
    assert planned.of_recipe(recipe, data.find(recipe, None, None)) == found
