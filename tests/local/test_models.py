"""Every named network takes the data's features and gives logits."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import keras
import numpy as np
import pytest
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.errors import ConfigurationError
from trainyard.models.build import build, column_inputs, columns_matrix
from trainyard.process import memory
from trainyard.spec import recipe as recipes
from trainyard.spec.model import ModelConfig
from trainyard.spec.networks import COLUMN_NETWORKS, MINIMUM_SIDE, TREES, WIDTH_SCALABLE, Network
from trainyard.steps.train.engines.network import limit_batch_norm_momentum, precision_policy
from trainyard.steps.train.engines.optimizer import RateSchedule, optimizer

CODE = [Path(__file__).parents[2] / folder for folder in ("components", "pipelines")]
COLUMNS = [
    Feature(name="age", dtype="float32", shape=()),
    Feature(name="pair", dtype="float32", shape=(2,)),
    Feature(name="month", dtype="int64", shape=()),
    Feature(name="color", dtype="int64", shape=(), vocabulary_size=5),
    Feature(name="size", dtype="int64", shape=(), vocabulary_size=3),
]


@pytest.mark.parametrize("name", [name for name in WIDTH_SCALABLE if name in MINIMUM_SIDE])
def test_a_narrower_image_network_has_fewer_weights(name: str) -> None:
    side = max(32, MINIMUM_SIDE[name])
    sizes = [build(ModelConfig(name=name, width=width), [image(side, side, 3)], 7, seed=1) for width in (0.5, 1, 1.5)]
    counts = [model.count_params() for model in sizes]
    assert counts[0] < 0.5 * counts[1] < counts[1] < 0.7 * counts[2]
    assert sizes[0]({"image": np.zeros((2, side, side, 3), np.float32)}).shape == (2, 7)


def test_columns_become_one_matrix_in_their_order_by_as_many_operations_however_many_they_are() -> None:
    def model(numbers: int) -> keras.Model:
        features = [Feature(name=f"n{place}", dtype="float32", shape=()) for place in range(numbers)]
        inputs = column_inputs([*features, *COLUMNS[:3]])
        return keras.Model(inputs, columns_matrix(list(inputs.values())))

    few, many = model(2), model(5)
    values = {"n0": [1.5, 2], "n1": [3, 4], "age": [5, 6], "pair": [[7, 8], [9, 10]], "month": [11, 12]}
    matrix = few({name: np.array(column, few.input[name].dtype) for name, column in values.items()})
    np.testing.assert_array_equal(matrix, [[1.5, 3, 5, 7, 8, 11], [2, 4, 6, 9, 10, 12]])
    assert matrix.dtype == "float32"
    assert len(many.operations) - len(many.inputs) == len(few.operations) - len(few.inputs)


@pytest.mark.parametrize("name", sorted(MINIMUM_SIDE))
def test_an_image_network_takes_its_minimum_size_and_no_smaller(name: str) -> None:
    side = MINIMUM_SIDE[name]
    model = build(ModelConfig(name=name), [image(side, side + 3, 1)], 7, seed=1)
    logits = model({"image": np.full((2, side, side + 3, 1), 255, np.float32)})
    assert logits.shape == (2, 7) and logits.dtype == "float32"
    with pytest.raises(ConfigurationError, match=rf"at least {side} x {side} pixels, the data has {side} x {side - 1}"):
        build(ModelConfig(name=name), [image(side, side - 1, 1)], 7, seed=1)


@pytest.mark.parametrize("side", [8, 9, 28, 96])
def test_cnn_small_halves_the_image_to_four_to_seven_pixels(side: int) -> None:
    model = build(ModelConfig(name="cnn_small"), [image(side, side, 3)], 2, seed=1)
    flat = next(layer for layer in model.layers if isinstance(layer, keras.layers.Flatten))
    assert 4 <= flat.input.shape[1] <= 7
    assert model.output.shape == (None, 2)


@pytest.mark.parametrize(("side", "patch", "tokens"), [(8, 2, 16), (31, 2, 256), (32, 4, 64), (128, 16, 64)])
def test_vit_small_cuts_the_shorter_side_into_eight_patches_or_more(side: int, patch: int, tokens: int) -> None:
    model = build(ModelConfig(name="vit_small"), [image(side, side, 3)], 2, seed=1)
    assert model.get_layer("patches").kernel.shape == (patch, patch, 3, 384)
    assert model.get_layer("positions").embeddings.shape == (tokens, 384)


def test_vit_small_opens_in_safe_mode_tells_places_apart_and_answers_alike_in_16_bits(tmp_path: Path) -> None:
    model = build(
        ModelConfig(name="vit_small"), [image(31, 33, 1)], 7, seed=1
    )  # 272 patches: bfloat16 cannot count them
    pixels = np.random.default_rng(1).uniform(0, 255, (1, 31, 33, 1)).astype(np.float32)
    expected = model({"image": pixels}).numpy()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(loaded({"image": pixels}).numpy(), expected)
    moved = np.roll(pixels, 2, axis=1)
    moved[:, :2] = pixels[:, -2:]  # the same patches, each a row lower
    assert np.abs(model({"image": moved}).numpy() - expected).max() > 1e-2
    kernels = [weight.numpy() for weight in model.weights if "attention" in weight.path and "kernel" in weight.path]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 12 * 4
    with precision_policy("bfloat16"):
        narrow = build(ModelConfig(name="vit_small"), [image(31, 33, 1)], 7, seed=1)
    assert narrow.get_layer("block1_attention").compute_dtype == "bfloat16"
    assert np.abs(narrow({"image": pixels}).numpy() - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("name", [name for name in COLUMN_NETWORKS if name != TREES])
def test_columns_may_be_called_what_no_layer_may_or_what_others_are(name: str) -> None:
    called = ["km/h", "logits", "a", "b_c", "a_b", "c", "numbers", "速度", "dense"]
    ids = [Feature(name=column, dtype="int64", shape=(), vocabulary_size=3) for column in called]
    model = build(ModelConfig(name=name, hidden=[4]), [*ids, Feature(name="m/s", dtype="float32", shape=())], 2, seed=1)
    batch = {"m/s": np.zeros(2, np.float32), **{column: np.asarray([0, 2]) for column in called}}
    assert model(batch).shape == (2, 2)


def test_features_whose_names_would_meet_are_refused() -> None:
    pair = [Feature(name=column, dtype="float32", shape=()) for column in ("a b", "a_b")]
    with pytest.raises(ConfigurationError, match="'a b' and 'a_b' would both be the input 'a_b' of the model"):
        build(ModelConfig(name="mlp"), pair, 2, seed=1)


@pytest.mark.parametrize("name", [name for name in COLUMN_NETWORKS if name != TREES])
def test_a_column_network_takes_numbers_and_ids(name: str, tmp_path) -> None:
    model = build(ModelConfig(name=name, hidden=[4]), COLUMNS, 3, seed=1)
    batch = {
        "age": np.zeros(4, np.float32),
        "pair": np.zeros((4, 2), np.float32),
        "month": np.arange(4),
        "color": np.asarray([0, 1, 2, 4]),
        "size": np.asarray([0, 2, 0, 2]),
    }
    expected = model(batch).numpy()
    assert expected.shape == (4, 3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(loaded(batch).numpy(), expected)


def test_wide_deep_gives_each_pair_of_ids_a_weight_of_its_own() -> None:
    model = build(ModelConfig(name="wide_deep", hidden=[4]), COLUMNS[3:], 2, seed=1)
    cross = (
        model.get_layer("wide_size_color") if "wide_size_color" in names(model) else model.get_layer("wide_color-size")
    )
    assert cross.embeddings.shape == (15, 2)
    ids = {"color": np.repeat(np.arange(5), 3), "size": np.tile(np.arange(3), 5)}
    before = model(ids).numpy()
    table = np.zeros((15, 2), np.float32)
    table[:, 0] = 10.0 * np.arange(15)
    cross.embeddings.assign(table)
    added = model(ids).numpy() - before
    np.testing.assert_allclose(np.sort(added[:, 0]), 10.0 * np.arange(15), atol=1e-4)


def test_the_seed_alone_decides_the_first_weights() -> None:
    one, same, other = (build(ModelConfig(name="cnn_small"), [image(8, 8, 1)], 10, seed=seed) for seed in (1, 1, 2))
    for left, right in zip(one.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert any((left != right).any() for left, right in zip(one.get_weights(), other.get_weights(), strict=True))


@pytest.mark.parametrize("name", get_args(Network))
def test_a_networks_name_stands_in_three_files_or_fewer(name: str) -> None:
    files = [file for folder in CODE for kind in ("*.py", "*.json") for file in folder.rglob(kind)]
    naming = [file.name for file in files if f'"{name}"' in file.read_text(encoding="utf-8")]
    assert 0 < len(naming) <= 3, naming


def test_resnet50_v1_5_learns_by_the_optimizer_of_its_recipe() -> None:
    recipe = recipes.load("imagenet-resnet50", ["train.epochs=1", "train.batch_size=8"])
    model = build(recipe.model, [image(32, 32, 3)], 2, seed=1)
    trainer = optimizer(recipe.train, RateSchedule(recipe.train, steps_per_epoch=8), float16=False)
    labels = np.arange(8) % 2
    noise = np.random.default_rng(1).uniform(0, 80, (8, 32, 32, 3))
    features = {"image": (noise + 170 * labels[:, None, None, None]).astype(np.float32)}
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        trainer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0], losses


def test_an_image_network_refuses_columns() -> None:
    with pytest.raises(ConfigurationError, match="takes one image, the data has age"):
        build(ModelConfig(name="resnet50"), COLUMNS, 2, seed=1)


def image(height: int, width: int, channels: int) -> Feature:
    return Feature(name="image", dtype="float32", shape=(height, width, channels), encoded=True)


def names(model: keras.Model) -> set[str]:
    return {layer.name for layer in model.layers}


@pytest.mark.parametrize(("steps", "momentum"), [(100, 0.9), (10_000, 0.999), (1, 0.5)])
def test_moving_statistics_remember_a_tenth_of_the_training_at_most(steps: int, momentum: float) -> None:
    image = keras.Input((4, 4, 1), name="image")
    model = keras.Model({"image": image}, keras.layers.BatchNormalization(momentum=0.999)(image))
    limit_batch_norm_momentum(model, steps)
    assert model.layers[-1].momentum == pytest.approx(momentum)


@pytest.mark.parametrize(
    ("model", "columns", "expected"),
    [
        ({"name": "mlp", "hidden": [65_536] * 3}, True, r"model\.hidden: the network has 8,590,393,347 weights"),
        (
            {"name": "wide_deep", "hidden": [4096] * 9, "width": 16.0},
            True,
            r"model\.width: .* model\.width: \d\.\d+ fits",
        ),
        (
            {"name": "cnn_small", "width": 16.0, "depth": 16.0},
            False,
            r"model\.width: .* model\.width: \d+(\.\d+)? fits",
        ),
    ],
)
def test_a_network_beyond_the_memory_is_refused_before_it_is_built_with_a_size_that_fits(
    model: dict[str, object], columns: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "usable_bytes", lambda: 4 << 30)
    features = [Feature(name="x", dtype="float32", shape=(1,))] if columns else [image(96, 96, 3)]
    with pytest.raises(
        ConfigurationError, match=expected + r".* may use 4\.0 GiB" if "hidden" in expected else expected
    ):
        build(ModelConfig.model_validate(model), features, 3, 1)
    monkeypatch.setattr(memory, "usable_bytes", lambda: 64 << 20)
    keras.utils.clear_session(free_memory=False)
    small = build(
        ModelConfig.model_validate({**model, "width": 1.5, "hidden": [1000, 1000], "depth": 1.0}), features, 3, 1
    )
    assert small.count_params() * 8 < 64 << 20
    assert not columns or "dense" in {layer.name for layer in small.layers}, "names count from one, as without a check"
