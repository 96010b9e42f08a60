"""The networks that keras.applications keeps, without its weights, with a head for the data's classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
from keras import layers

from trainyard.spec.recipe import Model


def network(model: Model, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs) of the named network over `image` in 0..255."""
    scaled = layers.Rescaling(1 / 127.5, offset=-1)(image)
    body = _BODIES[model.name or ""](input_tensor=scaled)
    x = layers.Dropout(model.dropout)(body.output)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


_OPTIONS: dict[str, Any] = {"include_top": False, "weights": None, "pooling": "avg"}
# Rescaled above: the preprocessing inside EfficientNetV2B0 takes three channels only.
_BODIES = {
    "resnet50": partial(keras.applications.ResNet50, **_OPTIONS),
    "mobilenet_v3_small": partial(keras.applications.MobileNetV3Small, include_preprocessing=False, **_OPTIONS),
    "efficientnet_v2_b0": partial(keras.applications.EfficientNetV2B0, include_preprocessing=False, **_OPTIONS),
}
