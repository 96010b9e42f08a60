"""What the report draws of a model's answers: confusion, ROC curves, calibration, predictions against targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from trainyard.contract.artifacts import ClassMetrics, Confidence, Roc
from trainyard.steps.evaluate.metrics import Answers, confidence_bins

CURVES = 20
"""Classes that get a ROC curve; of more, those with the smallest area. Chosen for a readable plot."""

POINTS = 200
"""Points a curve keeps. Chosen: more are not seen."""

SCATTER = 1000
"""Examples in the plot of predictions against targets. Chosen."""


def class_metrics(answers: Answers, labels: list[str]) -> list[ClassMetrics]:
    """Return precision, recall and F1 of each class in id order; 0 where a class was never found or has no examples."""
    precision, recall, f1, support = sklearn_metrics.precision_recall_fscore_support(
        answers.labels, answers.predicted, labels=np.arange(len(labels)), zero_division=0
    )
    return [
        ClassMetrics(
            label=label,
            precision=float(precision[row]),
            recall=float(recall[row]),
            f1=float(f1[row]),
            examples=int(support[row]),
        )
        for row, label in enumerate(labels)
    ]


def confusion(answers: Answers, classes: int) -> list[list[int]]:
    """Return how many examples of class i (row) were taken for class j (column)."""
    matrix = sklearn_metrics.confusion_matrix(answers.labels, answers.predicted, labels=np.arange(classes))
    return [[int(count) for count in row] for row in matrix]


def roc_curves(answers: Answers, labels: list[str]) -> list[Roc]:
    """Return one class against the rest for each class that has examples and is not alone; for two, the second class."""
    present = np.unique(answers.labels)
    if len(present) < 2:
        return []
    chosen = [1] if len(labels) == 2 else _hardest(answers, present)
    return [_curve(answers, label, labels[label]) for label in chosen]


def calibration(answers: Answers) -> list[Confidence]:
    """Return the bins of confidence that have examples, in rising order."""
    bins, confidence, right = confidence_bins(answers)
    return [
        Confidence(
            confidence=float(confidence[bins == place].mean()),
            accuracy=float(right[bins == place].mean()),
            examples=int((bins == place).sum()),
        )
        for place in np.unique(bins)
    ]


def scatter(answers: Answers, seed: int) -> list[tuple[float, float]]:
    """Return (target, prediction) of up to 1,000 examples drawn by `seed`."""
    count = len(answers.labels)
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[:SCATTER])
    return [(float(answers.labels[index]), float(answers.outputs[index])) for index in chosen]


def _hardest(answers: Answers, present: NDArray[Any]) -> list[int]:
    if len(present) <= CURVES:
        return [int(label) for label in present]
    areas = [sklearn_metrics.roc_auc_score(answers.labels == label, answers.outputs[:, label]) for label in present]
    return sorted(int(present[place]) for place in np.argsort(areas, kind="stable")[:CURVES])


def _curve(answers: Answers, label: int, name: str) -> Roc:
    false, true, threshold = sklearn_metrics.roc_curve(answers.labels == label, answers.outputs[:, label])
    kept = np.unique(np.linspace(0, len(false) - 1, POINTS).round().astype(np.int64))
    return Roc(
        label=name,
        false_positive_rate=false[kept].tolist(),
        true_positive_rate=true[kept].tolist(),
        threshold=np.minimum(threshold[kept], 1.0).tolist(),
    )
