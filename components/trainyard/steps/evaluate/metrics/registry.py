"""Every metric by its name, as a number and as a function of weights, which the bootstrap resamples.

A metric itself is what its function gives for the examples' own weights. Tests hold that equal to scikit-learn, and
the names to those of `spec.gates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.decision import decided_class
from trainyard.contract.statistics.scores import example_scores
from trainyard.spec.gates import AREA_EXAMPLES, MetricName, Task
from trainyard.steps.evaluate.metrics.predictions import Floats, OneClass, SplitPredictions, rank

MOST_WHOLE = 50_000
"""Examples whose columns are in memory at once; of more, sums are made in blocks. Chosen."""

_BLOCK = 1 << 16  # examples; chosen


Resampled = Callable[[Floats], Floats]
"""From weights (resamples, n), of examples or of groups of them, to the metric of each resample (resamples,)."""

CALIBRATION_BINS = 15
"""As in Guo et al., On Calibration of Modern Neural Networks, 2017."""

# Both areas hold to first order in the weights; measured on 80 to 300 examples, some 40 of a class.
_ROC_TOLERANCE, _PR_TOLERANCE = 0.05, 0.15
_CLEAR_ERRORS = 4.0  # chosen: a resample then has a mean target of the other sign once in 30,000
_Examples = TypeVar("_Examples", SplitPredictions, OneClass)
Answers = SplitPredictions | OneClass
"""The subject of a metric: all classes or targets, or one class against the rest."""


class Resampleable(Protocol):
    """A metric of examples that can be drawn one by one, or in groups."""

    def __call__(self, weights: Floats, /) -> Floats:
        """Return the metric of each resample; weights: (resamples, n), of examples."""

    def in_groups(self, groups: NDArray[np.uint16], count: int, /) -> Resampled:
        """Return it as a function of weights (resamples, count) of groups; groups: (n,) that of each example."""


@dataclass(frozen=True)
class Statistic:
    """A metric of `count` examples that depends on them through sums alone.

    columns: the columns of the examples in a slice, each (n,) or (n, k). value: the metric of each resample
    (resamples,), from the sums of the weights (resamples,) and of each column by the weights, (resamples,) or
    (resamples, k). sample_weights: (n,), None without weights. is_change: the sums of the first column
    are differences from those by the sample weights.
    """

    count: int
    columns: Callable[[slice], tuple[Floats, ...]]
    value: Callable[..., Floats]
    sample_weights: Floats | None = None
    is_change: bool = False

    def __call__(self, weights: Floats) -> Floats:
        """Return the metric of each resample (resamples,); weights: how often each holds each example, (resamples, n).

        It is NaN if it is undefined.
        """
        if self.sample_weights is not None:
            weights = weights * self.sample_weights
        sums = [weights @ column for column in self._whole]
        if self.is_change:
            sums[0] = (weights - (1.0 if self.sample_weights is None else self.sample_weights)) @ self._whole[0]
        return self.value(weights.sum(axis=1), *sums)

    def at_own_weights(self) -> Floats:
        """Return the metric of the examples themselves, (1,)."""
        if self.count <= MOST_WHOLE:
            return self(np.ones((1, self.count)))
        return self.in_groups(np.zeros(self.count, np.uint16), 1)(np.ones((1, 1)))

    def in_groups(self, groups: NDArray[np.uint16], count: int) -> Resampled:
        """Return it as a function of weights (resamples, count) of groups; groups: (n,) that of each example."""
        blocks = [slice(first, first + _BLOCK) for first in range(0, self.count, _BLOCK)]
        total, sums = np.zeros(count), list[Floats]()
        for block in blocks:
            sample_weights = None if self.sample_weights is None else self.sample_weights[block]
            total = total + np.bincount(groups[block], sample_weights, count)
            parts = [_by_group(groups[block], column, sample_weights, count) for column in self.columns(block)]
            sums = [before + part for before, part in zip(sums, parts, strict=True)] if sums else parts

        def value(weights: Floats) -> Floats:
            drawn = [weights @ part for part in sums]
            if self.is_change:
                drawn[0] = (weights - 1) @ sums[0]
            return self.value(weights @ total, *drawn)

        return value

    @cached_property
    def _whole(self) -> tuple[Floats, ...]:
        return self.columns(slice(None))


def _by_group(groups: NDArray[np.uint16], column: Floats, sample_weights: Floats | None, count: int) -> Floats:
    parts = column.reshape(len(column), -1).T
    weighed = (part if sample_weights is None else part * sample_weights for part in parts)
    sums = [np.bincount(groups, part, count) for part in weighed]
    result: Floats = np.stack(sums, axis=1, dtype=np.float64).reshape(count, *column.shape[1:])
    return result


def mean(count: int, values: Callable[[slice], Floats], sample_weights: Floats | None) -> Statistic:
    """Return the mean of what each example has; values: those of the examples in a slice (n,)."""
    return Statistic(count, lambda rows: (values(rows),), lambda total, sums: sums / total, sample_weights)


def mean_of(statistics: Sequence[Statistic]) -> Statistic:
    """Return the mean of metrics of the same kind of the same examples."""
    first = statistics[0]

    def columns(rows: slice) -> tuple[Floats, ...]:
        return tuple(column for statistic in statistics for column in statistic.columns(rows))

    def value(total: Floats, *sums: Floats) -> Floats:
        each = len(sums) // len(statistics)
        parts = [sums[at : at + each] for at in range(0, len(sums), each)]
        result: Floats = np.mean(
            [statistic.value(total, *part) for statistic, part in zip(statistics, parts, strict=True)], axis=0
        )
        return result

    return Statistic(first.count, columns, value, first.sample_weights)


def macro_f1(
    count: int, columns: Callable[[slice], tuple[NDArray[np.bool_], NDArray[np.bool_]]], sample_weights: Floats | None
) -> Statistic:
    """Return the mean F1 of the classes that have examples.

    columns: whether each example of a slice has each class, and whether it got it, both (n, classes). A class that a
    resample lacks keeps its F1 of all examples: left out, a rare class that is never found would lift the mean of such
    resamples to that of the others.
    """

    def counted(rows: slice) -> tuple[Floats, ...]:
        is_actual, is_predicted = (part.astype(np.float64) for part in columns(rows))
        return is_actual, is_predicted, is_actual * is_predicted

    def f1_by_class(_total: Floats, actual: Floats, predicted: Floats, both: Floats) -> Floats:
        result: Floats = 2 * both / np.where(actual + predicted > 0, actual + predicted, 1)
        return np.stack([result, actual])

    [overall], [actual] = Statistic(count, counted, f1_by_class, sample_weights).at_own_weights()
    has_examples = actual > 0

    def value(total: Floats, *sums: Floats) -> Floats:
        if not has_examples.any():
            return np.full(len(total), np.nan)
        f1, actual = f1_by_class(total, *sums)
        result: Floats = np.where(actual > 0, f1, overall)[:, has_examples].mean(axis=1)
        return result

    return Statistic(count, counted, value, sample_weights)


def roc_auc(scores: Sequence[Floats], is_positive: Sequence[NDArray[np.bool_]], weights: Floats | None) -> Statistic:
    """Return the mean area under the classes' one-against-the-rest curves.

    It holds to first order in the weights. Of each class: scores (n,); is_positive (n,), whether an example has it.
    weights: (n,), of the examples.

    An area is the mean of each positive's placement among the negatives, and also that of each negative's among the
    positives; a resample moves it by the sum of both means' moves.
    Source: DeLong, DeLong and Clarke-Pearson, Comparing the Areas under Two or More Correlated Receiver Operating
    Characteristic Curves, Biometrics 44, 1988.
    """
    parts = [_placements(*one, weights) for one in zip(scores, is_positive, strict=True)]
    areas = np.array([area for area, _ in parts])
    placements = np.stack([placement for _, placement in parts], axis=1)

    def columns(rows: slice) -> tuple[Floats, ...]:
        positive = np.stack([each[rows] for each in is_positive], axis=1).astype(np.float64)
        among_negatives = placements[rows] * positive
        return among_negatives, placements[rows] - among_negatives, positive

    def value(total: Floats, among_negatives: Floats, among_positives: Floats, positives: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            area = among_negatives / positives + among_positives / (total[:, None] - positives) - areas
        area = np.clip(area, 0, 1)
        return _mean_defined(area, np.isfinite(area))

    return Statistic(len(scores[0]), columns, value, weights)


def _mean_defined(area: Floats, defined: NDArray[np.bool_]) -> Floats:
    """Return the mean over the classes that are `defined`, both (resamples, classes)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.where(defined, area, 0).sum(axis=1) / defined.sum(axis=1)
    return result


