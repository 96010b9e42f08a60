"""Augmentation of training images on the host: crop, mirror, resample and RandAugment.

All random parameters are a pure function of (seed, step, position in the global batch), so a resumed run, and any
number of replicas, see the same images. Images are uint8. Color changes and mixing of two images follow on the device
(`on_device`); their parameters and targets are computed here. A window of a JPEG is decoded alone, at the smallest
eighth of its size that is not below the model's, so that libjpeg does the averaging. Source: TensorFlow,
tf.io.decode_and_crop_jpeg.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.data.examples import ExampleFolder, Tensors
from trainyard.data.images import as_pixels, decode_pixels, resize_quickly
from trainyard.spec.train import Augment, Crop, RandAugment

# Each kind has its own salt, so that enabling one augmentation does not change the others.
CROP, RAND_AUGMENT, COLOR, MIX = 1, 2, 3, 4

_OPERATION_PARAMS = 2  # of RandAugment: its choice and its sign
_GRAY = 128
_LUMA = (0.299, 0.587, 0.114)  # Source: ITU-R BT.601

_Operation = Callable[[tf.Tensor, float, tf.Tensor], tf.Tensor]


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
    count = _OPERATION_PARAMS * options.rand_augment.operations if options.rand_augment else 0
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
        image = rand_augment(image, options.rand_augment, params[6 + CROP_PARAMS :])
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


def rand_augment(image: tf.Tensor, options: RandAugment, params: tf.Tensor) -> tf.Tensor:
    """Return `image` (height, width, channels) after the operations that `params`, (2 x operations,) in -1..1, select.

    Values that are not uint8 are changed as rounded values in 0..255. Areas outside the image are gray.

    Source: E. Cubuk et al., RandAugment, arXiv:1909.13719; the effect at magnitude 10 is that of AutoAugment,
    arXiv:1805.09501, table 6.
    """
    pixels = image if image.dtype == tf.uint8 else as_pixels(image)
    for number in range(options.operations):
        choice = tf.cast((params[_OPERATION_PARAMS * number] + 1) / 2 * len(OPERATIONS), tf.int32)
        sign = tf.where(params[_OPERATION_PARAMS * number + 1] < 0, -1.0, 1.0)
        branches = [partial(change, pixels, options.magnitude / 10, sign) for change in OPERATIONS.values()]
        pixels = tf.switch_case(tf.minimum(choice, len(OPERATIONS) - 1), branches)
    return tf.ensure_shape(tf.cast(pixels, image.dtype), tuple(image.shape))


def _autocontrast(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:  # noqa: ARG001 - one signature
    values = tf.cast(image, tf.float32)
    low = tf.reduce_min(values, axis=[0, 1])
    high = tf.reduce_max(values, axis=[0, 1])
    stretched = (values - low) * tf.math.divide_no_nan(255.0, high - low)
    return as_pixels(tf.where(high > low, stretched, values))


def _equalize(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:  # noqa: ARG001
    """Return `image` with a flat histogram in each channel.

    Source: Pillow, ImageOps.equalize, which AutoAugment uses.
    """
    channels = []
    for channel in tf.unstack(image, axis=2):
        values = tf.cast(channel, tf.int32)
        histogram = tf.math.bincount(tf.reshape(values, (-1,)), minlength=256, maxlength=256)
        last = tf.reduce_max(values)
        step = (tf.reduce_sum(histogram) - histogram[last]) // 255
        table = (tf.cumsum(histogram, exclusive=True) + step // 2) // tf.maximum(step, 1)
        equalized = tf.gather(tf.minimum(table, 255), values)
        channels.append(tf.cast(tf.where(step > 0, equalized, values), tf.uint8))
    return tf.stack(channels, axis=2)


def _posterize(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:  # noqa: ARG001
    bits = 8 - round(4 * strength)
    return tf.bitwise.bitwise_and(image, tf.constant(256 - (1 << (8 - bits)), tf.uint8))


def _solarize(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:  # noqa: ARG001
    threshold = min(255, round(256 * (1 - strength)))
    return tf.where(image < tf.constant(threshold, tf.uint8), image, 255 - image) if strength else image


def _color(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:
    if image.shape[2] == 1:
        return image
    values = tf.cast(image, tf.float32)
    return _blend(tf.reduce_sum(values * _LUMA, axis=2, keepdims=True), values, strength, sign)


def _contrast(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:
    values = tf.cast(image, tf.float32)
    gray = tf.reduce_sum(values * _LUMA, axis=2) if image.shape[2] == 3 else values
    return _blend(tf.reduce_mean(gray), values, strength, sign)


def _brightness(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:
    return _blend(tf.constant(0.0), tf.cast(image, tf.float32), strength, sign)


def _sharpness(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:
    """Return `image` interpolated with, or extrapolated from, its smoothed version.

    Source: Pillow, ImageFilter.SMOOTH, which keeps the border.
    """
    values, channels = tf.cast(image, tf.float32), image.shape[2]
    kernel = tf.constant([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    filters = tf.repeat(kernel[:, :, None, None], channels, axis=2)
    smooth = tf.nn.depthwise_conv2d(values[None], filters, strides=[1, 1, 1, 1], padding="VALID")[0]
    inner = tf.pad(tf.ones_like(smooth), [[1, 1], [1, 1], [0, 0]])
    smooth = tf.pad(smooth, [[1, 1], [1, 1], [0, 0]])
    return _blend(tf.where(inner > 0, smooth, values), values, strength, sign)


def _blend(other: tf.Tensor, image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:
    """Return `other` and float32 `image` blended to pixels, with the share 1 + 0.9 x sign x strength of the image."""
    return as_pixels(other + (image - other) * (1 + sign * (0.9 * strength)))


def _rotate(image: tf.Tensor, strength: float, sign: tf.Tensor) -> tf.Tensor:
    angle = sign * (math.radians(30) * strength)
    sine, cosine = tf.sin(angle), tf.cos(angle)
    x, y = (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2
    return _transform(image, [cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y])


def _slide(
    image: tf.Tensor, strength: float, sign: tf.Tensor, *, entry: int, share: float, side: int | None = None
) -> tf.Tensor:
    """Return `image` sheared, or shifted by a share of a `side`: an identity transform except for `entry`."""
    transform: list[tf.Tensor | float] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    transform[entry] = sign * (share * strength * (1 if side is None else image.shape[side]))
    return _transform(image, transform)


def _transform(image: tf.Tensor, transform: list[tf.Tensor | float]) -> tf.Tensor:
    """Return `image` transformed by `transform`, an affine map of output to input pixels."""
    row = tf.stack([*(tf.cast(value, tf.float32) for value in transform), tf.constant(0.0), tf.constant(0.0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=row[None],
        output_shape=[image.shape[0], image.shape[1]],
        fill_value=float(_GRAY),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


OPERATIONS: dict[str, _Operation] = {
    "identity": lambda image, strength, sign: image,  # noqa: ARG005
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear_x": partial(_slide, entry=1, share=0.3),
    "shear_y": partial(_slide, entry=3, share=0.3),
    "translate_x": partial(_slide, entry=2, share=0.45, side=1),
    "translate_y": partial(_slide, entry=5, share=0.45, side=0),
}
"""Operations by their names in the paper."""
