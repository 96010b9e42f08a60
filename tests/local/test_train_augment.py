"""What augmentations do to images and labels; a gang of any size, a late start and micro-batches see the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import train_folders

from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.data.images import decode_image, decode_pixels
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Augment, Crop, RandAugment
from trainyard.steps.train.engines.objective import Classification
from trainyard.steps.train.input import augment, on_device
from trainyard.steps.train.input import input as training_input
from trainyard.steps.train.input.augment import OPERATIONS, RandomParams, rand_augment
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.input.micro_batches import LocalReplicas

EVERYTHING = {
    **{"crop": {"scale": [0.5, 1.0]}, "flip": True, "rand_augment": {}, "rotate": 5, "cutout": 0.3},
    **{"brightness": 0.2, "contrast": 0.2, "mixup": 0.2, "cutmix": 1.0},
}


COLOURS = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.2}
UNDER_JAX = """
import sys
from pathlib import Path
import jax
import numpy as np
from trainyard.spec.train import Augment
from trainyard.steps.train.input import on_device
options, folder = Augment.model_validate_json(sys.argv[1]), Path(sys.argv[2])
given = {name: jax.numpy.asarray(values) for name, values in np.load(folder / "given.npz").items()}
features = {"image": given["image"], on_device.PARAMS: given["params"]}
changed = jax.jit(lambda features: on_device.augment(features, options)["image"])(features)
np.save(folder / "changed.npy", np.asarray(changed))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ExampleFolder:
    return open_examples(train_folders.digits(tmp_path_factory.mktemp("augment") / "examples", limit=80, shards=4))


@pytest.mark.parametrize("memory_bytes", [512 << 20, 0], ids=["in memory", "streamed"])
def test_a_gang_micro_batches_and_a_late_start_see_the_same_images_and_targets(
    memory_bytes: int, folder: ExampleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_input, "MEMORY_BYTES", memory_bytes)
    alone = list(Input(recipe(EVERYTHING), folder, None).train(0))
    late = list(Input(recipe(EVERYTHING), folder, None).train(3))
    workers = [list(Input(recipe(EVERYTHING), folder, None, LocalReplicas(2, rank, 1)).train(0)) for rank in range(2)]
    assert len(late) == len(alone) - 3
    for step, batch in enumerate(alone):
        assert_equal(batch, [worker[step] for worker in workers])
        if step >= 3:
            assert_equal(batch, [late[step - 3]])
        assert float(np.sum(batch[2])) == pytest.approx(1)
        np.testing.assert_allclose(np.sum(batch[1], axis=1), 1, rtol=1e-6)
    if memory_bytes:  # shard ranges take other examples for a micro-batch
        parts = list(Input(recipe(EVERYTHING, accumulation_steps=2), folder, None).train(0))
        for step, batch in enumerate(alone):
            assert_equal(batch, parts[2 * step : 2 * step + 2])


def test_mixing_takes_pixels_and_targets_in_the_same_shares() -> None:
    params = RandomParams(3, tf.constant(4, tf.int64), 64, 0, 64)
    for options in (Augment(mixup=1.0), Augment(cutmix=1.0), Augment(mixup=1.0, cutmix=1.0)):
        columns = augment.device_params(options, params, 8, 8)
        share = augment.mixed_share(columns, 8, 8).numpy()
        assert 0 <= share.min() < 0.4 and 0.6 < share.max() <= 1
        # White images and black ones in pairs: what is left of the white is the first one's share.
        images = np.zeros((64, 8, 8, 1), np.uint8)
        images[::2] = 255
        mixed = on_device.augment({"image": tf.constant(images), on_device.PARAMS: columns}, options)["image"].numpy()
        white = mixed.mean(axis=(1, 2, 3)) / 255
        np.testing.assert_allclose(white[::2], share[::2], atol=1e-5)
        np.testing.assert_allclose(white[1::2], 1 - share[1::2], atol=1e-5)


def test_the_loss_of_mixed_targets_is_that_of_both_labels_by_share_and_class_weight() -> None:
    labels, share = tf.constant([0, 2], tf.int64), tf.constant([0.75, 0.75])
    logits = tf.constant([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]])
    class_weights = np.asarray([1.0, 1.0, 4.0], np.float32)
    targets, counts = augment.mix_targets(labels, share, 3, class_weights)
    objective = Classification(3, 0.1)
    alone = [objective.train_loss(logits, tf.constant([label, label], tf.int64)).numpy() for label in (0, 2)]
    expected = [0.75 * alone[0][0] + 0.25 * 4 * alone[1][0], 0.75 * 4 * alone[1][1] + 0.25 * alone[0][1]]
    np.testing.assert_allclose(counts * objective.train_loss(logits, targets), expected, rtol=1e-5)


def test_a_window_is_inside_the_image_and_has_the_area_and_ratio_asked_for() -> None:
    options = Crop(scale=(0.25, 0.5), ratio=(0.5, 2.0))
    params = np.random.default_rng(1).uniform(-1, 1, (50, augment.CROP_PARAMS)).astype(np.float32)
    for row in [*params, np.full(4, -1, np.float32), np.full(4, 0.9999999, np.float32)]:
        top, left, high, wide = augment.window(tf.constant(120), tf.constant(100), options, tf.constant(row)).numpy()
        assert top >= 0 and left >= 0 and top + high <= 120 and left + wide <= 100
        assert 0.4 < wide / high < 2.1 and 0.2 < high * wide / 12_000 < 0.52