def _placements(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats | None) -> tuple[float, Floats]:
    """Return the area of a class, and each example's share of the other kind that it is on the right side of (n,).

    The shares are by `weights`; a tie counts half.
    """
    ranking = rank(scores, is_positive, weights)
    kinds = ranking.counted - ranking.found, ranking.found
    above_negatives, below_positives = ((above + np.append(0.0, above[:-1])) / 2 / above[-1] for above in kinds)
    result = np.empty(len(scores))
    shares = np.where(
        is_positive[ranking.order], 1 - above_negatives[ranking.threshold], below_positives[ranking.threshold]
    )
    result[ranking.order] = shares
    return float(np.average(result[is_positive], weights=None if weights is None else weights[is_positive])), result


def average_precision(
    scores: Sequence[Floats], is_positive: Sequence[NDArray[np.bool_]], weights: Floats | None
) -> Statistic:
    """Return the mean average precision of classes, as scikit-learn defines it.

    It holds to first order in the weights, and its arguments are as of `roc_auc`. Measured: with 20 positives or more
    among 200 to 2,000 examples, the ends of intervals are within 0.04 of those of the whole bootstrap.

    It is the sum over the thresholds of (recall - recall at the threshold above) * precision, without interpolation.
    Source: https://scikit-learn.org/stable/modules/generated/sklearn.metrics.average_precision_score.html
    """
    parts = [_average_precision(*one, weights) for one in zip(scores, is_positive, strict=True)]
    areas = np.array([area for area, _ in parts])
    moves = np.stack([move for _, move in parts], axis=1)

    def columns(rows: slice) -> tuple[Floats, ...]:
        return moves[rows], np.stack([each[rows] for each in is_positive], axis=1).astype(np.float64)

    def value(_total: Floats, moved: Floats, positives: Floats) -> Floats:
        return _mean_defined(np.clip(areas + moved, 0, 1), positives > 0)

    return Statistic(len(scores[0]), columns, value, weights, is_change=True)


