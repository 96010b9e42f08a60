"""Schedule, losses, weights and augmentation against calculations of their own."""

from __future__ import annotations

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainyard.errors import ConfigurationError
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Augment, Optimizer, Train
from trainyard.steps.train.engines.objective import Classification, Regression, class_weights
from trainyard.steps.train.engines.optimizer import RateSchedule, optimizer
from trainyard.steps.train.input import augment, on_device
from trainyard.steps.train.input.augment import RandomParams, affine

RECIPE = {"name": "t", "data": {"format": "image_folder", "bundled": "digits"}, "model": {"name": "cnn_small"}}


def test_the_learning_rate_rises_in_a_line_and_falls_as_half_a_cosine() -> None:
    train = Train(epochs=3, warmup_epochs=1, optimizer=Optimizer(learning_rate=0.8))
    schedule = RateSchedule(train, steps_per_epoch=4)
    rates = [float(schedule(step)) for step in range(13)]
    np.testing.assert_allclose(rates[:4], [0.2, 0.4, 0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(rates[4], 0.8, rtol=1e-6)
    np.testing.assert_allclose(rates[8], 0.4, rtol=1e-6)
    np.testing.assert_allclose(rates[6], 0.8 * (1 + math.cos(math.pi / 4)) / 2, rtol=1e-6)
    assert rates[12] == pytest.approx(0, abs=1e-7)
    schedule.scale.assign(0.1)
    assert float(schedule(3)) == pytest.approx(0.08)


def test_a_constant_schedule_stays_at_the_peak_after_the_warm_up() -> None:
    train = Train(epochs=2, warmup_epochs=0.5, schedule="constant", optimizer=Optimizer(learning_rate=0.3))
    schedule = RateSchedule(train, steps_per_epoch=4)
    np.testing.assert_allclose([float(schedule(step)) for step in range(8)], [0.15] + [0.3] * 7, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw", keras.optimizers.AdamW), ("sgd", keras.optimizers.SGD), ("lamb", keras.optimizers.Lamb)],
)
def test_the_recipe_names_the_optimizer_and_biases_do_not_decay(name: str, kind: type) -> None:
    train = Train(optimizer=Optimizer(name=name, learning_rate=0.5, weight_decay=0.1, momentum=0.0), warmup_epochs=0)
    made = optimizer(train, RateSchedule(train, 10), float16=False)
    assert isinstance(made, kind)
    kernel, bias = keras.Variable([[2.0]], name="kernel"), keras.Variable([2.0], name="bias")
    made.build([kernel, bias])
    made.apply([tf.zeros((1, 1)), tf.zeros(1)])
    # Decoupled decay: w - rate * decay * w, with no gradient.
    assert float(kernel[0][0]) == pytest.approx(2 * (1 - 0.5 * 0.1), rel=1e-5)
    assert float(bias[0]) == 2.0


def test_the_learning_rate_grows_with_the_batch_that_it_was_given_for() -> None:
    train = Train(
        batch_size=1024,
        epochs=3,
        warmup_epochs=1,
        schedule="constant",
        optimizer=Optimizer(learning_rate=0.1, learning_rate_batch=256),
    )
    schedule = RateSchedule(train, steps_per_epoch=4)
    np.testing.assert_allclose([float(schedule(step)) for step in range(5)], [0.1, 0.2, 0.3, 0.4, 0.4], rtol=1e-6)


def test_lars_takes_the_steps_of_algorithm_1_and_leaves_biases_to_momentum_sgd() -> None:
    rate, momentum, decay, trust = 0.5, 0.9, 0.1, 0.001
    train = Train(
        optimizer=Optimizer(name="lars", learning_rate=rate, weight_decay=decay, momentum=momentum, clip_norm=None),
        schedule="constant",
        warmup_epochs=0,
    )
    made = optimizer(train, RateSchedule(train, 10), float16=False)
    draw = np.random.default_rng(5)
    w, b = draw.normal(size=(3, 3, 2, 4)), draw.normal(size=4)
    kernel, bias = keras.Variable(w, name="kernel"), keras.Variable(b, name="bias")
    zero = keras.Variable(np.zeros((2, 2)), name="zero_kernel")
    made.build([kernel, bias, zero])
    v, u = np.zeros_like(w), np.zeros_like(b)
    for _ in range(3):
        g, h = draw.normal(size=w.shape), draw.normal(size=b.shape)
        made.apply([tf.constant(g, tf.float32), tf.constant(h, tf.float32), tf.zeros((2, 2))])
        local = trust * np.sqrt((w**2).sum()) / (np.sqrt((g**2).sum()) + decay * np.sqrt((w**2).sum()))
        v = momentum * v + rate * local * (g + decay * w)
        u = momentum * u + rate * h
        w, b = w - v, b - u
    np.testing.assert_allclose(np.asarray(kernel), w, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(bias), b, rtol=1e-5)
    assert not np.asarray(zero).any()


def test_label_smoothing_spreads_its_share_over_all_classes() -> None:
    logits = np.asarray([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]], np.float32)
    labels = np.asarray([0, 1])
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [-(0.9 * row[label] + 0.1 * row.mean()) for row, label in zip(log_p, labels, strict=True)]
    objective = Classification(3, 0.1)
    np.testing.assert_allclose(objective.train_loss(logits, labels), expected, rtol=1e-5)
    np.testing.assert_allclose(objective.eval_loss(logits, labels), -log_p[[0, 1], labels], rtol=1e-5)
    assert objective.metric(logits, labels).numpy().tolist() == [1.0, 0.0]


def test_regression_losses_are_in_units_of_the_targets_variance() -> None:
    outputs, labels = np.asarray([[3.0], [5.0]], np.float32), np.asarray([1.0, 5.0], np.float32)
    objective = Regression(deviation=4.0)
    assert objective.train_loss(outputs, labels).numpy().tolist() == [0.25, 0.0]
    assert objective.metric(outputs, labels).numpy().tolist() == [2.0, 0.0]


def test_balanced_class_weights_average_to_one_over_the_examples() -> None:
    recipe = Recipe.model_validate(RECIPE | {"train": {"class_weights": "balanced"}})
    weights = class_weights(recipe, ["a", "b"], [30, 10])
    assert weights is not None
    np.testing.assert_allclose(weights, [40 / 60, 40 / 20])
    assert (weights * [30, 10]).sum() == pytest.approx(40)


def test_named_class_weights_follow_the_order_of_the_labels() -> None:
    recipe = Recipe.model_validate(RECIPE | {"train": {"class_weights": {"b": 3.0}}})
    weights = class_weights(recipe, ["a", "b"], [30, 10])
    assert weights is not None and weights.tolist() == [1.0, 3.0]


def test_a_class_weight_for_an_unknown_label_is_refused_with_the_nearest_one() -> None:
    recipe = Recipe.model_validate(RECIPE | {"train": {"class_weights": {"catt": 3.0}}})
    with pytest.raises(ConfigurationError, match=r"no label 'catt'\. Did you mean 'cat'"):
        class_weights(recipe, ["cat", "dog"], [30, 10])


def test_augmentation_is_a_function_of_seed_and_step() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 6, 1), np.uint8)
    options = Augment(shift=0.2, flip=True, rotate=20, zoom=0.1, contrast=0.3)
    first = augmented(images, options, seed=1, step=5)
    np.testing.assert_array_equal(first, augmented(images, options, seed=1, step=5))
    for seed, step in ((2, 5), (1, 6)):
        assert np.abs(first - augmented(images, options, seed=seed, step=step)).max() > 1
    assert first.shape == images.shape and first.min() >= 0 and first.max() <= 255


