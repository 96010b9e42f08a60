"""Augmentation on the device, inside the compiled step: conversion to floats, colors, cutout, mixing of two images.

Sending uint8 images takes a quarter of the bytes. The formulas are Keras operations, so both engines share them; the
random parameters come with the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from keras import ops
from keras.backend import standardize_dtype

from trainyard.spec.train import Augment

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

Tensor = TypeVar("Tensor", "tf.Tensor", "jax.Array")
"""A tensor of the engine."""

PARAMS = "augment/draws"
"""Feature name of the random parameters in a training batch: float32 (batch, columns), if `Augment.on_device`."""
COLUMNS = (
    *("brightness", "contrast", "saturation", "hue"),  # in -1..1
    *("cutout_y", "cutout_x"),  # centre, in -1..1 from edge to edge
    "share",  # of the image itself; the rest is its partner's
    # Window of the partner's pixels, without the row `bottom` and the column `right`.
    *("top", "bottom", "left", "right"),
)
"""Names of the parameters' columns."""

# Source: ITU-R BT.601, luma; NTSC's YIQ, where rotating I and Q shifts the hue.
_LUMA = np.asarray([0.299, 0.587, 0.114], np.float32)
_TO_YIQ = np.asarray([_LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], np.float32)
_FROM_YIQ = np.linalg.inv(_TO_YIQ).astype(np.float32)
_GRAY = 127.5


def as_floats(features: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's inputs, with uint8 images as float32 in 0..255."""
    return {
        name: ops.cast(values, "float32") if standardize_dtype(values.dtype) == "uint8" else values
        for name, values in features.items()
    }


def augment(features: dict[str, Tensor], options: Augment) -> dict[str, Tensor]:
    """Return the model's inputs of a training batch, with images augmented by `options` and the batch's parameters."""
    floats = as_floats(features)
    if PARAMS not in floats:
        return floats
    params = floats.pop(PARAMS)
    return {
        name: _augment_images(value, options, params) if len(value.shape) == 4 else value
        for name, value in floats.items()
    }


def _augment_images(images: Tensor, options: Augment, params: Tensor) -> Tensor:
    """Return `images`, float32 (batch, height, width, channels) in 0..255, changed by `params`, (batch, columns)."""
    height, width = images.shape[1], images.shape[2]
    column = {name: params[:, number, None, None, None] for number, name in enumerate(COLUMNS)}
    if options.brightness:
        images = images * (1 + options.brightness * column["brightness"])
    if options.saturation or options.hue:
        images = _change_colors(images, options, column)
    if options.contrast:
        mean = ops.mean(images, axis=(1, 2), keepdims=True)
        images = (images - mean) * (1 + options.contrast * column["contrast"]) + mean
    if options.brightness or options.contrast or options.saturation or options.hue:
        images = ops.clip(images, 0.0, 255.0)
    rows = np.arange(height, dtype=np.float32).reshape((1, -1, 1, 1))
    columns = np.arange(width, dtype=np.float32).reshape((1, 1, -1, 1))
    if options.cutout:
        half = options.cutout * min(height, width) / 2
        y, x = (column["cutout_y"] + 1) / 2 * height, (column["cutout_x"] + 1) / 2 * width
        hidden = _inside(rows + 0.5, y - half, y + half), _inside(columns + 0.5, x - half, x + half)
        images = ops.where(ops.logical_and(*hidden), _GRAY, images)
    if options.mixes:
        partners = swap_pairs(images)
        inside = _inside(rows, column["top"], column["bottom"]), _inside(columns, column["left"], column["right"])
        images = ops.where(
            ops.logical_and(*inside), partners, column["share"] * images + (1 - column["share"]) * partners
        )
    return images


def swap_pairs(values: Tensor) -> Tensor:
    """Return `values` (even, ...) with the first and second, third and fourth … exchanged.

    Neighbors are on one replica, for any number of replicas.
    """
    _, *size = ops.shape(values)
    return ops.reshape(ops.flip(ops.reshape(values, (-1, 2, *size)), axis=1), (-1, *size))


def _change_colors(images: Tensor, options: Augment, column: dict[str, Tensor]) -> Tensor:
    """Return `images` with changed saturation and hue, a rotation of I and Q in YIQ."""
    angle = column["hue"][:, 0, 0, 0] * (options.hue * 2 * np.pi)
    scale = 1 + options.saturation * column["saturation"][:, 0, 0, 0]
    one, nothing = ops.ones_like(angle), ops.zeros_like(angle)
    turn = ops.stack(
        [
            ops.stack([one, nothing, nothing], axis=1),
            ops.stack([nothing, scale * ops.cos(angle), -scale * ops.sin(angle)], axis=1),
            ops.stack([nothing, scale * ops.sin(angle), scale * ops.cos(angle)], axis=1),
        ],
        axis=1,
    )
    matrix = ops.einsum("bxy,dx,yc->bdc", turn, _FROM_YIQ, _TO_YIQ)
    return ops.einsum("bhwc,bdc->bhwd", images, matrix)


def _inside(positions: np.ndarray, low: Tensor, high: Tensor) -> Tensor:
    """Return bool: low <= position < high for each of `positions`."""
    return ops.logical_and(ops.less_equal(low, positions), ops.less(positions, high))