@pytest.mark.parametrize("side", [32, 100, 300])
def test_a_window_of_a_jpeg_is_that_of_the_decoded_image(side: int) -> None:
    smooth = np.linspace(0, 255, side)[:, None, None] * np.linspace(0, 1, side)[None, :, None] * np.ones(3)
    pixels, shape = smooth.astype(np.uint8), ImageShape(height=32, width=32, channels=3)
    params, options = tf.constant([0.2, 0.1, -0.3, 0.6]), Crop(scale=(0.4, 0.9))
    png, jpeg = tf.io.encode_png(pixels), tf.io.encode_jpeg(pixels, quality=100)
    windows = [augment.decode_window(encoded, shape, options, params).numpy().astype(int) for encoded in (png, jpeg)]
    assert windows[0].shape == (32, 32, 3) and np.abs(windows[0] - windows[1]).max() < 12
    assert np.abs(windows[0] - windows[1]).mean() < 3


def test_training_decodes_the_pixels_that_evaluation_does() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (8, 6, 3), np.uint8)
    shape = ImageShape(height=8, width=6, channels=3)
    encoded = tf.io.encode_png(pixels)
    for quick in (False, True):
        np.testing.assert_array_equal(decode_pixels(encoded, shape, quick=quick), pixels)
    smaller = ImageShape(height=4, width=3, channels=3)
    np.testing.assert_allclose(
        np.asarray(decode_pixels(encoded, smaller), float), decode_image(encoded, smaller), atol=0.5001
    )
    raw = tf.constant(pixels.tobytes())
    np.testing.assert_array_equal(decode_pixels(raw, shape, pixels=True), pixels)


def test_colors_change_by_their_formulas() -> None:
    images = np.random.default_rng(3).integers(60, 160, (1, 2, 2, 3), np.uint8)
    neutral = dict.fromkeys(on_device.COLUMNS, 0.0) | {"share": 1.0}

    def changed(options: Augment, **columns: float) -> np.ndarray:
        params = tf.constant([list((neutral | columns).values())])
        return on_device.augment({"image": tf.constant(images), on_device.PARAMS: params}, options)["image"].numpy()

    np.testing.assert_allclose(changed(Augment(brightness=0.5), brightness=-1), images * 0.5, rtol=1e-5)
    gray = (images * [0.299, 0.587, 0.114]).sum(axis=3, keepdims=True)
    np.testing.assert_allclose(changed(Augment(saturation=1), saturation=-1), gray.repeat(3, axis=3), atol=0.1)
    half_turn = changed(Augment(hue=0.5), hue=1)  # the complement of the same brightness
    np.testing.assert_allclose(half_turn, 2 * gray - images, atol=0.2)
    hidden = changed(Augment(cutout=1), cutout_y=0, cutout_x=0)
    assert (hidden == 127.5).all()


def test_jax_changes_images_as_tensorflow_does(tmp_path: Path) -> None:
    options = Augment.model_validate(COLOURS | {"cutout": 0.3, "mixup": 0.4, "cutmix": 1.0})
    images = np.random.default_rng(3).integers(0, 256, (8, 16, 12, 3), np.uint8)
    params = augment.device_params(options, RandomParams(3, tf.constant(4, tf.int64), 8, 0, 8), 16, 12)
    changed = on_device.augment({"image": tf.constant(images), on_device.PARAMS: params}, options)["image"].numpy()
    assert np.abs(changed - images).mean() > 10
    np.savez(tmp_path / "given.npz", image=images, params=params.numpy())
    subprocess.run(
        [sys.executable, "-c", UNDER_JAX, options.model_dump_json(), str(tmp_path)],
        env=os.environ | {"KERAS_BACKEND": "jax"},
        check=True,
    )
    np.testing.assert_allclose(np.load(tmp_path / "changed.npy"), changed, atol=0.01)


def test_each_operation_of_rand_augment_keeps_the_size_and_some_change_the_image() -> None:
    image = tf.constant(np.random.default_rng(4).integers(0, 256, (9, 7, 3), np.uint8))
    different = set()
    for number, name in enumerate(OPERATIONS):
        params = tf.constant([(number + 0.5) / len(OPERATIONS) * 2 - 1, 0.5])
        for pixels in (image, image[:, :, :1]):
            result = rand_augment(pixels, RandAugment(operations=1, magnitude=9), params)
            assert result.shape == pixels.shape and result.dtype == tf.uint8
        if (rand_augment(image, RandAugment(operations=1), params).numpy() != image.numpy()).any():
            different.add(name)
    assert {*OPERATIONS} - different <= {"identity", "autocontrast", "equalize"}


def assert_equal(batch: Any, parts: list[Any]) -> None:
    for name, values in batch[0].items():
        np.testing.assert_array_equal(values, np.concatenate([features[name] for features, _, _ in parts]), name)
    np.testing.assert_array_equal(batch[1], np.concatenate([labels for _, labels, _ in parts]))


def recipe(augment: dict[str, Any], **train: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "seed": 5,
            "data": {"format": "image_folder", "bundled": "digits", "channels": 1},
            "model": {"name": "cnn_small"},
            "train": {"epochs": 2, "batch_size": 16, "augment": augment, **train},
        }
    )