def test_no_draw_leaves_the_image_and_a_mirror_reverses_its_columns() -> None:
    options = Augment(shift=0.25, flip=True, rotate=90)
    nothing = np.asarray([[0, 0, 0, 0, 1, 0]], np.float32)
    np.testing.assert_allclose(affine(options, nothing, 4, 8), [[1, 0, 0, 0, 1, 0, 0, 0]], atol=1e-6)
    # x_in = 7 - x: the last column first.
    mirrored = np.asarray([[0, 0, 0, 0, -1, 0]], np.float32)
    np.testing.assert_allclose(affine(options, mirrored, 4, 8), [[-1, 0, 7, 0, 1, 0, 0, 0]], atol=1e-6)
    # Shift by 0.25 of 8 pixels in x.
    shifted = np.asarray([[1, 0, 0, 0, 1, 0]], np.float32)
    np.testing.assert_allclose(affine(options, shifted, 4, 8), [[1, 0, 2, 0, 1, 0, 0, 0]], atol=1e-6)


def test_a_quarter_turn_and_a_mirror_move_the_pixels_where_numpy_moves_them() -> None:
    image = np.arange(25, dtype=np.float32).reshape(1, 5, 5, 1)
    quarter = affine(Augment(rotate=90), np.asarray([[0, 0, 1, 0, 0, 0]], np.float32), 5, 5)
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=image, transforms=quarter, output_shape=[5, 5], fill_value=0.0, interpolation="BILINEAR"
    ).numpy()[0, :, :, 0]
    np.testing.assert_allclose(moved, np.rot90(image[0, :, :, 0]), atol=1e-3)
    flipped = augmented(np.repeat(image, 16, axis=0), Augment(flip=True), seed=1, step=0)
    kinds = [(each == image[0]).all() or (each == image[0, :, ::-1]).all() for each in flipped]
    assert all(kinds) and 2 < sum((each == image[0]).all() for each in flipped) < 14


def augmented(images: np.ndarray, options: Augment, seed: int, step: int) -> np.ndarray:
    """Return `images` as the input and then the device change them."""
    _, height, width, _ = images.shape
    params = RandomParams(seed, tf.constant(step, tf.int64), len(images), 0, len(images))
    if augment.changes_examples(options):
        rows = augment.example_params(options, params)
        changed = [augment.augment_example(image, options, row) for image, row in zip(images, rows, strict=True)]
        images = tf.stack(changed)
    if options.resamples:
        images = augment.resample(images, options, params.uniform(6))
    device = augment.device_params(options, params, height, width)
    return on_device.augment({"image": images, on_device.PARAMS: device}, options)["image"].numpy()