def _average_precision(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats | None) -> tuple[float, Floats]:
    """Return the average precision of a class, and by how much it moves with the weight of each example (n,)."""
    ranking = rank(scores, is_positive, weights)
    area, gain, loss = _moves_by_threshold(ranking.counted, ranking.found)
    result = np.empty(len(scores))
    moves = is_positive[ranking.order] * gain[ranking.threshold] - loss[ranking.threshold]
    result[ranking.order] = moves / ranking.found[-1]
    return area, result


def _moves_by_threshold(above: Floats, found: Floats) -> tuple[float, Floats, Floats]:
    """Return the average precision, and what an example moves it by at each threshold, times the positives.

    above, found: the weights of the examples, and of the positives, that are not below each threshold. The move is the
    first array for a positive, less the second for every example.
    """
    gained = np.diff(found, prepend=0.0)
    share = 1 / np.where(above > 0, above, np.inf)
    area = float((gained * found * share).sum() / found[-1])
    # An example counts at its own threshold and at every lower one.
    gain, loss = (np.cumsum(part[::-1])[::-1] for part in (gained * share, gained * found * share**2))
    return area, found * share + gain - area, loss


@dataclass(frozen=True)
class Metric(Generic[_Examples]):
    """One metric of predictions, or of one class in them.

    statistic: its function of weights, None if these examples do not define it. trials: how many examples a value of 0
    or 1 is a share of, from which its interval follows: its resamples all agree, and do not say how sure it is.
    fewest: how many of these examples an interval needs. is_biased: resamples lie above the metric. tolerance: the
    share by which its function may be off, away from the examples' own weights.
    """

    statistic: Callable[[_Examples], Statistic | None]
    trials: Callable[[_Examples], float] | None = None
    fewest: int = 0
    is_biased: bool = False
    tolerance: float = 1e-9


