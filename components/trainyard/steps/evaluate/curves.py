"""Plots of a model's predictions for the report: confusion, ROC curves, calibration, scatter against the targets."""

from __future__ import annotations

import numpy as np
from sklearn import metrics as sklearn_metrics

from trainyard.contract.artifacts.evaluate import ClassMetrics, Confidence, Roc
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import confidence_bins

CURVES = 20
"""Classes that get a ROC curve; of more, those with the smallest area. Chosen for a readable plot."""

POINTS = 200
"""Points a curve keeps. Chosen: more are not seen."""

SCATTER = 1000
"""Examples in the plot of predictions against targets. Chosen."""


def class_metrics(predictions: SplitPredictions, labels: list[str]) -> list[ClassMetrics]:
    """Return precision, recall and F1 of each class in id order; 0 if a class was never found or has no examples."""
    several = predictions.labels.ndim == 2
    precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(
        predictions.labels,
        predictions.predicted,
        labels=np.arange(len(labels)),
        zero_division=0,
        sample_weight=predictions.weights,
    )
    examples = predictions.labels.sum(axis=0) if several else np.bincount(predictions.labels, minlength=len(labels))
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
    matrix = sklearn_metrics.confusion_matrix(predictions.labels, predictions.predicted, labels=np.arange(classes))
    return [[int(count) for count in row] for row in matrix]


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
    return [
        Confidence(
            confidence=part.mean(confidence[bins == bin]),
            accuracy=part.mean(right[bins == bin]),
            examples=int((bins == bin).sum()),
        )
        for bin in np.unique(bins if predictions.weights is None else bins[predictions.weights > 0])
        for part in [predictions.take(bins == bin)]
    ]


def scatter(predictions: SplitPredictions, seed: int) -> list[tuple[float, float]]:
    """Return (target, prediction) of up to 1,000 examples drawn by `seed`."""
    count = len(predictions.labels)
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[:SCATTER])
    return [(float(predictions.labels[index]), float(predictions.outputs[index])) for index in chosen]


def _hardest(predictions: SplitPredictions, present: list[int]) -> list[int]:
    if len(present) <= CURVES:
        return present
    areas = [
        sklearn_metrics.roc_auc_score(
            predictions.one_class(label).actual, predictions.outputs[:, label], sample_weight=predictions.weights
        )
        for label in present
    ]
    return sorted(present[index] for index in np.argsort(areas, kind="stable")[:CURVES])


def _curve(predictions: SplitPredictions, label: int, name: str) -> Roc:
    false, true, threshold = sklearn_metrics.roc_curve(
        predictions.one_class(label).actual, predictions.outputs[:, label], sample_weight=predictions.weights
    )
    indices = np.unique(np.linspace(0, len(false) - 1, POINTS).round().astype(np.int64))
    return Roc(
        label=name,
        false_positive_rate=false[indices].tolist(),
        true_positive_rate=true[indices].tolist(),
        threshold=np.minimum(threshold[indices], 1.0).tolist(),
    )
