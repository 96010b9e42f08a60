"""Progressive resizing: early epochs use smaller images, whose cost falls with the square of the side.

The size follows from the step, so a checkpoint does not store it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from trainyard.errors import ConfigurationError
from trainyard.spec.train import Stage

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

_Array = TypeVar("_Array", "tf.Tensor", "jax.Array")


class Resizing:
    """The image sizes of a training in order, and the current one.

    model: for the last size, that of the data. Models of the other sizes share its layers.
    """

    def __init__(self, model: keras.Model, stages: Sequence[Stage], steps_per_epoch: int) -> None:
        self._ends = [steps_per_epoch * end for end in itertools.accumulate(stage.epochs for stage in stages)]
        self._models = [*(_model_at_size(model, stage.size) for stage in stages), model]
        self._number = 0

    def number(self, step: int) -> int:
        """Return the number of the size of step `step`, from 0."""
        return sum(step >= end for end in self._ends)

    def enter(self, step: int) -> None:
        """Make the size of step `step` current for what is traced now."""
        self._number = self.number(step)

    def model(self) -> keras.Model:
        """Return the model of the current size."""
        return self._models[self._number]

    def resize_images(self, features: Mapping[str, _Array]) -> dict[str, _Array]:
        """Return `features` with images, float32 (batch, height, width, channels), resized to the current size."""
        shapes = {tensor.name: tensor.shape for tensor in keras.tree.flatten(self.model().input)}
        return {
            name: _resize(value, *shapes[name][1:3]) if len(value.shape) == 4 else value
            for name, value in features.items()
        }


def _model_at_size(model: keras.Model, side: int) -> keras.Model:
    """Return `model` for images whose shorter side is `side`, with the same layers and weights.

    Raises `ConfigurationError` if the model takes one size only.
    """
    tensors: dict[str, keras.KerasTensor] = cast(Any, model.input)
    inputs = {
        name: keras.Input(_resized_shape(tensor.shape[1:], side), name=name, dtype=tensor.dtype)
        for name, tensor in tensors.items()
    }
    try:
        return keras.models.clone_model(model, input_tensors=inputs, clone_function=lambda layer: layer)
    except ValueError as error:
        raise ConfigurationError(
            f"train.progressive_resizing: the network '{model.name}' takes images of one size only. "
            "Leave it out, or end the network with global pooling, as the resnet50 do."
        ) from error


def _resized_shape(shape: Sequence[int], side: int) -> tuple[int, ...]:
    if len(shape) != 3:
        return tuple(shape)
    height, width, channels = shape
    return round(height * side / min(height, width)), round(width * side / min(height, width)), channels


def _resize(images: _Array, height: int, width: int) -> _Array:
    """Return `images` (batch, rows, columns, channels) as (batch, height, width, channels), antialiased.

    Uses two matrix products, which every device and XLA compute fast.
    """
    if tuple(images.shape[1:3]) == (height, width):
        return images
    rows, columns = triangle(images.shape[1], height), triangle(images.shape[2], width)
    return cast(_Array, ops.einsum("xw,byws->byxs", columns, ops.einsum("yh,bhws->byws", rows, images)))


def triangle(size: int, out: int) -> NDArray[np.float32]:
    """Return weights (out, size) that resample `size` pixels to fewer.

    The filter is a triangle two new pixels wide, cut off at the edges, as in the antialiased bilinear resize of Pillow
    and TensorFlow.
    """
    scale = size / out
    centres = (np.arange(out) + 0.5) * scale
    weights = np.maximum(0.0, 1 - np.abs(np.arange(size) + 0.5 - centres[:, None]) / max(scale, 1.0))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)
