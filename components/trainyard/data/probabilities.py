"""Detects models that return probabilities instead of logits, which would go through softmax twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

from trainyard.contract.artifacts.preprocess import Examples, Feature

_DRAWS, _ROWS = 8, 2  # chosen: two logits of each are all between 0 and 1 once in a hundred million models
_LARGEST_PIXEL = 255.0


def fault(model: keras.Model, examples: Examples) -> str:
    """Return the fault of `model`, functional over a dict of features, as the end of a sentence; '' without one.

    Its outputs for random inputs and weights tell, so that a softmax in a nested model or a function is found as well.
    Its own weights stay.
    """
    if examples.labels is None or not (ending := _ending(model, examples.features)):
        return ""
    added = "softmax" if examples.task == "classification" else "sigmoid"
    return f"ends in {ending} (layer '{_last_layer(model)}'). It must give logits: Trainyard adds the {added}"


def _ending(model: keras.Model, features: Sequence[Feature]) -> Literal["softmax", "sigmoid", ""]:
    draw = np.random.default_rng(1)
    answers = []
    for _ in range(_DRAWS):
        inputs = {feature.name: _values(feature, draw) for feature in features}
        weights = [_redrawn(variable, draw) for variable in model.trainable_variables]
        fixed = [variable.value for variable in model.non_trainable_variables]
        answer, _ = model.stateless_call(weights, fixed, inputs, training=False)
        answers.append(keras.ops.convert_to_numpy(keras.ops.cast(answer, "float32")))
        if not (answers[-1].min() >= 0 and answers[-1].max() <= 1):
            return ""  # most models in the first draw: a draw costs as much as a step
    outputs = np.concatenate(answers)
    if outputs.max() == 0:
        return ""
    return "softmax" if np.allclose(outputs.sum(axis=1), 1, atol=0.05) else "sigmoid"  # of bfloat16 too


def _last_layer(model: keras.Model) -> str:
    """Return the name of the last layer or operation of `model`, looking into nested models."""
    last: Any = model
    while inner := getattr(last, "operations", None) or getattr(last, "layers", None):
        last = inner[-1]
    return str(last.name)


def _values(feature: Feature, draw: np.random.Generator) -> np.ndarray:
    shape = (_ROWS, *feature.shape)
    if feature.dtype == "int64":
        return draw.integers(0, feature.vocabulary_size or 2, shape)
    is_image = len(feature.shape) == 3
    values = draw.uniform(0, _LARGEST_PIXEL, shape) if is_image else draw.normal(size=shape)
    return values.astype(np.float32)


def _redrawn(variable: keras.Variable, draw: np.random.Generator) -> Any:
    """Return random values of the scale of `variable`; of a vector, such as a bias of zeros, of about 1."""
    value = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    drawn = value * draw.normal(size=value.shape)
    if value.ndim < 2:
        drawn += draw.normal(size=value.shape)
    return keras.ops.cast(drawn.astype(np.float32), variable.dtype)
