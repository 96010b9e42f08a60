"""Builds the network that a recipe names for the data."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from types import ModuleType

import keras

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.data.skeleton import skeleton
from trainyard.errors import ConfigurationError
from trainyard.process import memory
from trainyard.spec.columns import input_name
from trainyard.spec.model import ModelConfig
from trainyard.spec.networks import COLUMN_NETWORKS, MINIMUM_SIDE, TREES

_SMALL = 1 << 26  # weights between hidden layers; chosen: less than a gigabyte to train
_BYTES = 8  # of a weight and its gradient in float32; an optimizer may need as much again
_LEAST_SCALE = 1e-3


def build(model: ModelConfig, features: Sequence[Feature], outputs: int, seed: int) -> keras.Model:
    """Return the named network with weights initialized from `seed`.

    It takes a dict by feature name, with images float32 (batch, height, width, channels) in 0..255, and returns float32
    (batch, outputs). Raises `ConfigurationError` if the features do not suit the network, or if it needs more memory
    than there is.
    """
    if model.name is None:
        raise ConfigurationError(
            "model.name: is missing, and the recipe's module has no build_model. Give one of them."
        )
    if model.name == TREES:
        raise ConfigurationError(f"model.name: {TREES} has no network before it is trained. Name mlp or wide_deep.")
    if _may_be_large(model):
        _require_memory(model, features, outputs)
    keras.utils.set_random_seed(seed)
    return _network(model, features, outputs)


def _network(model: ModelConfig, features: Sequence[Feature], outputs: int) -> keras.Model:
    family = family_of(model)
    if model.name in MINIMUM_SIDE:
        image = _image(model.name, features)
        inputs = {image.name: keras.Input(image.shape, name=image.name)}
        logits = family.network(model, inputs[image.name], outputs)
    else:
        inputs = column_inputs(features)
        logits = family.network(model, features, inputs, outputs)
    return keras.Model(inputs, logits, name=model.name)


def column_inputs(features: Sequence[Feature]) -> dict[str, keras.KerasTensor]:
    """Return the inputs of a model that takes columns, by feature name. Raises `ConfigurationError` if two meet."""
    _require_names(features)
    return {
        # A column name may be invalid for a layer (km/h), or the name of another layer (logits).
        feature.name: keras.Input(feature.shape, name=f"input-{input_name(feature.name)}", dtype=feature.dtype)
        for feature in features
    }


def columns_matrix(columns: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
    """Return float32 (batch, width) of `columns` in their order, each (batch,) or (batch, n...).

    One operation stacks neighbors of one number a row: a reshape of each makes loading and every export slow where
    there are thousands.
    """
    parts = []
    for (is_scalar, _), group in groupby(columns, lambda column: (len(column.shape) == 1, column.dtype)):
        if is_scalar:
            parts.append(keras.ops.cast(keras.ops.stack(list(group), axis=1), "float32"))
        else:
            parts += [keras.layers.Flatten()(keras.ops.cast(column, "float32")) for column in group]
    return join(parts)


def join(parts: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
    """Concatenate the vectors `parts`."""
    return keras.layers.Concatenate()(list(parts)) if len(parts) > 1 else parts[0]


def family_of(model: ModelConfig) -> ModuleType:
    """Return the module of the named network or trees. Only its recipes have its libraries in their keys."""
    return importlib.import_module(model.network_module)


def _may_be_large(model: ModelConfig) -> bool:
    """Return True if the recipe's widths alone may make a network of gigabytes."""
    if model.name in COLUMN_NETWORKS:
        return sum(one * other for one, other in pairwise(model.hidden_units)) > _SMALL
    return model.width > 1 or model.depth > 1


def _require_memory(model: ModelConfig, features: Sequence[Feature], outputs: int) -> None:
    """Raise `ConfigurationError`, with a width that fits, if weights and gradients exceed the memory."""
    usable = memory.usable_bytes()
    parameters = _count(model, features, outputs)
    if parameters * _BYTES <= usable:
        return
    by_width = model.width != 1 or model.name not in COLUMN_NETWORKS
    scale, fitting = math.sqrt(usable / _BYTES / parameters), model
    while True:
        if by_width:
            fitting = model.model_copy(update={"width": model.width * scale})
        else:
            fitting = model.model_copy(update={"hidden": [max(1, int(units * scale)) for units in model.hidden]})
        if _count(fitting, features, outputs) * _BYTES <= usable or scale < _LEAST_SCALE:
            break
        scale *= 0.9
    fits = f"model.width: {math.floor(100 * fitting.width) / 100:g}" if by_width else f"model.hidden: {fitting.hidden}"
    raise ConfigurationError(
        f"{'model.width' if by_width else 'model.hidden'}: the network has {parameters:,} weights, which take "
        f"{parameters * _BYTES / 2**30:,.1f} GiB with their gradients, and this process may use "
        f"{usable / 2**30:,.1f} GiB. {fits} fits. Lower it, or give the process more memory."
    )


def _count(model: ModelConfig, features: Sequence[Feature], outputs: int) -> int:
    """Count the weights of the network without allocating them."""
    count: int = skeleton(lambda: _network(model, features, outputs)).count_params()
    return count


def _require_names(features: Sequence[Feature]) -> None:
    """Raise `ConfigurationError` if two features get the same input name; columns were checked before."""
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
