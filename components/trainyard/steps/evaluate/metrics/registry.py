"""Every metric by its name, as a number and as a function of weights, which the bootstrap resamples.

Tests hold the numbers equal to scikit-learn's, and the names to those of `spec.gates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.decision import decided_class
from trainyard.contract.statistics.scores import example_scores
from trainyard.spec.gates import AREA_EXAMPLES, MetricName, Task
from trainyard.steps.evaluate.metrics.areas import PR_TOLERANCE, ROC_TOLERANCE, average_precision, roc_auc
from trainyard.steps.evaluate.metrics.predictions import Floats, OneClass, SplitPredictions
from trainyard.steps.evaluate.metrics.statistic import Statistic, mean_of

CALIBRATION_BINS = 15
"""As in Guo et al., On Calibration of Modern Neural Networks, 2017."""

_CLEAR_ERRORS = 4.0  # chosen: a resample then has a mean target of the other sign once in 30,000
_Examples = TypeVar("_Examples", SplitPredictions, OneClass)
Answers = SplitPredictions | OneClass
"""The subject of a metric: all classes or targets, or one class against the rest."""


@dataclass(frozen=True)
class Metric(Generic[_Examples]):
    """One metric of predictions, or of one class in them.

    statistic: its function of weights, None if these examples do not define it. trials: how many examples a value of 0
    or 1 is a share of, from which its interval follows: its resamples all agree, and do not say how sure it is.
    fewest: how many of these examples an interval needs. is_biased: resamples lie above the metric. is_corrected: its
    interval is corrected for skew. tolerance: the share by which its function may be off, away from the examples' own
    weights.
    """

    statistic: Callable[[_Examples], Statistic | None]
    trials: Callable[[_Examples], float] | None = None
    fewest: int = 0
    is_biased: bool = False
    is_corrected: bool = True
    tolerance: float = 1e-9


def confidence_bins(predictions: SplitPredictions) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return each example's bin, confidence and correctness: bins of equal width over the highest probability.

    They are those of the most probable class, whatever the threshold.
    """
    confidence = predictions.outputs.max(axis=1).astype(np.float64)
    right: Floats = (decided_class(predictions.outputs, {}) == predictions.labels).astype(np.float64)
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return bins, confidence, right


def _statistic(
    predictions: SplitPredictions,
    columns: Callable[[SplitPredictions], tuple[Floats, ...]],
    value: Callable[..., Floats],
) -> Statistic:
    """Return the statistic of which `columns` gives the columns for some of the `predictions`."""
    return Statistic(len(predictions), lambda rows: columns(predictions.take(rows)), value, predictions.weights)


def _mean_of(values: Callable[[SplitPredictions], Floats]) -> Callable[[SplitPredictions], Statistic]:
    """Return the statistic that is the mean of what each example has."""
    return lambda predictions: _statistic(predictions, lambda part: (values(part),), lambda total, sums: sums / total)


def _all(predictions: SplitPredictions) -> float:
    return predictions.count(np.ones(len(predictions.labels), np.bool_))


def _right(predictions: SplitPredictions) -> Floats:
    return predictions.right.astype(np.float64)


def _is_in_top5(predictions: SplitPredictions) -> Floats:
    """Return 1 if the label is among the five most probable classes; ties go to the lower id, as in argmax."""
    best = np.argsort(-predictions.outputs, axis=1, kind="stable")[:, :5]
    result: Floats = (best == predictions.labels[:, None]).any(axis=1).astype(np.float64)
    return result


def _top5_accuracy(predictions: SplitPredictions) -> Statistic | None:
    return None if predictions.outputs.shape[1] <= 5 else _mean_of(_is_in_top5)(predictions)


def _calibration_error(predictions: SplitPredictions) -> Statistic:
    """Expected calibration error: the mean distance of accuracy from confidence, over bins of confidence.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
    """

    def gaps(part: SplitPredictions) -> tuple[Floats]:
        bins, confidence, right = confidence_bins(part)
        by_bin = np.zeros((CALIBRATION_BINS, len(bins)))  # a bin's sums then read memory in order
        by_bin[bins, np.arange(len(bins))] = right - confidence
        return (by_bin.T,)

    def value(total: Floats, gaps: Floats) -> Floats:
        result: Floats = np.abs(gaps).sum(axis=1) / total
        return result

    return _statistic(predictions, gaps, value)


