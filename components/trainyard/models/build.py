"""Chooses the network that a recipe names and builds it for the data at hand."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import keras

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.errors import ConfigurationError
from trainyard.spec.feature_names import input_name
from trainyard.spec.networks import MINIMUM_SIDE
from trainyard.spec.training.model import ModelConfig


def build(model: ModelConfig, features: Sequence[Feature], outputs: int, seed: int) -> keras.Model:
    """Return the named network with weights drawn from `seed`.

    It takes a dict by feature name, images float32 (batch, height, width, channels) in 0..255, and gives float32
    (batch, outputs). Raises `ConfigurationError` if the features do not suit the network.
    """
    if model.name is None:
        raise ConfigurationError(
            "model.name: is missing, and the recipe's module has no build_model. Give one of them."
        )
    family = importlib.import_module(model.network_module)
    keras.utils.set_random_seed(seed)
    if model.name in MINIMUM_SIDE:
        image = _image(model.name, features)
        inputs = {image.name: keras.Input(image.shape, name=image.name)}
        logits = family.network(model, inputs[image.name], outputs)
    else:
        _require_names(features)
        inputs = {
            # A column may be called what no layer may (km/h), or what another layer is (logits).
            feature.name: keras.Input(feature.shape, name=f"input-{input_name(feature.name)}", dtype=feature.dtype)
            for feature in features
        }
        logits = family.network(model, features, inputs, outputs)
    return keras.Model(inputs, logits, name=model.name)


def _require_names(features: Sequence[Feature]) -> None:
    """Refuse two names of a recipe's own preprocessing_fn that would be one; those of columns were checked before."""
    names: dict[str, str] = {}
    for feature in features:
        name = input_name(feature.name)
        if (other := names.setdefault(name.lower(), feature.name)) != feature.name:
            raise ConfigurationError(
                f"module: '{other}' and '{feature.name}' would both be the input '{name}' of the model. "
                "Rename one of them."
            )


def _image(name: str, features: Sequence[Feature]) -> Feature:
    if len(features) != 1 or len(features[0].shape) != 3:
        shapes = ", ".join(f"{feature.name} {feature.shape}" for feature in features)
        raise ConfigurationError(f"model.name: '{name}' takes one image, the data has {shapes}. Name mlp or wide_deep.")
    height, width, _ = features[0].shape
    minimum = MINIMUM_SIDE[name]
    if min(height, width) < minimum:
        raise ConfigurationError(
            f"model.name: '{name}' takes images of at least {minimum} x {minimum} pixels, the data has "
            f"{height} x {width}. Set data.image_size to [{minimum}, {minimum}] or more, or name cnn_small."
        )
    return features[0]
