"""AlexNet in its one-tower form.

Source: A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, arXiv:1404.5997.
"""

from __future__ import annotations

import keras
from keras import layers

from trainyard.spec.model import ModelConfig


def network(model: ModelConfig, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs). Convolutions are padded, so 57 pixels are enough."""
    x = layers.Rescaling(1 / 127.5, offset=-1)(image)
    x = _convolution(x, 64, 11, strides=4)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = _convolution(x, 192, 5)
    x = layers.MaxPooling2D(3, strides=2)(x)
    for filters in (384, 256, 256):
        x = _convolution(x, filters, 3)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(model.dropout)(x)
        x = layers.Dense(4096, activation="relu", kernel_initializer="he_normal")(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


def _convolution(x: keras.KerasTensor, filters: int, size: int, strides: int = 1) -> keras.KerasTensor:
    return layers.Conv2D(
        filters, size, strides=strides, padding="same", activation="relu", kernel_initializer="he_normal"
    )(x)
