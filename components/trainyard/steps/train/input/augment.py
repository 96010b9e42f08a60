"""Random changes to a batch of training images, all in one resampling.

The draws are a pure function of (seed, step, position in the global batch), so a resumed run sees the images that the
lost one would have seen, and so do the replicas of a gang.
"""

from __future__ import annotations

import math

import tensorflow as tf

from trainyard.spec.recipe import Augment


def drawn(seed: int, step: tf.Tensor, batch_size: int, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return float32 (count, 6) in -1..1: the draws of `count` examples from number `first` of the global batch on.

    step: int64 scalar, the global step that draws.
    """
    return tf.random.stateless_uniform((batch_size, 6), seed=[seed, step], minval=-1.0)[first : first + count]


def augment(images: tf.Tensor, options: Augment, draws: tf.Tensor) -> tf.Tensor:
    """Return `images`, float32 (batch, height, width, channels) in 0..255, changed as `options` allow.

    draws: float32 (batch, 6) in -1..1. What comes in from outside the image repeats its border.
    """
    if options.shift or options.rotate or options.zoom:
        images = _resample(images, options, draws)
    elif options.flip:
        images = tf.where(draws[:, 4, None, None, None] < 0, tf.reverse(images, axis=[2]), images)
    if options.contrast:
        mean = tf.reduce_mean(images, axis=[1, 2, 3], keepdims=True)
        factor = 1 + options.contrast * draws[:, 5, None, None, None]
        images = tf.clip_by_value((images - mean) * factor + mean, 0.0, 255.0)
    return images


def _resample(images: tf.Tensor, options: Augment, draws: tf.Tensor) -> tf.Tensor:
    height, width = images.shape[1], images.shape[2]
    transforms = affine(options, draws, height, width)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[height, width],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="NEAREST",
    )


def affine(options: Augment, draws: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return float32 (batch, 8), row by row the map of an output pixel to the input pixel it is taken from.

    x_in = a0 x + a1 y + a2, y_in = b0 x + b1 y + b2; rotation, zoom and mirroring are about the image's centre.
    draws: (batch, 6) in -1..1, used in the order shift x, shift y, rotate, zoom, flip, contrast.
    """
    # One constant a product: a chain of them is folded by some graph rewrites and not by others, and rounds otherwise.
    angle = draws[:, 2] * (options.rotate * math.pi / 180)
    scale = 1 + draws[:, 3] * options.zoom
    mirror = tf.where(draws[:, 4] < 0, -1.0, 1.0) if options.flip else tf.ones_like(angle)
    center_x, center_y = (width - 1) / 2, (height - 1) / 2
    a0, a1 = mirror * scale * tf.cos(angle), -scale * tf.sin(angle)
    b0, b1 = mirror * scale * tf.sin(angle), scale * tf.cos(angle)
    a2 = center_x - a0 * center_x - a1 * center_y + draws[:, 0] * (options.shift * width)
    b2 = center_y - b0 * center_x - b1 * center_y + draws[:, 1] * (options.shift * height)
    nothing = tf.zeros_like(angle)
    return tf.stack([a0, a1, a2, b0, b1, b2, nothing, nothing], axis=1)
