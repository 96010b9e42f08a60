"""What a model's predictions are worth: each metric as one number, and as a statistic that the bootstrap can resample.

Both forms are given for the same examples: `measure` calls scikit-learn if it has the metric, `statistics` repeats
the metric for many sets of weights at once, which scikit-learn cannot. A test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

Floats = NDArray[np.floating[Any]]
Statistic = Callable[[Floats], Floats]
Task = Literal["classification", "regression"]

CALIBRATION_BINS = 15
"""As in Guo et al., On Calibration of Modern Neural Networks, 2017."""


@dataclass(frozen=True)
class Predictions:
    """The model's predictions for n examples, in any order.

    labels: (n,) int64 class ids, or float32 targets. outputs: (n, columns) float32 probabilities, of which the columns
    behind the last class id belong to classes that no example has; or (n,) float32 predictions. weights: (n,), how much
    each example counts; None if all count the same.
    """

    labels: NDArray[Any]
    outputs: Floats
    weights: Floats | None = None

    @property
    def predicted(self) -> NDArray[np.int64]:
        """Ids of the most probable classes (n,)."""
        result: NDArray[np.int64] = np.argmax(self.outputs, axis=1)
        return result

    @property
    def losses(self) -> Floats:
        """Each example's negative log likelihood, or squared error (n,) float64.

        A probability counts as at least the float32 epsilon, as in scikit-learn's log loss, so that one certain mistake
        does not make the mean infinite.
        """
        result: Floats
        if self.outputs.ndim == 1:
            result = np.square(self.outputs.astype(np.float64) - self.labels)
            return result
        right = self.outputs[np.arange(len(self.labels)), self.labels]
        epsilon = np.finfo(np.float32).eps
        result = -np.log(np.clip(right.astype(np.float64), epsilon, 1 - epsilon))
        return result

    def take(self, chosen: NDArray[Any]) -> Predictions:
        """Return the predictions for the `chosen` examples: a mask (n,) or indices."""
        weights = None if self.weights is None else self.weights[chosen]
        return Predictions(self.labels[chosen], self.outputs[chosen], weights)

    def mean(self, values: Floats) -> float:
        """Return the mean of `values` (n,), each example's, by their weights."""
        return float(np.average(values, weights=self.weights))


def measure(task: Task, predictions: Predictions) -> dict[str, float]:
    """Return every metric that is defined for these examples; one that is not (AUC of one class) is left out.

    Smaller is better for log_loss, calibration_error, mae and rmse, larger for the others. macro_f1 and roc_auc are
    means over the classes that have examples.
    """
    values = _regression(predictions) if task == "regression" else _classification(predictions)
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}


def statistics(task: Task, predictions: Predictions) -> dict[str, Statistic]:
    """Return the metrics of `measure` as functions of weights.

    Each maps weights (resamples, n), how often a resample holds each example, to the metric of each resample
    (resamples,), NaN if it is undefined.
    """
    found = _regression_statistics(predictions) if task == "regression" else _classification_statistics(predictions)
    own = predictions.weights
    if own is None:
        return found
    return {name: partial(_weighed, statistic, own) for name, statistic in found.items()}


def _weighed(statistic: Statistic, own: Floats, weights: Floats) -> Floats:
    return statistic(weights * own)


def confidence_bins(predictions: Predictions) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return each example's bin, confidence and correctness: bins of equal width over the highest probability."""
    confidence = predictions.outputs.max(axis=1).astype(np.float64)
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return bins, confidence, (predictions.predicted == predictions.labels).astype(np.float64)


def _regression(predictions: Predictions) -> dict[str, float]:
    pair, weights = (predictions.labels, predictions.outputs), predictions.weights
    return {
        "mae": sklearn_metrics.mean_absolute_error(*pair, sample_weight=weights),
        "rmse": sklearn_metrics.root_mean_squared_error(*pair, sample_weight=weights),
        "r2": sklearn_metrics.r2_score(*pair, sample_weight=weights) if len(predictions.labels) > 1 else np.nan,
    }


def _classification(predictions: Predictions) -> dict[str, float]:
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


def present_classes(predictions: Predictions) -> NDArray[Any]:
    """Return the classes that have examples which count."""
    labels, weights = predictions.labels, predictions.weights
    return np.unique(labels if weights is None else labels[weights > 0])


def _regression_statistics(predictions: Predictions) -> dict[str, Statistic]:
    errors = predictions.outputs.astype(np.float64) - predictions.labels
    labels = predictions.labels.astype(np.float64)
    labels = labels - predictions.mean(labels)  # the spread below keeps its digits

    def r2(weights: Floats) -> Floats:
        count = weights.sum(axis=1)
        spread = _mean(weights, labels**2) - _mean(weights, labels) ** 2
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, 1 - weights @ errors**2 / (spread * count), np.nan)

    return {
        "mae": lambda weights: _mean(weights, np.abs(errors)),
        "rmse": lambda weights: np.sqrt(_mean(weights, errors**2)),
        "r2": r2,
    }


