"""Draws and targets of what happens on the device: prepared where the batch is made, the same for every replica."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainyard.spec.training.augment import Augment
from trainyard.steps.train.input.augment import COLOR, MIX, Draws


def device_draws(options: Augment, draws: Draws, height: int, width: int) -> tf.Tensor:
    """Return float32 (count, columns) as `on_device.COLUMNS` names them, for images of `height` and `width`."""
    first, colors = draws.uniform(6), draws.uniform(5, COLOR)
    nothing = tf.zeros_like(first[:, 0])
    mixed = _mixed(options, draws, height, width) if options.mixes else [nothing + 1, *[nothing] * 4]
    return tf.stack([colors[:, 0], first[:, 5], *(colors[:, number] for number in range(1, 5)), *mixed], axis=1)


def mix_targets(
    labels: tf.Tensor, share: tf.Tensor, classes: int, class_weights: np.ndarray
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return targets float32 (count, classes), and how much each example counts.

    labels: int64 (count,). share: float32 (count,), of the example itself. The cross-entropy is linear in the target,
    so what each of the two images counts, `class_weights` (classes,), is a part of target and weight.
    """
    partners = tf.reshape(tf.reverse(tf.reshape(labels, (-1, 2)), axis=[1]), (-1,))
    own, other = (part * tf.gather(class_weights, of) for part, of in ((share, labels), (1 - share, partners)))
    total = own + other
    targets = own[:, None] * tf.one_hot(labels, classes) + other[:, None] * tf.one_hot(partners, classes)
    return tf.math.divide_no_nan(targets, total[:, None]), total


def mixed_share(device: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return float32 (count,): how much of each example's pixels are its own, by its `device_draws`."""
    share, top, bottom, left, right = tf.unstack(device[:, 6:11], axis=1)
    return share * (1 - (bottom - top) * (right - left) / (height * width))


def _mixed(options: Augment, draws: Draws, height: int, width: int) -> list[tf.Tensor]:
    """Return share, top, bottom, left and right, (count,) each and equal in a pair.

    Source: H. Zhang et al., mixup, arXiv:1710.09412; S. Yun et al., CutMix, arXiv:1905.04899, whose window's sides are
    as the square root of its area, its centre anywhere and its area that inside the image.
    """
    unit = (draws.uniform(3, MIX) + 1) / 2
    swaps = unit[:, 2] < (0.5 if options.mixup and options.cutmix else float(bool(options.cutmix)))
    share = draws.beta(options.mixup, MIX + 1) if options.mixup else tf.ones_like(unit[:, 0])
    side = tf.sqrt(1 - draws.beta(options.cutmix, MIX + 2)) if options.cutmix else tf.zeros_like(share)
    bounds = []
    for number, size in enumerate((height, width)):
        center, half = unit[:, number] * size, side * size / 2
        for edge in (center - half, center + half):
            edge = tf.clip_by_value(tf.round(edge), 0.0, float(size))
            bounds.append(tf.where(swaps, edge, tf.zeros_like(edge)))
    drawn = [tf.where(swaps, tf.ones_like(share), share), *bounds]
    return [tf.repeat(column[::2], 2) for column in drawn]
