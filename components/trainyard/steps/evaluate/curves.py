"""Plots of a model's predictions for the report, such as ROC curves, and decision thresholds for the recipe's aim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.artifacts.evaluate import ClassMetrics, ClassThreshold, Confidence, Roc
from trainyard.errors import ConfigurationError
from trainyard.spec.gates import ROUNDING, ThresholdAim, require_classes
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions, full_weights, rank
from trainyard.steps.evaluate.metrics.registry import confidence_bins, measure

CURVES = 20
"""Classes that get a ROC curve; of more, those with the smallest area. Chosen for a readable plot."""

POINTS = 200
"""Points a curve keeps. Chosen: more are not seen."""

SCATTER = 1000
"""Examples in the plot of predictions against targets. Chosen."""


def class_metrics(predictions: SplitPredictions, labels: list[str]) -> list[ClassMetrics]:
    """Return precision, recall and F1 of each class in id order; 0 if a class was never found or has no examples."""
    actual, predicted = predictions.labels, predictions.predicted
    weights = full_weights(predictions.weights, len(predictions))
    if actual.ndim == 2:
        examples = actual.sum(axis=0)
        found, has, got = (weights @ part for part in (actual & predicted, actual, predicted))
    else:
        examples = np.bincount(actual, minlength=len(labels))
        right = actual == predicted
        counted = (actual[right], weights[right]), (actual, weights), (predicted, weights)
        found, has, got = (np.bincount(ids, part, len(labels)) for ids, part in counted)
    precision, recall, f1 = (
        part / np.where(part > 0, whole, 1) for part, whole in ((found, got), (found, has), (2 * found, has + got))
    )
    return [
        ClassMetrics(
            label=label,
            precision=float(precision[row]),
            recall=float(recall[row]),
            f1=float(f1[row]),
            examples=int(examples[row]),
        )
        for row, label in enumerate(labels)
    ]


def confusion(predictions: SplitPredictions, classes: int) -> list[list[int]]:
    """Return the confusion matrix: the count of class i (row) predicted as class j (column)."""
    pairs = np.bincount(predictions.labels * classes + predictions.predicted, minlength=classes**2)
    matrix: list[list[int]] = pairs.reshape(classes, classes).tolist()
    return matrix


def roc_curves(predictions: SplitPredictions, labels: list[str]) -> list[Roc]:
    """Return one class against the rest, for each class that has examples; of two classes, for the second alone."""
    present = predictions.ranked_classes
    if not present:
        return []
    chosen = [1] if len(labels) == 2 and predictions.labels.ndim == 1 else _hardest(predictions, present)
    return [_curve(predictions, label, labels[label]) for label in chosen]


def calibration(predictions: SplitPredictions) -> list[Confidence]:
    """Return the bins of confidence that have examples, in rising order."""
    bins, confidence, right = confidence_bins(predictions)
    weights = full_weights(predictions.weights, len(bins))
    examples = np.bincount(bins)
    total, confidences, rights = (np.bincount(bins, part) for part in (weights, confidence * weights, right * weights))
    return [
        Confidence(
            confidence=float(confidences[bin] / total[bin]),
            accuracy=float(rights[bin] / total[bin]),
            examples=int(examples[bin]),
        )
        for bin in np.flatnonzero(total)
    ]


def scatter(predictions: SplitPredictions, seed: int) -> list[tuple[float, float]]:
    """Return (target, prediction) of up to 1,000 examples drawn by `seed`."""
    count = len(predictions.labels)
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[:SCATTER])
    return [(float(predictions.labels[index]), float(predictions.outputs[index])) for index in chosen]


def _hardest(predictions: SplitPredictions, present: list[int]) -> list[int]:
    if len(present) <= CURVES:
        return present
    areas = [measure("classification", predictions.one_class(label), ["roc_auc"])["roc_auc"] for label in present]
    return sorted(present[index] for index in np.argsort(areas, kind="stable")[:CURVES])


def _curve(predictions: SplitPredictions, label: int, name: str) -> Roc:
    one = predictions.one_class(label)
    ranking = rank(one.scores, one.actual, one.weights)
    false, true = (np.append(0.0, part / part[-1]) for part in (ranking.counted - ranking.found, ranking.found))
    threshold = np.append(1.0, ranking.scores)
    indices = np.unique(np.linspace(0, len(false) - 1, POINTS).round().astype(np.int64))
    return Roc(
        label=name,
        false_positive_rate=false[indices].tolist(),
        true_positive_rate=true[indices].tolist(),
        threshold=np.minimum(threshold[indices], 1.0).tolist(),
    )


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
    if weights is not None:  # a threshold lies between the scores of examples that count
        actual, probabilities, weights = (each[weights > 0] for each in (actual, probabilities, weights))
    counted = full_weights(weights, len(actual))
    chosen = []
    for id_, label in enumerate(labels):
        has = actual[:, id_] if actual.ndim == 2 else actual == id_
        if aim.class_name == label and not counted[has].any():
            raise ConfigurationError(f"threshold.class: the eval split has no example of '{label}'. Make it larger.")
        if aim.class_name in (None, label) and counted[has].any():
            chosen.append(_choose_threshold(aim, label, has, probabilities[:, id_].astype(np.float32), counted))
    return chosen


def _choose_threshold(
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