def _classification_statistics(predictions: Predictions) -> dict[str, Statistic]:
    right = (predictions.predicted == predictions.labels).astype(np.float64)
    losses = predictions.losses
    metrics: dict[str, Statistic] = {
        "accuracy": lambda weights: _mean(weights, right),
        "macro_f1": _macro_f1(predictions),
        "log_loss": lambda weights: _mean(weights, losses),
        "calibration_error": _calibration_error(predictions),
    }
    if predictions.outputs.shape[1] > 5:
        top = _in_top5(predictions)
        metrics["top5_accuracy"] = lambda weights: _mean(weights, top)
    if len(present_classes(predictions)) > 1:
        metrics["roc_auc"] = _roc_auc(predictions)
    return metrics


def _mean(weights: Floats, values: Floats) -> Floats:
    result: Floats = weights @ values / weights.sum(axis=1)
    return result


def _in_top5(predictions: Predictions) -> Floats:
    """Whether the label is among the five most probable classes; the lower id goes first among equals, as in argmax."""
    best = np.argsort(-predictions.outputs, axis=1, kind="stable")[:, :5]
    result: Floats = (best == predictions.labels[:, None]).any(axis=1).astype(np.float64)
    return result


def _macro_f1(predictions: Predictions) -> Statistic:
    columns = predictions.outputs.shape[1]
    is_actual = _members(predictions.labels, columns)
    is_predicted = _members(predictions.predicted, columns)
    is_both = is_actual * is_predicted

    def macro_f1(weights: Floats) -> Floats:
        actual, predicted, both = weights @ is_actual, weights @ is_predicted, weights @ is_both
        f1 = 2 * both / np.where(actual + predicted > 0, actual + predicted, 1)
        result: Floats = (f1 * (actual > 0)).sum(axis=1) / (actual > 0).sum(axis=1)
        return result

    return macro_f1


def _calibration_error(predictions: Predictions) -> Statistic:
    """Expected calibration error: the mean distance of accuracy from confidence, over bins of confidence.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
    """
    bins, confidence, right = confidence_bins(predictions)
    gaps = _members(bins, CALIBRATION_BINS) * (right - confidence)[:, None]
    return lambda weights: np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)


def _roc_auc(predictions: Predictions) -> Statistic:
    """Mean over the classes of the area under one-against-the-rest curves, to first order in the weights.

    An area is the mean of each positive's placement among the negatives, and also that of each negative's among the
    positives; a resample moves it by the sum of both means' moves.
    Source: DeLong, DeLong and Clarke-Pearson, Comparing the Areas under Two or More Correlated Receiver Operating
    Characteristic Curves, Biometrics 44, 1988.
    """
    classes = present_classes(predictions)
    own = np.ones(len(predictions.labels)) if predictions.weights is None else predictions.weights.astype(np.float64)
    is_positive = _members(predictions.labels, predictions.outputs.shape[1])[:, classes]
    placements = np.stack(
        [_placements(predictions.outputs[:, label], predictions.labels == label, own) for label in classes], axis=1
    )
    of_positives = placements * is_positive
    of_negatives = placements - of_positives
    areas = own @ of_positives / (own @ is_positive)

    def roc_auc(weights: Floats) -> Floats:
        positives = weights @ is_positive
        negatives = weights.sum(axis=1, keepdims=True) - positives
        with np.errstate(invalid="ignore", divide="ignore"):
            among_negatives = weights @ of_positives / positives
            among_positives = weights @ of_negatives / negatives
            area = np.clip(among_negatives + among_positives - areas, 0, 1)
            defined = np.isfinite(area)
            result: Floats = np.where(defined, area, 0).sum(axis=1) / defined.sum(axis=1)
        return result

    return roc_auc


def _placements(scores: Floats, positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """Share of the other kind, by `weights`, that each example stands on the right side of (n,); a tie counts half."""
    result = np.empty(len(scores))
    for kind in (True, False):
        order = np.argsort(scores[positive != kind], kind="stable")
        others = scores[positive != kind][order]
        up_to = np.concatenate([[0.0], np.cumsum(weights[positive != kind][order])])
        mine = scores[positive == kind]
        below = up_to[np.searchsorted(others, mine, "left")] + up_to[np.searchsorted(others, mine, "right")]
        below = below / 2 / up_to[-1]
        result[positive == kind] = below if kind else 1 - below
    return result


def _members(groups: NDArray[np.int64], count: int) -> Floats:
    """Return 1 if an example (row) is in a group (column), else 0: (n, count) float64."""
    result: Floats = (groups[:, None] == np.arange(count)).astype(np.float64)
    return result
