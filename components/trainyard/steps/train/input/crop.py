"""A window at a random place of a stored picture, resized to the model's size.

Of a JPEG only the window is decoded, at the smallest eighth of its size that is not below the model's: libjpeg then
does the averaging. Source: TensorFlow, tf.io.decode_and_crop_jpeg.
"""

from __future__ import annotations

import math
from functools import partial

import tensorflow as tf

from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.data.images import as_pixels, resize_quickly
from trainyard.spec.training.augment import Crop

DRAWS = 4
"""Numbers that a window takes: area, ratio, top, left."""
_RATIOS = (1, 2, 4, 8)  # of libjpeg's scaled decoding


def window(height: tf.Tensor, width: tf.Tensor, options: Crop, draws: tf.Tensor) -> tf.Tensor:
    """Return int32 (4,): top, left, height and width of a window in a picture of `height` and `width`, int32 scalars.

    draws: float32 (4,) in -1..1. A window that is too high or too wide is cut to the picture.
    """
    rows, columns = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    unit = (draws + 1) / 2
    area = _between(*options.scale, unit[0]) * rows * columns
    # The logarithm is uniform, so that a window is as often too wide as too high.
    ratio = tf.exp(_between(math.log(options.ratio[0]), math.log(options.ratio[1]), unit[1]))
    size = [tf.sqrt(area / ratio), tf.sqrt(area * ratio)]
    high, wide = (
        tf.clip_by_value(tf.cast(tf.round(edge), tf.int32), 1, limit)
        for edge, limit in zip(size, (height, width), strict=True)
    )
    top = tf.cast(unit[2] * tf.cast(height - high + 1, tf.float32), tf.int32)
    left = tf.cast(unit[3] * tf.cast(width - wide + 1, tf.float32), tf.int32)
    # A draw is below 1, but its product may be rounded up.
    return tf.stack([tf.minimum(top, height - high), tf.minimum(left, width - wide), high, wide])


def decode_window(encoded: tf.Tensor, shape: ImageShape, options: Crop, draws: tf.Tensor) -> tf.Tensor:
    """Return uint8 (height, width, channels): a window of the JPEG or PNG in the scalar string `encoded`."""

    def jpeg() -> tf.Tensor:
        size = tf.io.extract_jpeg_shape(encoded)
        box = window(size[0], size[1], options, draws)
        least = tf.minimum(box[2] // shape.height, box[3] // shape.width)
        number = tf.reduce_sum(tf.cast(least >= tf.constant(_RATIOS[1:]), tf.int32))
        return tf.switch_case(number, [partial(_decoded, encoded, shape, box, ratio) for ratio in _RATIOS])

    def other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=shape.channels, expand_animations=False)
        image.set_shape((None, None, shape.channels))
        return cut_window(image, shape.height, shape.width, options, draws)

    pixels = tf.cond(tf.io.is_jpeg(encoded), jpeg, other)
    return tf.ensure_shape(pixels, (shape.height, shape.width, shape.channels))


def cut_window(image: tf.Tensor, height: int, width: int, options: Crop, draws: tf.Tensor) -> tf.Tensor:
    """Return a window of `image` (…, …, channels) as (height, width, channels) of its type."""
    size = tf.shape(image)
    top, left, high, wide = tf.unstack(window(size[0], size[1], options, draws))
    cut = image[top : top + high, left : left + wide]
    resized = tf.image.resize(cut, (height, width), antialias=True)
    return as_pixels(resized) if image.dtype == tf.uint8 else resized


def _decoded(encoded: tf.Tensor, shape: ImageShape, box: tf.Tensor, ratio: int) -> tf.Tensor:
    """Return the window `box` of a JPEG decoded at 1 / `ratio` of its size, less than twice the model's."""
    scaled = tf.maximum(box // ratio, [0, 0, 1, 1])
    decoded = tf.io.decode_and_crop_jpeg(encoded, scaled, channels=shape.channels, ratio=ratio)
    return resize_quickly(decoded, (shape.height, shape.width))


def _between(low: float, high: float, unit: tf.Tensor) -> tf.Tensor:
    return low + (high - low) * unit
