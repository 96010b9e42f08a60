"""Chooses the network that a recipe names and builds it for the data at hand."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import keras

from trainyard.core.artifacts import Feature
from trainyard.core.errors import ConfigurationError
from trainyard.core.recipe import Model

# Smallest side, in pixels, that still leaves one position after all strides of the network.
MINIMUM_SIDE = {"cnn_small": 8, "alexnet": 57, "resnet50": 32, "mobilenet_v3_small": 32, "efficientnet_v2_b0": 32}

_MODULES = {"resnet50": "applications", "mobilenet_v3_small": "applications", "efficientnet_v2_b0": "applications"}


def build(model: Model, features: Sequence[Feature], outputs: int, seed: int) -> keras.Model:
    """Return the named network with weights drawn from `seed`.

    It takes a dict by feature name, images float32 (batch, height, width, channels) in 0..255, and gives float32
    (batch, outputs). Raises `ConfigurationError` where the features do not suit the network.
    """
    if model.name is None:
        raise ConfigurationError(
            "model.name: is missing, and the recipe's module has no build_model. Give one of them."
        )
    family = importlib.import_module(f"trainyard.models.{_MODULES.get(model.name, model.name)}")
    keras.utils.set_random_seed(seed)
    if model.name in MINIMUM_SIDE:
        image = _image(model.name, features)
        inputs = {image.name: keras.Input(image.shape, name=image.name)}
        logits = family.network(model, inputs[image.name], outputs)
    else:
        inputs = {
            feature.name: keras.Input(feature.shape, name=feature.name, dtype=feature.dtype) for feature in features
        }
        logits = family.network(model, features, inputs, outputs)
    return keras.Model(inputs, logits, name=model.name)


def _image(name: str, features: Sequence[Feature]) -> Feature:
    if len(features) != 1 or len(features[0].shape) != 3:
        found = ", ".join(f"{feature.name} {feature.shape}" for feature in features)
        raise ConfigurationError(f"model.name: '{name}' takes one image, the data has {found}. Name mlp or wide_deep.")
    height, width, _ = features[0].shape
    minimum = MINIMUM_SIDE[name]
    if min(height, width) < minimum:
        raise ConfigurationError(
            f"model.name: '{name}' takes images of at least {minimum} x {minimum} pixels, the data has "
            f"{height} x {width}. Set data.image_size to [{minimum}, {minimum}] or more, or name cnn_small."
        )
    return features[0]
