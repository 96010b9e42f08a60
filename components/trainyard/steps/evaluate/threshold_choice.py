"""Chooses decision thresholds for the recipe's aim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.threshold import ClassThreshold
from trainyard.errors import ConfigurationError
from trainyard.spec.gates import ROUNDING, ThresholdAim, require_classes
from trainyard.steps.evaluate.metrics.predictions import full_weights, rank


def choose_thresholds(
    aim: ThresholdAim,
    labels: Sequence[str],
    actual: NDArray[Any],
    probabilities: NDArray[Any],
    weights: NDArray[Any] | None,
) -> list[ClassThreshold]:
    """Return the threshold that meets `aim`, of each class of multi_label if the aim names none.

    A class without examples has none then. labels: the classes in id order. actual: class ids (n,), or bool
    (n, classes) of multi_label. probabilities: (n, classes). weights: (n,), of the examples.
    Raises `ConfigurationError` if the class is unknown or has no examples, or no threshold meets the aim.
    """
    require_classes({"threshold.class": aim.class_name}, labels)
    counted = full_weights(weights, len(actual))
    chosen = []
    for id_, label in enumerate(labels):
        has = actual[:, id_] if actual.ndim == 2 else actual == id_
        if aim.class_name == label and not counted[has].any():
            raise ConfigurationError(f"threshold.class: the eval split has no example of '{label}'. Make it larger.")
        if aim.class_name in (None, label) and counted[has].any():
            chosen.append(_choose(aim, label, has, probabilities[:, id_].astype(np.float32), counted))
    return chosen


def _choose(
    aim: ThresholdAim, label: str, has: NDArray[Any], scores: NDArray[np.float32], weights: NDArray[Any]
) -> ClassThreshold:
    """Return the best threshold; of equally good ones that with the larger measure of the aim, then the highest."""
    _order, _threshold, highest, counts, found = rank(scores, has, weights)
    values = _between(highest, np.append(highest[1:], np.float32(0)))
    usable = (counts > 0) & (values < highest)  # a class is not predicted with a probability of 0
    values, found, counts = values[usable], found[usable], counts[usable]
    total = float(weights[has].sum())
    precision, recall, f1 = found / counts, found / total, 2 * found / (counts + total)
    measured, bound, score = f1, 0.0, f1
    if aim.recall is not None:
        measured, bound, score = recall, aim.recall, precision
    elif aim.precision is not None:
        measured, bound, score = precision, aim.precision, recall
    allowed = np.flatnonzero(measured >= bound - ROUNDING)
    if not len(allowed):
        best_value = f"{measured.max():.4g}" if len(measured) else "undefined"
        raise ConfigurationError(
            f"threshold: no threshold reaches {aim.name} {bound:g} of '{label}' on the eval split; the highest is "
            f"{best_value}. Lower the aim, or train a better model."
        )
    best = allowed[np.lexsort((-measured[allowed], -score[allowed]))[0]]
    return ClassThreshold(
        label=label,
        value=float(values[best]),
        precision=float(precision[best]),
        recall=float(recall[best]),
        f1=float(f1[best]),
    )


def _between(high: NDArray[np.float32], low: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 numbers below `high` and not below `low`, in the middle if there is room."""
    middle = (high + low) / np.float32(2)
    return np.where(middle < high, middle, low)
