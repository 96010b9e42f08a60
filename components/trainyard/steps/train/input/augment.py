"""Augmentation of training images on the host: crop, mirror, resample and RandAugment.

All random parameters are a pure function of (seed, step, position in the global batch), so a resumed run, and any
number of replicas, see the same images. Images are uint8. Color changes and mixing of two images follow on the device
(`on_device`); their parameters and targets are computed here. A window of a JPEG is decoded alone, at the smallest
eighth of its size that is not below the model's, so that libjpeg does the averaging. Source: TensorFlow,
tf.io.decode_and_crop_jpeg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.data.examples import ExampleFolder, Tensors
from trainyard.data.images import as_pixels, decode_pixels, resize_quickly
from trainyard.spec.training.augment import Augment, Crop
from trainyard.steps.train.input import rand_augment

# Each kind has its own salt, so that enabling one augmentation does not change the others.
CROP, RAND_AUGMENT, COLOR, MIX = 1, 2, 3, 4


@dataclass(frozen=True)
class RandomParams:
    """Random parameters of `count` examples, from row `first` of global batch `step`, of `batch_size`."""

    seed: int
    step: tf.Tensor
    batch_size: int
    first: tf.Tensor
    count: int

    def uniform(self, width: int, salt: int = 0) -> tf.Tensor:
        """Return float32 (count, width) in -1..1, different for each `salt`."""
        drawn = tf.random.stateless_uniform((self.batch_size, width), seed=self._seed(salt), minval=-1.0)
        return drawn[self.first : self.first + self.count]

    def beta(self, alpha: float, salt: int) -> tf.Tensor:
        """Return float32 (count,) in 0..1, from Beta(alpha, alpha)."""
        drawn = tf.random.stateless_gamma((self.batch_size, 2), seed=self._seed(salt), alpha=alpha)
        # Both are 0 if alpha is very small: then neither has a share.
        share = tf.math.divide_no_nan(drawn[:, 0], tf.reduce_sum(drawn, axis=1))
        return share[self.first : self.first + self.count]

    def _seed(self, salt: int) -> tf.Tensor:
        seed = tf.stack([np.int64(self.seed), self.step])
        return tf.random.fold_in(seed, salt) if salt else seed


def changes_examples(options: Augment) -> bool:
    """Return True if images are changed one by one, before batching; measured: mirroring costs a fifth so."""
    return bool(options.crop or options.rand_augment or (options.flip and not options.resamples))


def example_params(options: Augment, params: RandomParams) -> tf.Tensor:
    """Return float32 (count, n), a row for each image, for `window` and `augment_example`."""
    count = rand_augment.PARAMS * options.rand_augment.operations if options.rand_augment else 0
    parts = [params.uniform(6), params.uniform(CROP_PARAMS, CROP), params.uniform(count, RAND_AUGMENT)]
    return tf.concat(parts, axis=1)


def window_params(params: tf.Tensor) -> tf.Tensor:
    """Return the part of a row of `example_params` for `window`."""
    return params[6 : 6 + CROP_PARAMS]


def augment_example(image: tf.Tensor, options: Augment, params: tf.Tensor) -> tf.Tensor:
    """Return `image` (height, width, channels) augmented by `options` and a row of `example_params`."""
    if options.flip and not options.resamples:
        image = tf.cond(params[4] < 0, lambda: tf.reverse(image, axis=[1]), lambda: image)
    if options.rand_augment:
        image = rand_augment.rand_augment(image, options.rand_augment, params[6 + CROP_PARAMS :])
    return image


def resample(images: tf.Tensor, options: Augment, params: tf.Tensor) -> tf.Tensor:
    """Return `images`, (batch, height, width, channels), shifted, mirrored, rotated and zoomed as `options` allow.

    params: float32 (batch, 6) in -1..1. Areas outside the image repeat its border.
    """
    height, width = images.shape[1], images.shape[2]
    resampled = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(images, tf.float32),
        transforms=affine(options, params, height, width),
        output_shape=[height, width],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="NEAREST",
    )
    return as_pixels(resampled) if images.dtype == tf.uint8 else resampled


def affine(options: Augment, params: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return float32 (batch, 8): in each row the map of an output pixel to its input pixel.

    x_in = a0 x + a1 y + a2, y_in = b0 x + b1 y + b2; rotation, zoom and mirroring are about the image's centre. params:
    (batch, 6) in -1..1, used in the order shift x, shift y, rotate, zoom, flip, contrast.
    """
    # One constant a product: only some graph rewrites fold a chain of constants, which changes rounding.
    angle = params[:, 2] * (options.rotate * math.pi / 180)
    scale = 1 + params[:, 3] * options.zoom
    mirror = tf.where(params[:, 4] < 0, -1.0, 1.0) if options.flip else tf.ones_like(angle)
    center_x, center_y = (width - 1) / 2, (height - 1) / 2
    a0, a1 = mirror * scale * tf.cos(angle), -scale * tf.sin(angle)
    b0, b1 = mirror * scale * tf.sin(angle), scale * tf.cos(angle)
    a2 = center_x - a0 * center_x - a1 * center_y + params[:, 0] * (options.shift * width)
    b2 = center_y - b0 * center_x - b1 * center_y + params[:, 1] * (options.shift * height)
    nothing = tf.zeros_like(angle)
    return tf.stack([a0, a1, a2, b0, b1, b2, nothing, nothing], axis=1)


