"""Checks that evaluate, export and push can use the model of a custom training program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data import probabilities
from trainyard.data.trained import load_foreign
from trainyard.errors import ConfigurationError
from trainyard.steps.train.engines.teacher import shapes_text


def check_model(path: Path, examples: Examples) -> keras.Model:
    """Return the model at `path`; rewrite it with the feature's name if its only input is unnamed.

    Raises `ConfigurationError` if it does not map a dict of the features of `examples` to logits (batch, classes), or
    to (batch, targets) in their units for a regression, and as `load_foreign`.
    """
    model = _name_input(load_foreign(path), path, examples)
    outputs = examples.outputs
    expected = {feature.name: (None, *feature.shape) for feature in examples.features}
    tensors: Any = model.input
    inputs = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if inputs.keys() != expected.keys() or not all(_fits(inputs[name], expected[name]) for name in expected):
        raise _model_error(f"takes {shapes_text(inputs)}. It must take {shapes_text(expected)}")
    shape = tuple(getattr(model.output, "shape", ()))
    if shape != (None, outputs):
        meaning = "the logits of its classes" if examples.labels else "numbers in the unit of the label"
        raise _model_error(f"gives {shape}. It must give (None, {outputs}), {meaning}")
    if fault := probabilities.fault(model, examples):
        raise _model_error(fault)
    return model


def _name_input(model: keras.Model, path: Path, examples: Examples) -> keras.Model:
    """Return `model` with a dict of inputs. Raises `ConfigurationError` unless it has one, or a single input."""
    tensors: Any = getattr(model, "input", None)
    if isinstance(tensors, dict):
        return model
    feature, *rest = examples.features
    if rest or not hasattr(tensors, "shape") or not _fits(tuple(tensors.shape), (None, *feature.shape)):
        names = ", ".join(feature.name for feature in examples.features)
        raise _model_error(f"takes inputs without names. It must be a functional model that takes a dict of {names}")
    inputs = keras.Input(feature.shape, name=feature.name, dtype=feature.dtype)
    named = keras.Model({feature.name: inputs}, model(inputs), name=model.name)
    named.save(path)
    return named


def _fits(shape: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    """Return True if inputs of shape `expected` match `shape`; None is any size."""
    return len(shape) == len(expected) and all(a in (None, b) for a, b in zip(shape, expected, strict=True))


def _model_error(fault: str) -> ConfigurationError:
    return ConfigurationError(f"train.command: the model.keras of the program {fault}.")