def confidence_bins(predictions: SplitPredictions) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return each example's bin, confidence and correctness: bins of equal width over the highest probability.

    They are those of the most probable class, whatever the threshold.
    """
    confidence = predictions.outputs.max(axis=1).astype(np.float64)
    right: Floats = (decided_class(predictions.outputs, {}) == predictions.labels).astype(np.float64)
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return bins, confidence, right


def _mean_of(values: Callable[[SplitPredictions], Floats]) -> Callable[[SplitPredictions], Statistic]:
    """Return the statistic that is the mean of what each example has."""
    return lambda predictions: mean(len(predictions), lambda rows: values(predictions.take(rows)), predictions.weights)


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

    def gaps(rows: slice) -> tuple[Floats]:
        bins, confidence, right = confidence_bins(predictions.take(rows))
        by_bin = np.zeros((CALIBRATION_BINS, len(bins)))  # a bin's sums then read memory in order
        by_bin[bins, np.arange(len(bins))] = right - confidence
        return (by_bin.T,)

    def value(total: Floats, gaps: Floats) -> Floats:
        result: Floats = np.abs(gaps).sum(axis=1) / total
        return result

    return Statistic(len(predictions), gaps, value, predictions.weights)


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
    def squares(rows: slice) -> tuple[Floats]:
        return (np.square(_errors(predictions.take(rows))),)

    return Statistic(len(predictions), squares, lambda total, sums: np.sqrt(sums / total), predictions.weights)


def _r2(predictions: SplitPredictions) -> Statistic:
    center = predictions.mean(predictions.labels.astype(np.float64))  # the spread below keeps its digits

    def columns(rows: slice) -> tuple[Floats, ...]:
        part = predictions.take(rows)
        labels = part.labels.astype(np.float64) - center
        return np.square(_errors(part)), labels**2, labels

    def value(total: Floats, squares: Floats, squared_labels: Floats, labels: Floats) -> Floats:
        spread = squared_labels / total - (labels / total) ** 2
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, 1 - squares / total / spread, np.nan)

    return Statistic(len(predictions), columns, value, predictions.weights)


def _mean_ratio(predictions: SplitPredictions) -> Statistic | None:
    """Return the mean prediction divided by the mean target; None of several targets, and of a mean near 0."""
    if predictions.labels.ndim == 2 or not _has_clear_mean(predictions):
        return None

    def columns(rows: slice) -> tuple[Floats, ...]:
        part = predictions.take(rows)
        return part.outputs.astype(np.float64), part.labels.astype(np.float64)

    def value(_total: Floats, outputs: Floats, labels: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(labels != 0, outputs / labels, np.nan)

    return Statistic(len(predictions), columns, value, predictions.weights)


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
    present = predictions.present_classes
    if not len(present):
        return None

    def columns(rows: slice) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        part = predictions.take(rows)
        ones = [part.one_class(index) for index in present]
        return np.stack([one.actual for one in ones], axis=1), np.stack([one.predicted for one in ones], axis=1)

    return macro_f1(len(predictions), columns, predictions.weights)


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
        "roc_auc": _mean_area(roc_auc, _ROC_TOLERANCE),
        "pr_auc": _mean_area(average_precision, _PR_TOLERANCE),
        "log_loss": Metric(_mean_of(lambda predictions: predictions.losses)),
        "calibration_error": Metric(_calibration_error, is_biased=True),
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
        "roc_auc": _mean_area(roc_auc, _ROC_TOLERANCE),
        "pr_auc": _mean_area(average_precision, _PR_TOLERANCE),
        "log_loss": Metric(_mean_of(lambda predictions: predictions.losses)),
    },
    "regression": {
        "mae": Metric(_over_targets(_mean_of(lambda predictions: np.abs(_errors(predictions))))),
        "rmse": Metric(_over_targets(_rmse)),
        "r2": Metric(_over_targets(_r2)),
        "mean_ratio": Metric(_mean_ratio),
    },
}

CLASS_METRICS: dict[MetricName, Metric[OneClass]] = {
    "f1": _share_right("actual", "predicted"),
    "roc_auc": _area_of_class(roc_auc, _ROC_TOLERANCE),
    "pr_auc": _area_of_class(average_precision, _PR_TOLERANCE),
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
