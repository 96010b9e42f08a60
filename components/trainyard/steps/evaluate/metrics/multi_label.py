"""The metrics of examples that may have several classes, as numbers and as statistics (see `measure`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from trainyard.contract.statistics.scores import LIKELY, example_scores
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.resampled import Statistic, macro_f1, mean, roc_auc


def judged_classes(predictions: SplitPredictions) -> NDArray[Any]:
    """Return the classes that some of the examples which count have and others have not."""
    counted = predictions.counted_labels
    return np.flatnonzero(counted.any(axis=0) & ~counted.all(axis=0))


def measure(predictions: SplitPredictions) -> dict[str, float]:
    """Return every metric; roc_auc is the mean over `judged_classes`, macro_f1 over the classes that examples have."""
    labels, weights = predictions.labels, predictions.weights
    predicted = predictions.outputs > LIKELY
    classes = judged_classes(predictions)
    values = {
        "f1": predictions.mean(example_scores("multi_label", labels, predictions.outputs)),
        "macro_f1": _macro_f1(predictions, predicted),
        "exact_match": sklearn_metrics.accuracy_score(labels, predicted, sample_weight=weights),
        "log_loss": predictions.mean(predictions.losses),
    }
    if len(classes):
        values["roc_auc"] = sklearn_metrics.roc_auc_score(
            labels[:, classes], predictions.outputs[:, classes], average="macro", sample_weight=weights
        )
    return values


def statistics(predictions: SplitPredictions) -> dict[str, Statistic]:
    """Return the metrics of `measure` as functions of weights (resamples, n)."""
    labels = predictions.labels.astype(np.float64)
    predicted = (predictions.outputs > LIKELY).astype(np.float64)
    scores = example_scores("multi_label", predictions.labels, predictions.outputs)
    exact = (labels == predicted).all(axis=1).astype(np.float64)
    losses = predictions.losses
    by_name: dict[str, Statistic] = {
        "f1": lambda weights: mean(weights, scores),
        "macro_f1": macro_f1(labels, predicted, predictions.weights),
        "exact_match": lambda weights: mean(weights, exact),
        "log_loss": lambda weights: mean(weights, losses),
    }
    classes = judged_classes(predictions)
    if len(classes):
        by_name["roc_auc"] = roc_auc(predictions.outputs[:, classes], labels[:, classes], predictions.weights)
    return by_name


def _macro_f1(predictions: SplitPredictions, predicted: NDArray[np.bool_]) -> float:
    labels, weights = predictions.labels, predictions.weights
    present = np.flatnonzero(predictions.counted_labels.any(axis=0))
    if not len(present):
        return np.nan
    return float(
        sklearn_metrics.f1_score(
            labels[:, present], predicted[:, present], average="macro", zero_division=0, sample_weight=weights
        )
    )