def _over_targets(statistic: Callable[[SplitPredictions], Statistic]) -> Callable[[SplitPredictions], Statistic]:
    """Return the mean of `statistic` over the targets of a regression."""

    def mean_of_targets(predictions: SplitPredictions) -> Statistic:
        if predictions.labels.ndim == 1:
            return statistic(predictions)
        return mean_of([statistic(predictions.one_target(index)) for index in range(predictions.labels.shape[1])])

    return mean_of_targets


def _errors(predictions: SplitPredictions) -> Floats:
    result: Floats = predictions.outputs.astype(np.float64) - predictions.labels  # float32 holds no square of 1e20
    return result


def _rmse(predictions: SplitPredictions) -> Statistic:
    return _statistic(
        predictions, lambda part: (np.square(_errors(part)),), lambda total, squares: np.sqrt(squares / total)
    )


def _r2(predictions: SplitPredictions) -> Statistic:
    center = predictions.mean(predictions.labels.astype(np.float64))  # the spread below keeps its digits

    def columns(part: SplitPredictions) -> tuple[Floats, ...]:
        labels = part.labels.astype(np.float64) - center
        return np.square(_errors(part)), labels**2, labels

    def value(total: Floats, squares: Floats, squared_labels: Floats, labels: Floats) -> Floats:
        spread = squared_labels / total - (labels / total) ** 2
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, 1 - squares / total / spread, np.nan)

    return _statistic(predictions, columns, value)


