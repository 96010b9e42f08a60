"""From medians to means: what a model that learned logarithms of its targets adds to its answers."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from trainyard import events
from trainyard.contract.artifacts.train import TARGET_UNIT
from trainyard.data.examples import ExampleFolder
from trainyard.spec.train import MEAN_EXAMPLES

_BATCH = 4096


def predicting_means(model: keras.Model, scale: str, folder: ExampleFolder) -> keras.Model:
    """Return `model`, which gives targets on the logarithmic `scale`, with answers whose exponentials are means.

    Each target's factor is the mean of the training targets divided by the mean of the exponentials of the answers,
    both by the sample weights, so the totals agree there. On the scale, the factor is an offset of the last layer.
    The mean of the exponentials of the errors instead, as Duan has it, is too small for a model that has learned some
    of the noise: boosted trees on 2,000 rows were 17 % short with it, and 1 % over with this factor.
    Sources: N. Duan, Smearing Estimate: A Nonparametric Retransformation Method, Journal of the American Statistical
    Association 78, 1983; P. Snowdon, A ratio estimator for bias correction in logarithmic regressions, Canadian Journal
    of Forest Research 21, 1991.
    """
    factors = _factors(model, scale, folder)
    events.emit("target_mean", factors=" ".join(f"{factor:.6g}" for factor in factors))
    [unit] = [
        layer for layer in model.layers if isinstance(layer, keras.layers.Rescaling) and layer.name == TARGET_UNIT
    ]
    offset = np.asarray(unit.offset, np.float64) + np.log(factors).reshape(np.shape(unit.offset))
    shifted = keras.layers.Rescaling(unit.scale, offset=offset.tolist(), dtype="float32", name=TARGET_UNIT)(unit.input)
    return keras.Model(model.input, shifted, name=model.name)


def _factors(model: keras.Model, scale: str, folder: ExampleFolder) -> NDArray[np.float64]:
    """Return the factor of each target (targets,)."""
    answers, targets, folder = [], [], folder.head("train", MEAN_EXAMPLES)
    for features, labels, _key in folder.batches("train", _BATCH).take(math.ceil(MEAN_EXAMPLES / _BATCH)):
        batch: Any = model({name: tensor.numpy() for name, tensor in features.items()}, training=False)
        answers.append(keras.ops.convert_to_numpy(batch).astype(np.float64))
        targets.append(labels.numpy().astype(np.float64).reshape(answers[-1].shape))
    weights = folder.weights("train")
    exponentials, actual = np.exp(np.concatenate(answers)), np.concatenate(targets)
    counted = None if weights is None else weights[: len(actual)]
    # Of log1p, the exponential of an answer is one more than the target.
    means = np.average(actual + (scale == "log1p"), axis=0, weights=counted)
    return np.asarray(means / np.average(exponentials, axis=0, weights=counted))
