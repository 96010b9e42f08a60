"""The networks of keras.applications, with a classification head."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
from keras import layers

from trainyard.spec.model import ModelConfig


def network(model: ModelConfig, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs) of the named network over `image` in 0..255.

    Pixels are scaled as keras.applications does for the published weights, whatever the initial weights, so that all
    weights are compatible. A gray image is repeated in three channels.
    """
    colors = layers.Concatenate()([image] * 3) if image.shape[-1] == 1 else image
    name = model.name or ""
    scaled = _caffe(colors) if name == "resnet50" else colors
    body = _BODIES[name](input_tensor=scaled, weights=None, **_alpha(model))
    x = layers.Dropout(model.dropout)(body.output)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


def published(model: ModelConfig) -> keras.Model:
    """Return the body of the named network with Keras' published weights, which Keras downloads and verifies.

    They stay in Keras' cache below KERAS_HOME. Raises as keras.utils.get_file.
    """
    return _BODIES[model.name or ""](weights="imagenet", input_shape=(224, 224, 3), **_alpha(model))


def _alpha(model: ModelConfig) -> dict[str, float]:
    """Return the width as Keras' argument; empty at width 1, because some networks have no such argument."""
    return {} if model.width == 1 else {"alpha": model.width}


def _caffe(image: keras.KerasTensor) -> keras.KerasTensor:
    """Return `image` preprocessed as in keras.applications.resnet: BGR minus the means of ImageNet.

    Source of the means: keras 3.15, applications/imagenet_utils.py, mode "caffe".
    """
    return layers.Normalization(mean=[103.939, 116.779, 123.68], variance=[1.0, 1.0, 1.0])(
        keras.ops.flip(image, axis=-1)
    )


_OPTIONS: dict[str, Any] = {"include_top": False, "pooling": "avg"}
# All except ResNet50 scale the pixels themselves.
_BODIES = {
    "resnet50": partial(keras.applications.ResNet50, **_OPTIONS),
    "mobilenet_v3_small": partial(keras.applications.MobileNetV3Small, **_OPTIONS),
    "mobilenet_v3_large": partial(keras.applications.MobileNetV3Large, **_OPTIONS),
    "efficientnet_v2_b0": partial(keras.applications.EfficientNetV2B0, **_OPTIONS),
    "efficientnet_v2_b1": partial(keras.applications.EfficientNetV2B1, **_OPTIONS),
    "efficientnet_v2_b2": partial(keras.applications.EfficientNetV2B2, **_OPTIONS),
    "efficientnet_v2_b3": partial(keras.applications.EfficientNetV2B3, **_OPTIONS),
    "convnext_tiny": partial(keras.applications.ConvNeXtTiny, **_OPTIONS),
}