def _mean_ratio(predictions: SplitPredictions) -> Statistic | None:
    """Return the mean prediction divided by the mean target; None of several targets, and of a mean near 0."""
    if predictions.labels.ndim == 2 or not _has_clear_mean(predictions):
        return None

    def columns(part: SplitPredictions) -> tuple[Floats, ...]:
        return part.outputs.astype(np.float64), part.labels.astype(np.float64)

    def value(_total: Floats, outputs: Floats, labels: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(labels != 0, outputs / labels, np.nan)

    return _statistic(predictions, columns, value)


def _has_clear_mean(predictions: SplitPredictions) -> bool:
    """Return True if the targets have one sign, or a mean that is far from 0 for its standard error."""
    labels = predictions.counted_labels
    if labels.any() and (labels.min() >= 0 or labels.max() <= 0):
        return True
    values = predictions.labels.astype(np.float64)
    mean = predictions.mean(values)
    error = math.sqrt(predictions.mean(np.square(values - mean)) / _all(predictions))
    return abs(mean) > _CLEAR_ERRORS * error


def _macro_f1(predictions: SplitPredictions) -> Statistic | None:
    """Return the mean F1 of the classes that have examples.

    A class that a resample lacks keeps its F1 of all examples: left out, a rare class that is never found would lift
    the mean of such resamples to that of the others.
    """
    present = predictions.present_classes
    if not len(present):
        return None

    def columns(part: SplitPredictions) -> tuple[Floats, ...]:
        ones = [part.one_class(index) for index in present]
        actual = np.stack([one.actual for one in ones], axis=1).astype(np.float64)
        predicted = np.stack([one.predicted for one in ones], axis=1).astype(np.float64)
        return actual, predicted, actual * predicted

    def f1_by_class(_total: Floats, actual: Floats, predicted: Floats, both: Floats) -> Floats:
        result: Floats = 2 * both / np.where(actual + predicted > 0, actual + predicted, 1)
        return result

    overall = _statistic(predictions, columns, f1_by_class).at_own_weights()

    def value(total: Floats, actual: Floats, *sums: Floats) -> Floats:
        result: Floats = np.where(actual > 0, f1_by_class(total, actual, *sums), overall).mean(axis=1)
        return result

    return _statistic(predictions, columns, value)


Area = Callable[[list[Floats], list[NDArray[np.bool_]], "Floats | None"], Statistic]


def _area(area: Area, ones: list[OneClass]) -> Statistic | None:
    """Return the mean area under the curves of classes, each against the rest."""
    if not ones or not all(one.positives and one.negatives for one in ones):
        return None
    return area([one.scores for one in ones], [one.actual for one in ones], ones[0].weights)


def _rarest(predictions: SplitPredictions) -> float:
    """Return the number of examples of the rarest class."""
    return min(predictions.one_class(index).positives for index in predictions.present_classes)


def _mean_area(area: Area, tolerance: float) -> Metric[SplitPredictions]:
    return Metric(
        lambda predictions: _area(area, list(map(predictions.one_class, predictions.ranked_classes))),
        _rarest,
        tolerance=tolerance,
    )


def _area_of_class(area: Area, tolerance: float) -> Metric[OneClass]:
    return Metric(
        lambda one: _area(area, [one]),
        lambda one: min(one.positives, one.negatives),
        fewest=AREA_EXAMPLES,
        tolerance=tolerance,
    )


def _share_right(*among: str) -> Metric[OneClass]:
    """Return the share of examples that have the class and got it, among those that are `actual` or `predicted`.

    Of both, it is F1.
    """

    def statistic(one: OneClass) -> Statistic | None:
        def columns(rows: slice) -> tuple[Floats, Floats]:
            right = (one.actual[rows] & one.predicted[rows]).astype(np.float64)
            return right, np.mean([getattr(one, name)[rows] for name in among], axis=0)

        def share(_total: Floats, right: Floats, counted: Floats) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.where(counted > 0, right / counted, np.nan)

        return Statistic(len(one), columns, share, one.weights)

    # Without a prediction of the class F1 is 0, as sure as recall is.
    return Metric(statistic, lambda one: min(filter(None, (one.count(getattr(one, name)) for name in among))))


METRICS: dict[Task, dict[MetricName, Metric[SplitPredictions]]] = {
    "classification": {
        "accuracy": Metric(_mean_of(_right), _all),
        "top5_accuracy": Metric(_top5_accuracy, _all),
        "macro_f1": Metric(_macro_f1, _rarest),
        "roc_auc": _mean_area(roc_auc, ROC_TOLERANCE),
        "pr_auc": _mean_area(average_precision, PR_TOLERANCE),
        "log_loss": Metric(_mean_of(lambda predictions: predictions.losses)),
        "calibration_error": Metric(_calibration_error, is_biased=True, is_corrected=False),
    },
    "multi_label": {
        "f1": Metric(
            _mean_of(
                lambda predictions: example_scores(
                    "multi_label", predictions.labels, predictions.outputs, predictions.thresholds
                )
            ),
            _all,
        ),
        "macro_f1": Metric(_macro_f1, _rarest),
        "exact_match": Metric(_mean_of(_right), _all),
        "roc_auc": _mean_area(roc_auc, ROC_TOLERANCE),
        "pr_auc": _mean_area(average_precision, PR_TOLERANCE),
        "log_loss": Metric(_mean_of(lambda predictions: predictions.losses)),
    },
    "regression": {
        "mae": Metric(_over_targets(_mean_of(lambda predictions: np.abs(_errors(predictions))))),
        "rmse": Metric(_over_targets(_rmse)),
        "r2": Metric(_over_targets(_r2), is_corrected=False),
        "mean_ratio": Metric(_mean_ratio),
    },
}

CLASS_METRICS: dict[MetricName, Metric[OneClass]] = {
    "f1": _share_right("actual", "predicted"),
    "roc_auc": _area_of_class(roc_auc, ROC_TOLERANCE),
    "pr_auc": _area_of_class(average_precision, PR_TOLERANCE),
    "precision": _share_right("predicted"),
    "recall": _share_right("actual"),
}
"""The metrics of one class against the rest."""


def measure(task: Task, answers: Answers, names: Collection[str] | None = None) -> dict[str, float]:
    """Return every metric, or those of `names`, that is defined for these examples (AUC of one class is not).

    Which way is better says `spec.gates.METRIC_SPECS`. macro_f1, roc_auc and pr_auc are means over the classes that
    have examples, all metrics of several targets means over them.
    """
    values = {name: float(statistic.at_own_weights()[0]) for name, statistic in each_statistic(task, answers, names)}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def metrics_of(task: Task, answers: Answers) -> dict[str, Metric[Any]]:
    """Return the metrics that `answers` have."""
    if isinstance(answers, OneClass):
        return {name: metric for name, metric in CLASS_METRICS.items()}
    return {name: metric for name, metric in METRICS[task].items()}


def too_few(metric: Metric[Any], answers: Answers) -> bool:
    """Return True if `answers` hold fewer examples than an interval of `metric` needs."""
    return metric.trials is not None and metric.trials(answers) < metric.fewest


def each_statistic(
    task: Task, answers: Answers, names: Collection[str] | None = None
) -> Iterator[tuple[str, Statistic]]:
    """Yield the metrics of `measure` by name, each made when it is asked for: it may hold columns of all examples."""
    for name, metric in metrics_of(task, answers).items():
        if (names is None or name in names) and (statistic := metric.statistic(answers)) is not None:
            yield name, statistic
