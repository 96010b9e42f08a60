"""Plots of a model's predictions for the report: confusion, ROC curves, calibration, scatter against the targets."""

from __future__ import annotations

import numpy as np

from trainyard.contract.artifacts.evaluate import ClassMetrics, Confidence, Roc
from trainyard.steps.evaluate.metrics.measure import measure
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions, full_weights, rank
from trainyard.steps.evaluate.metrics.registry import confidence_bins

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
