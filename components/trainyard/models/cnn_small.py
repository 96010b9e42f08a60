"""A small convolutional network for images of 8 to 96 pixels."""

from __future__ import annotations

import keras
from keras import layers

from trainyard.errors import ConfigurationError
from trainyard.spec.model import ModelConfig, parse_block, smallest_side


def network(model: ModelConfig, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs) of model.blocks, or by default of pairs of convolutions.

    Each pair halves the image, down to 4 to 7 pixels. model.width multiplies the channels, model.depth the convolutions
    of each pair or the repeats of each block. Raises `ConfigurationError` if the image is too small.
    """
    x = layers.Rescaling(1 / 255)(image)
    x = _pairs(model, x) if model.blocks is None else _blocks(model, model.blocks, x)
    x = layers.Flatten()(x)
    x = layers.Dropout(model.dropout)(x)
    x = layers.Dense(model.channels(64), activation="relu")(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


def _pairs(model: ModelConfig, x: keras.KerasTensor) -> keras.KerasTensor:
    side, filters = min(x.shape[1:3]), 32
    while side >= 8:
        for _ in range(model.repeats(2)):
            x = _convolution(x, model.channels(filters))
        x = layers.MaxPooling2D(2)(x)
        side, filters = side // 2, min(2 * filters, 128)
    for _ in range(model.repeats(1)):
        x = _convolution(x, model.channels(filters))
    return x


def _blocks(model: ModelConfig, texts: list[str], x: keras.KerasTensor) -> keras.KerasTensor:
    height, width = x.shape[1:3]
    if min(height, width) < (side := smallest_side(texts)):
        raise ConfigurationError(
            f"model.blocks: their pools leave nothing of {height} x {width} pixels. Leave out a pool, or set "
            f"data.image_size to [{side}, {side}] or more."
        )
    for block in map(parse_block, texts):
        if block.kind == "pool":
            x = layers.MaxPooling2D(2)(x)
            continue
        for _ in range(model.repeats(block.repeats)):
            x = _LAYERS[block.kind](x, model.channels(block.channels))
    return x


def _convolution(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
    return layers.Conv2D(channels, 3, padding="same", activation="relu")(x)


def _conv(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
    return layers.ReLU()(_normalized(layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)))


def _separable(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
    """Depthwise separable convolution. Source: A. Howard et al., MobileNets, 2017, arXiv:1704.04861, figure 3.

    Two layers instead of Keras' SeparableConv2D, so that the cost of each is counted.
    """
    x = layers.ReLU()(_normalized(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)))
    return layers.ReLU()(_normalized(layers.Conv2D(channels, 1, use_bias=False)(x)))


def _residual(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
    """Residual block. Source: K. He et al., Deep residual learning, 2015, arXiv:1512.03385, figure 2."""
    shortcut = x if x.shape[-1] == channels else _normalized(layers.Conv2D(channels, 1, use_bias=False)(x))
    x = _normalized(layers.Conv2D(channels, 3, padding="same", use_bias=False)(_conv(x, channels)))
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _normalized(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.BatchNormalization()(x)


_LAYERS = {"conv": _conv, "separable": _separable, "residual": _residual}
