"""RandAugment: some of fourteen operations, one image at a time.

Source: E. Cubuk et al., RandAugment, arXiv:1909.13719; the effect at magnitude 10 is that of AutoAugment,
arXiv:1805.09501, table 6. Areas outside the image are gray, as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import tensorflow as tf

from trainyard.data.images import as_pixels
from trainyard.spec.training.augment import RandAugment

PARAMS = 2
"""Parameters of an operation: its choice and its sign."""
_GRAY = 128
_LUMA = (0.299, 0.587, 0.114)  # Source: ITU-R BT.601

_Operation = Callable[[tf.Tensor, float, tf.Tensor], tf.Tensor]


def rand_augment(image: tf.Tensor, options: RandAugment, params: tf.Tensor) -> tf.Tensor:
    """Return `image` (height, width, channels) after the operations that `params`, (2 x operations,) in -1..1, select.

    Values that are not uint8 are changed as rounded values in 0..255.
    """
    pixels = image if image.dtype == tf.uint8 else as_pixels(image)
    for number in range(options.operations):
        choice = tf.cast((params[PARAMS * number] + 1) / 2 * len(OPERATIONS), tf.int32)
        sign = tf.where(params[PARAMS * number + 1] < 0, -1.0, 1.0)
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
