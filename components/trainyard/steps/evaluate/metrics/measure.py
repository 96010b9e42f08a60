"""What a model's predictions are worth: each metric as one number, and as a statistic that the bootstrap can resample.

Both forms are given for the same examples: `measure` calls scikit-learn if it has the metric, `statistics` repeats
the metric for many sets of weights at once, which scikit-learn cannot. A test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from trainyard.spec.gates import Task
from trainyard.steps.evaluate.metrics import multi_label
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions
from trainyard.steps.evaluate.metrics.resampled import Statistic, macro_f1, mean, roc_auc

CALIBRATION_BINS = 15
"""As in Guo et al., On Calibration of Modern Neural Networks, 2017."""


def measure(task: Task, predictions: SplitPredictions) -> dict[str, float]:
    """Return every metric that is defined for these examples; one that is not (AUC of one class) is left out.

    Smaller is better for log_loss, calibration_error, mae and rmse, larger for the others. macro_f1 and roc_auc are
    means over the classes that have examples, all metrics of several targets means over them.
    """
    measures = {"classification": _classification, "multi_label": multi_label.measure, "regression": _regression}
    values = measures[task](predictions)
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}


def statistics(task: Task, predictions: SplitPredictions) -> dict[str, Statistic]:
    """Return the metrics of `measure` as functions of weights.

    Each maps weights (resamples, n), how often a resample holds each example, to the metric of each resample
    (resamples,), NaN if it is undefined.
    """
    statistics_of: dict[Task, Callable[[SplitPredictions], dict[str, Statistic]]] = {
        "classification": _classification_statistics,
        "multi_label": multi_label.statistics,
        "regression": _regression_statistics,
    }
    plain = statistics_of[task](predictions)
    own = predictions.weights
    if own is None:
        return plain
    return {name: partial(_weighed, statistic, own) for name, statistic in plain.items()}


def _weighed(statistic: Statistic, own: Floats, weights: Floats) -> Floats:
    return statistic(weights * own)


def confidence_bins(predictions: SplitPredictions) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return each example's bin, confidence and correctness: bins of equal width over the highest probability."""
    confidence = predictions.outputs.max(axis=1).astype(np.float64)
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return bins, confidence, (predictions.predicted == predictions.labels).astype(np.float64)


def _regression(predictions: SplitPredictions) -> dict[str, float]:
    # float32 holds no square of 1e20, and 0 as that of 1e-25
    pair, weights = [part.astype(np.float64) for part in (predictions.labels, predictions.outputs)], predictions.weights
    return {
        "mae": sklearn_metrics.mean_absolute_error(*pair, sample_weight=weights),
        "rmse": sklearn_metrics.root_mean_squared_error(*pair, sample_weight=weights),
        "r2": sklearn_metrics.r2_score(*pair, sample_weight=weights) if len(predictions.labels) > 1 else np.nan,
    }


def _classification(predictions: SplitPredictions) -> dict[str, float]:
    labels, outputs, weights = predictions.labels, predictions.outputs, predictions.weights
    present = present_classes(predictions)
    everything = np.ones((1, len(labels))) if weights is None else weights[None].astype(np.float64)
    values = {
        "accuracy": sklearn_metrics.accuracy_score(labels, predictions.predicted, sample_weight=weights),
        "macro_f1": sklearn_metrics.f1_score(
            labels, predictions.predicted, labels=present, average="macro", zero_division=0, sample_weight=weights
        ),
        "log_loss": predictions.mean(predictions.losses),
        "calibration_error": _calibration_error(predictions)(everything)[0],
    }
    if outputs.shape[1] > 5:
        values["top5_accuracy"] = predictions.mean(_in_top5(predictions))
    if len(present) > 1:
        values["roc_auc"] = np.mean(
            [
                sklearn_metrics.roc_auc_score(labels == label, outputs[:, label], sample_weight=weights)
                for label in present
            ]
        )
    return values


def present_classes(predictions: SplitPredictions) -> NDArray[Any]:
    """Return the classes that have examples which count."""
    return np.unique(predictions.counted_labels)


def _regression_statistics(predictions: SplitPredictions) -> dict[str, Statistic]:
    if predictions.labels.ndim == 1:
        return _target_statistics(predictions)
    targets = [_target_statistics(predictions.of_target(index)) for index in range(predictions.labels.shape[1])]
    return {name: partial(_mean_over, [statistics[name] for statistics in targets]) for name in targets[0]}


def _mean_over(targets: list[Statistic], weights: Floats) -> Floats:
    result: Floats = np.mean([statistic(weights) for statistic in targets], axis=0)
    return result


def _target_statistics(predictions: SplitPredictions) -> dict[str, Statistic]:
    errors = predictions.outputs.astype(np.float64) - predictions.labels
    labels = predictions.labels.astype(np.float64)
    labels = labels - predictions.mean(labels)  # the spread below keeps its digits

    def r2(weights: Floats) -> Floats:
        count = weights.sum(axis=1)
        spread = mean(weights, labels**2) - mean(weights, labels) ** 2
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, 1 - weights @ errors**2 / (spread * count), np.nan)

    return {
        "mae": lambda weights: mean(weights, np.abs(errors)),
        "rmse": lambda weights: np.sqrt(mean(weights, errors**2)),
        "r2": r2,
    }


def _classification_statistics(predictions: SplitPredictions) -> dict[str, Statistic]:
    right = (predictions.predicted == predictions.labels).astype(np.float64)
    losses, classes, columns = predictions.losses, present_classes(predictions), predictions.outputs.shape[1]
    is_actual = _members(predictions.labels, columns)
    metrics: dict[str, Statistic] = {
        "accuracy": lambda weights: mean(weights, right),
        "macro_f1": macro_f1(is_actual, _members(predictions.predicted, columns), predictions.weights),
        "log_loss": lambda weights: mean(weights, losses),
        "calibration_error": _calibration_error(predictions),
    }
    if columns > 5:
        top = _in_top5(predictions)
        metrics["top5_accuracy"] = lambda weights: mean(weights, top)
    if len(classes) > 1:
        metrics["roc_auc"] = roc_auc(predictions.outputs[:, classes], is_actual[:, classes], predictions.weights)
    return metrics


def _in_top5(predictions: SplitPredictions) -> Floats:
    """Whether the label is among the five most probable classes; the lower id goes first among equals, as in argmax."""
    best = np.argsort(-predictions.outputs, axis=1, kind="stable")[:, :5]
    result: Floats = (best == predictions.labels[:, None]).any(axis=1).astype(np.float64)
    return result


def _calibration_error(predictions: SplitPredictions) -> Statistic:
    """Expected calibration error: the mean distance of accuracy from confidence, over bins of confidence.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
    """
    bins, confidence, right = confidence_bins(predictions)
    gaps = _members(bins, CALIBRATION_BINS) * (right - confidence)[:, None]
    return lambda weights: np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)


def _members(groups: NDArray[np.int64], count: int) -> Floats:
    """Return 1 if an example (row) is in a group (column), else 0: (n, count) float64."""
    result: Floats = (groups[:, None] == np.arange(count)).astype(np.float64)
    return result