def device_params(options: Augment, params: RandomParams, height: int, width: int) -> tf.Tensor:
    """Return float32 (count, columns) as named by `on_device.COLUMNS`, for images of `height` and `width`."""
    first, colors = params.uniform(6), params.uniform(5, COLOR)
    nothing = tf.zeros_like(first[:, 0])
    mixed = _mix_params(options, params, height, width) if options.mixes else [nothing + 1, *[nothing] * 4]
    return tf.stack([colors[:, 0], first[:, 5], *(colors[:, number] for number in range(1, 5)), *mixed], axis=1)


def mix_targets(
    labels: tf.Tensor, share: tf.Tensor, classes: int, class_weights: np.ndarray
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the targets of mixed images, float32 (count, classes), and the weight of each example.

    labels: int64 (count,). share: float32 (count,), of the example itself. Cross-entropy is linear in the target, so
    the class weight of each of the two images, `class_weights` (classes,), enters both target and weight.
    """
    partners = tf.reshape(tf.reverse(tf.reshape(labels, (-1, 2)), axis=[1]), (-1,))
    own, other = (
        part * tf.gather(class_weights, indices) for part, indices in ((share, labels), (1 - share, partners))
    )
    total = own + other
    targets = own[:, None] * tf.one_hot(labels, classes) + other[:, None] * tf.one_hot(partners, classes)
    return tf.math.divide_no_nan(targets, total[:, None]), total


def mixed_share(device: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return float32 (count,): the share of each example's own pixels, from its `device_params`."""
    share, top, bottom, left, right = tf.unstack(device[:, 6:11], axis=1)
    return share * (1 - (bottom - top) * (right - left) / (height * width))


def _mix_params(options: Augment, params: RandomParams, height: int, width: int) -> list[tf.Tensor]:
    """Return share, top, bottom, left and right, (count,) each and equal in a pair.

    Source: H. Zhang et al., mixup, arXiv:1710.09412; S. Yun et al., CutMix, arXiv:1905.04899, whose window's sides are
    as the square root of its area, its centre anywhere and its area that inside the image.
    """
    unit = (params.uniform(3, MIX) + 1) / 2
    swaps = unit[:, 2] < (0.5 if options.mixup and options.cutmix else float(bool(options.cutmix)))
    share = params.beta(options.mixup, MIX + 1) if options.mixup else tf.ones_like(unit[:, 0])
    side = tf.sqrt(1 - params.beta(options.cutmix, MIX + 2)) if options.cutmix else tf.zeros_like(share)
    bounds = []
    for number, size in enumerate((height, width)):
        center, half = unit[:, number] * size, side * size / 2
        for edge in (center - half, center + half):
            edge = tf.clip_by_value(tf.round(edge), 0.0, float(size))
            bounds.append(tf.where(swaps, edge, tf.zeros_like(edge)))
    drawn = [tf.where(swaps, tf.ones_like(share), share), *bounds]
    return [tf.repeat(column[::2], 2) for column in drawn]


@dataclass(frozen=True)
class AugmentedImages:
    """The image features of `folder`, augmented by `options`."""

    folder: ExampleFolder
    options: Augment

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the images by feature name; empty without images."""
        return {feature.name: feature.shape for feature in self.folder.document.features if len(feature.shape) == 3}

    @property
    def changes_examples(self) -> bool:
        """True if images are changed one by one."""
        return bool(self.shapes) and changes_examples(self.options)

    @property
    def cut_encoded(self) -> bool:
        """True if windows are cut from encoded images, which may be larger than the model's."""
        encoded = any(feature.encoded and not feature.pixels for feature in self.folder.document.features)
        return encoded and self.options.crop is not None

    def decode_quickly(self, record: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        """Return (features, label) of a serialized example, its image as uint8."""
        features, label = self.folder.parse(record)
        return self.folder.decode_features(features, partial(decode_pixels, quick=True)), label

    def changed(self, features: Tensors, row: tf.Tensor) -> Tensors:
        """Return the features of an example with images augmented by its `row` of `example_params`."""
        images = {name: self._changed(features[name], shape, row) for name, shape in self.shapes.items()}
        return {**features, **images}

    def _changed(self, image: tf.Tensor, shape: tuple[int, ...], row: tf.Tensor) -> tf.Tensor:
        model_shape = self.folder.document.image
        if self.options.crop is not None:
            params = window_params(row)
            if image.dtype == tf.string and model_shape is not None:
                image = decode_window(image, model_shape, self.options.crop, params)
            else:
                image = cut_window(image, shape[0], shape[1], self.options.crop, params)
        return augment_example(image, self.options, row)


CROP_PARAMS = 4
"""Parameters of a window: area, ratio, top, left."""
_RATIOS = (1, 2, 4, 8)  # libjpeg's scaled decoding


def window(height: tf.Tensor, width: tf.Tensor, options: Crop, params: tf.Tensor) -> tf.Tensor:
    """Return int32 (4,): top, left, height and width of a random window in an image of `height` and `width`.

    height, width: int32 scalars. params: float32 (4,) in -1..1. A window larger than the image is cut to it.
    """
    rows, columns = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    unit = (params + 1) / 2
    area = _between(*options.scale, unit[0]) * rows * columns
    # The logarithm is uniform, so that wide and high windows are equally likely.
    ratio = tf.exp(_between(math.log(options.ratio[0]), math.log(options.ratio[1]), unit[1]))
    size = [tf.sqrt(area / ratio), tf.sqrt(area * ratio)]
    high, wide = (
        tf.clip_by_value(tf.cast(tf.round(edge), tf.int32), 1, limit)
        for edge, limit in zip(size, (height, width), strict=True)
    )
    top = tf.cast(unit[2] * tf.cast(height - high + 1, tf.float32), tf.int32)
    left = tf.cast(unit[3] * tf.cast(width - wide + 1, tf.float32), tf.int32)
    # A parameter is below 1, but its product may be rounded up.
    return tf.stack([tf.minimum(top, height - high), tf.minimum(left, width - wide), high, wide])


def decode_window(encoded: tf.Tensor, shape: ImageShape, options: Crop, params: tf.Tensor) -> tf.Tensor:
    """Return uint8 (height, width, channels): a random window of the JPEG or PNG `encoded`, a scalar string."""

    def jpeg() -> tf.Tensor:
        size = tf.io.extract_jpeg_shape(encoded)
        box = window(size[0], size[1], options, params)
        least = tf.minimum(box[2] // shape.height, box[3] // shape.width)
        number = tf.reduce_sum(tf.cast(least >= tf.constant(_RATIOS[1:]), tf.int32))
        return tf.switch_case(number, [partial(_decode_scaled, encoded, shape, box, ratio) for ratio in _RATIOS])

    def other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=shape.channels, expand_animations=False)
        image.set_shape((None, None, shape.channels))
        return cut_window(image, shape.height, shape.width, options, params)

    pixels = tf.cond(tf.io.is_jpeg(encoded), jpeg, other)
    return tf.ensure_shape(pixels, (shape.height, shape.width, shape.channels))


def cut_window(image: tf.Tensor, height: int, width: int, options: Crop, params: tf.Tensor) -> tf.Tensor:
    """Return a random window of `image` (…, …, channels) as (height, width, channels) of the same type."""
    size = tf.shape(image)
    top, left, high, wide = tf.unstack(window(size[0], size[1], options, params))
    cut = image[top : top + high, left : left + wide]
    resized = tf.image.resize(cut, (height, width), antialias=True)
    return as_pixels(resized) if image.dtype == tf.uint8 else resized


def _decode_scaled(encoded: tf.Tensor, shape: ImageShape, box: tf.Tensor, ratio: int) -> tf.Tensor:
    """Return the window `box` of a JPEG decoded at 1 / `ratio` of its size, less than twice the model's."""
    scaled = tf.maximum(box // ratio, [0, 0, 1, 1])
    decoded = tf.io.decode_and_crop_jpeg(encoded, scaled, channels=shape.channels, ratio=ratio)
    return resize_quickly(decoded, (shape.height, shape.width))


def _between(low: float, high: float, unit: tf.Tensor) -> tf.Tensor:
    return low + (high - low) * unit
