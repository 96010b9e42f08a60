"""A small convolutional network for images of 8 to 96 pixels."""

from __future__ import annotations

import keras
from keras import layers

from trainyard.spec.training.model import Model


def network(model: Model, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs) of pairs of convolutions; each pair halves the image, down to 4 to 7 pixels.

    model.width times the channels, model.depth times the convolutions of each pair.
    """
    x = layers.Rescaling(1 / 255)(image)
    side, filters = min(image.shape[1:3]), 32
    while side >= 8:
        for _ in range(model.repeats(2)):
            x = layers.Conv2D(model.channels(filters), 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
        side, filters = side // 2, min(2 * filters, 128)
    for _ in range(model.repeats(1)):
        x = layers.Conv2D(model.channels(filters), 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(model.dropout)(x)
    x = layers.Dense(model.channels(64), activation="relu")(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)
