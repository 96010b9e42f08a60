"""The named outputs of files for devices and their units, the same in LiteRT and ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data.trained import Tensors, output_name, predictor
from trainyard.spec.columns import input_name

Border = dict[str, dict[str, dict[str, Any]]]
"""The `inputs` and `outputs` of a file by name: dtype, shape, and of integers for real numbers scale and zero_point."""


@dataclass(frozen=True)
class Unit:
    """From a standardized target to an answer in its unit: exp(factor * target + offset) + after.

    after: None if there is no exp, because the target was not learned on a logarithmic scale.
    """

    factor: float
    offset: float
    after: float | None = None


def answering(model: keras.Model, document: Examples, units: Mapping[str, Unit]) -> Callable[[Tensors], Tensors]:
    """Return the function that a file holds: what `model` answers, in `units` if there are any.

    Several targets are separate outputs, each with its own scale in int8: in one tensor, a target of thousands
    would leave no digits to one below ten.
    """
    predict = predictor(model, document.task)
    names = target_outputs(document)

    def answers(features: Tensors) -> Tensors:
        outputs = predict(features)
        named = dict(zip(names, tf.unstack(outputs, axis=1) if document.targets else [outputs], strict=True))
        return named | {name: _in_unit(named[name], unit) for name, unit in units.items()}

    return answers


def _in_unit(standardized: tf.Tensor, unit: Unit) -> tf.Tensor:
    answers = standardized * unit.factor + unit.offset
    return answers if unit.after is None else tf.exp(answers) + unit.after


def target_outputs(document: Examples) -> list[str]:
    """Return the names of the outputs of a file, several targets in their order."""
    return [f"prediction_{input_name(target)}" for target in document.targets] or [output_name(document.task)]
