"""What a network costs is counted from its layers; TensorFlow's own profiler counts the same."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import trainyard as ty
from trainyard.contract.artifacts.preprocess import Feature
from trainyard.errors import ConfigurationError
from trainyard.models.build import build
from trainyard.models.costs import profiles, speed
from trainyard.models.costs.cost import TRAINING_PASSES, cost
from trainyard.spec import recipe as recipes
from trainyard.spec.model import ModelConfig
from trainyard_control.planning import cost as planned
from trainyard_control.planning import data

BLOCKS = ModelConfig(name="cnn_small", blocks=["conv:32", "pool", "separable:64:2", "residual:64", "residual:96"])


@pytest.mark.parametrize(
    ("described", "side"),
    [
        (ModelConfig(name="cnn_small"), 8),
        (BLOCKS, 16),
        (ModelConfig(name="mobilenet_v3_small"), 96),
        (ModelConfig(name="resnet50"), 64),
        (ModelConfig(name="alexnet"), 64),
    ],
)
def test_the_counted_operations_are_those_of_tensorflows_profiler(described: ModelConfig, side: int) -> None:
    model = build(described, [Feature(name="image", dtype="float32", shape=(side, side, 3))], 10, seed=1)
    forward = tf.function(lambda image: model({"image": image}, training=False))
    graph = forward.get_concrete_function(tf.TensorSpec((1, side, side, 3))).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation() | {"output": "none"}
    profiled = tf.compat.v1.profiler.profile(graph, options=options).total_float_ops
    assert cost(model).flops_per_example / TRAINING_PASSES == pytest.approx(profiled, rel=0.03)


def test_blocks_whose_pools_leave_nothing_are_refused_when_the_network_is_built() -> None:
    deep = ModelConfig(name="cnn_small", blocks=["conv:4", *["pool"] * 4])
    with pytest.raises(ConfigurationError, match=r"leave nothing of 8 x 8 pixels\..* \[16, 16\]"):
        build(deep, [Feature(name="image", dtype="float32", shape=(8, 8, 1))], 10, seed=1)


def test_a_perceptron_costs_what_its_matrices_say() -> None:
    features = [Feature(name=name, dtype="float32", shape=()) for name in "abcd"]
    model_cost = cost(build(ModelConfig(name="mlp", hidden=[8]), features, 2, seed=1))
    assert model_cost.parameters == 4 * 8 + 8 + 8 * 2 + 2
    # The matrices, the joined inputs, and one operation a number where there is no kernel (casts, dropout, reshapes).
    assert model_cost.flops_per_example / TRAINING_PASSES == pytest.approx(2 * (4 * 8 + 8 * 2), abs=40)


@pytest.mark.parametrize(
    ("layer", "shape", "products"),
    [
        (keras.layers.SeparableConv2D(64, 3, padding="same"), (32, 32, 16), 1024 * (9 * 16 + 16 * 64)),
        (keras.layers.SeparableConv1D(4, 3, depth_multiplier=2, padding="same"), (20, 8), 20 * (3 * 16 + 16 * 4)),
        (keras.layers.Conv2D(64, 3, groups=4, padding="same"), (32, 32, 16), 1024 * 9 * 4 * 64),
        (keras.layers.Conv2DTranspose(8, 3, strides=2, padding="same"), (32, 32, 16), 1024 * 9 * 16 * 8),
        (keras.layers.EinsumDense("abc,cde->abde", (None, 4, 8)), (10, 32), 10 * 32 * 4 * 8),
        (keras.layers.EinsumDense("abcd,cde->abe", (None, 16)), (10, 4, 8), 10 * 4 * 8 * 16),
        (keras.layers.LSTM(16), (20, 8), 20 * (8 + 16) * 4 * 16),
        (keras.layers.GRU(16, return_sequences=True), (20, 8), 20 * (8 + 16) * 3 * 16),
        (keras.layers.Bidirectional(keras.layers.LSTM(16)), (20, 8), 2 * 20 * (8 + 16) * 4 * 16),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, keras.layers.Layer) else "",
)
def test_a_layer_of_a_model_of_ones_own_costs_its_products(
    layer: keras.layers.Layer, shape: tuple[int, ...], products: int
) -> None:
    inputs = keras.Input(shape)
    assert cost(keras.Model(inputs, layer(inputs))).flops_per_example == TRAINING_PASSES * 2 * products


def test_attention_costs_its_projections_and_its_two_products() -> None:
    query, value = keras.Input((5, 8)), keras.Input((3, 6))
    attended = keras.layers.MultiHeadAttention(2, 4, value_dim=7)(query, value)
    model_cost = cost(keras.Model([query, value], attended))
    # By hand, multiplications: queries and outputs of 5 positions, keys and values of 3, in 2 heads.
    projected = 5 * 8 * (2 * 4) + 3 * 6 * (2 * 4) + 3 * 6 * (2 * 7) + 5 * (2 * 7) * 8
    products = 2 * 5 * 3 * 4 + 2 * 5 * 3 * 7
    assert model_cost.flops_per_example / TRAINING_PASSES == 2 * (projected + products)
    inside = 5 * 2 * 4 + 3 * 2 * 4 + 3 * 2 * 7 + 5 * 2 * 7  # queries, keys, values, and these weighted
    scores = 2 * 5 * 3
    assert model_cost.activations_per_example == inside + 2 * scores + 5 * 8
    assert model_cost.saved_activations_per_example == 5 * 8 + 3 * 6 + inside + scores


def test_vit_small_costs_what_its_paper_says() -> None:
    parameters, flops, *_ = profiles.measure("vit_small", 224, 3)
    # 22 M parameters and 4.6 G multiplications with 1,000 classes: H. Touvron et al., arXiv:2012.12877, table 1, and
    # A. Steiner et al., arXiv:2106.10270. By hand: 196 patches of 768 numbers, 12 blocks, the head.
    block = 4 * 196 * 384**2 + 2 * 196**2 * 384 + 2 * 196 * 384 * 1536
    assert flops / TRAINING_PASSES / 2 == pytest.approx(196 * 768 * 384 + 12 * block + 384 * 10, rel=0.002)
    norms = 25 * 2 * 384
    matrices = 12 * (4 * 385 * 384 + 385 * 1536 + 1537 * 384)
    assert parameters == 769 * 384 + 196 * 384 + norms + matrices + 385 * 10


def test_what_the_backward_pass_reads_is_kept_once_and_nothing_else() -> None:
    layers = keras.layers
    image = keras.Input((8, 8, 1))
    convolved = layers.Conv2D(4, 3, padding="same")(layers.ZeroPadding2D(0)(image))  # reads 8 · 8 · 1
    active = layers.ReLU()(
        layers.BatchNormalization()(convolved)
    )  # 8 · 8 · 4 for the norm's mean, as many for the sign
    doubled = layers.Add()([active, active])  # nothing
    logits = layers.Dense(2)(layers.GlobalAveragePooling2D()(doubled))  # 4
    assert cost(keras.Model(image, logits)).saved_activations_per_example == 64 + 256 + 256 + 4


@pytest.mark.parametrize(
    ("name", "side", "channels"), [("cnn_small", 28, 1), ("mobilenet_v3_small", 96, 3), ("vit_small", 63, 3)]
)
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
    example_cost = planned.from_recipe(recipe, data.find(recipe, None, None))
    assert (example_cost.parameters, example_cost.flops_per_example) == (650, TRAINING_PASSES * (2 * 640 + 64))
    monkeypatch.setattr("trainyard_control.planning.cost.program_output", None)  # what is remembered needs no process
    assert planned.from_recipe(recipe, data.find(recipe, None, None)) == example_cost


def test_a_network_of_another_width_and_depth_is_planned_by_what_it_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_control.planning.cost._CACHE", tmp_path / "cache")
    recipe = recipes.load("digits", ["model.width=0.5", "model.depth=2"])
    summary = data.find(recipe, None, None)
    assert summary.image is not None
    example_cost = planned.from_recipe(recipe, summary)
    built = build(recipe.model, [Feature(name="image", dtype="float32", shape=summary.image)], summary.classes, seed=1)
    kernels = [layer.kernel.shape[-1] for layer in built.layers if isinstance(layer, keras.layers.Conv2D)]
    assert kernels == [16] * 4 + [32] * 2
    assert (
        example_cost.parameters == built.count_params()
        and example_cost.flops_per_example == cost(built).flops_per_example
    )
    assert example_cost.head == 32 * 10 + 10
    assert example_cost.parameters < planned.from_recipe(recipes.load("digits"), summary).parameters


def _small(**inputs: keras.KerasTensor) -> keras.Model:
    tensors = inputs or {"image": keras.Input((8, 8, 3), name="image")}
    x = keras.layers.Concatenate()([keras.layers.Flatten()(tensor) for tensor in tensors.values()])
    x = keras.layers.BatchNormalization()(x)
    outputs = [keras.layers.Dense(4)(x), keras.layers.Dense(1)(x)]
    return keras.Model(tensors, outputs, name="mine")


def test_a_model_of_anybody_s_is_measured_and_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_BLOCK_SECONDS", 0.01)
    sequential = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    for model in (_small(), _small(a=keras.Input((3,)), b=keras.Input((2,), dtype="int32")), sequential):
        before = [weights.copy() for weights in model.get_weights()]
        speeds = list(speed.step_speeds(model, quick=True))
        assert [(each.device, each.batch_size, each.xla) for each in speeds] == [
            ("CPU:0", 32, False),
            ("CPU:0", 32, True),
        ]
        assert all(min(speed.rates) > 0 and speed.first_step_seconds > 0 for speed in speeds)
        assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))


def test_a_report_of_a_model_says_what_it_was_measured_on(tmp_path: Path) -> None:
    _small().save(tmp_path / "mine.keras")
    measured = ty.bench(str(tmp_path / "mine.keras"), quick=True)
    assert measured.model == "mine" and measured.parameters == _small().count_params()
    assert [speed.setting for speed in measured.speeds] == ["CPU:0, batch 32", "CPU:0, batch 32, XLA"]
    assert measured.sentences[0] == "It trains on the CPU: TensorFlow sees no accelerator."
    assert "CPU:0, batch 32, XLA" in measured.page()
    (answer,) = measured.answers
    assert answer.accelerator == "CPU" and 0 < answer.p50 <= answer.p95


def test_what_cannot_be_measured_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the input 'x' is float32 \(None, 3\)\. Numbers of a known size"):
        sequence = keras.Input((None, 3), name="x")
        ty.bench(keras.Model(sequence, keras.layers.GlobalAveragePooling1D()(sequence)))
    with pytest.raises(ConfigurationError, match="workers and rounds are for recipes"):
        ty.bench(_small(), train__epochs=2)
    with pytest.raises(ConfigurationError, match="there is no such file"):
        ty.bench(str(tmp_path / "none.keras"))
