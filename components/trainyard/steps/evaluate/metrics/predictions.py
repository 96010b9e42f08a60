"""A model's predictions for the examples of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.decision import decided_class, decided_classes

Floats = NDArray[np.floating[Any]]


def full_weights(weights: Floats | None, count: int) -> NDArray[np.float64]:
    """Return `weights` (n,) in 64 bits, 1 for each of `count` examples without any."""
    return np.ones(count) if weights is None else weights.astype(np.float64)


def effective_count(weights: Floats | None, counted: NDArray[np.bool_]) -> float:
    """Return the effective sample size of the `counted` examples: their number if all weights are equal.

    Source: L. Kish, Survey Sampling, 1965, section 11.7.
    """
    if weights is None:
        return float(counted.sum())
    chosen = weights[counted].astype(np.float64)
    return float(chosen.sum() ** 2 / np.square(chosen).sum()) if chosen.any() else 0.0


@dataclass(frozen=True)
class OneClass:
    """One class against the rest: whether each example has it and got it, (n,) bool, and its probability (n,)."""

    actual: NDArray[np.bool_]
    predicted: NDArray[np.bool_]
    scores: Floats
    weights: Floats | None = None

    def __len__(self) -> int:
        return len(self.actual)

    def count(self, counted: NDArray[np.bool_]) -> float:
        """Return `effective_count` of the examples that are `counted`."""
        return effective_count(self.weights, counted)

    @property
    def positives(self) -> float:
        """The number of examples of the class."""
        return self.count(self.actual)

    @property
    def negatives(self) -> float:
        """The number of examples of other classes."""
        return self.count(~self.actual)


@dataclass(frozen=True)
class SplitPredictions:
    """The model's predictions for n examples, in any order.

    labels: (n,) int64 class ids; bool (n, classes) of multi_label; or float32 targets (n,), of several (n, targets).
    outputs: (n, columns) float32 probabilities, of which the columns behind the last class id belong to classes that no
    example has; or float32 predictions in the shape of the targets. weights: (n,), how much each example counts; None
    if all count the same. thresholds: the model's decision thresholds by class id.
    """

    labels: NDArray[Any]
    outputs: Floats
    weights: Floats | None = None
    thresholds: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def predicted(self) -> NDArray[Any]:
        """The predictions in the form of the labels: ids of classes (n,), bool (n, classes), or numbers."""
        if self.labels.dtype.kind == "f":
            return self.outputs
        return (decided_class if self.labels.ndim == 1 else decided_classes)(self.outputs, self.thresholds)

    @property
    def right(self) -> NDArray[np.bool_]:
        """True for each example that the model answers with its label, all of its classes or numbers (n,)."""
        result: NDArray[np.bool_] = (self.predicted == self.labels).reshape(len(self), -1).all(axis=1)
        return result

    @property
    def counted_labels(self) -> NDArray[Any]:
        """The labels of the examples whose weight is not 0."""
        result: NDArray[Any] = self.labels if self.weights is None else self.labels[self.weights > 0]
        return result

    @property
    def present_classes(self) -> NDArray[Any]:
        """The classes that have examples which count."""
        counted = self.counted_labels
        result: NDArray[Any] = np.flatnonzero(counted.any(axis=0)) if counted.ndim == 2 else np.unique(counted)
        return result

    @property
    def ranked_classes(self) -> list[int]:
        """The classes that some of the examples which count have and others have not."""
        return [int(index) for index in self.present_classes if self.one_class(index).negatives]

    @cached_property
    def losses(self) -> Floats:
        """Each example's negative log likelihood, or squared error, (n,) float64.

        That of multi_label is the mean over the classes. Several targets count by the mean of their squared errors,
        each a share of the target's variance here. A probability counts as at least the float32 epsilon, as in
        scikit-learn's log loss, so that one certain mistake does not make the mean infinite.
        """
        result: Floats
        if self.labels.dtype.kind == "f":
            result = np.square(self.outputs.astype(np.float64) - self.labels)
            if result.ndim == 2:
                labels = self.labels.astype(np.float64)
                center = np.average(labels, axis=0, weights=self.weights)
                variance = np.average(np.square(labels - center), axis=0, weights=self.weights)
                result = (result / np.where(variance > 0, variance, 1)).mean(axis=1)
            return result
        if self.labels.dtype.kind == "b":
            result = _log_losses(np.where(self.labels, self.outputs, 1 - self.outputs)).mean(axis=1)
            return result
        return _log_losses(self.outputs[np.arange(len(self.labels)), self.labels])

    def largest_losses(self, count: int) -> NDArray[np.int64]:
        """Return the places of the `count` examples of the largest loss, worst first, of equal ones the first.

        An example of weight 0 is none of them.
        """
        losses, places = self.losses, np.arange(len(self)) if self.weights is None else np.flatnonzero(self.weights)
        if 0 < count < len(places):  # to sort a million takes as long as to predict them
            places = places[losses[places] >= np.partition(losses[places], -count)[-count]]
        return places[np.argsort(-losses[places], kind="stable")[:count]]

    def take(self, chosen: NDArray[Any] | slice) -> SplitPredictions:
        """Return the predictions for the `chosen` examples: a mask (n,), indices, or a slice without a copy."""
        weights = None if self.weights is None else self.weights[chosen]
        return replace(self, labels=self.labels[chosen], outputs=self.outputs[chosen], weights=weights)

    def one_class(self, index: int) -> OneClass:
        """Return one class against the rest."""
        several = self.labels.ndim == 2
        return OneClass(
            self.labels[:, index] if several else self.labels == index,
            self.predicted[:, index] if several else self.predicted == index,
            self.outputs[:, index],
            self.weights,
        )

    def count(self, counted: NDArray[np.bool_]) -> float:
        """Return `effective_count` of the examples that are `counted`."""
        return effective_count(self.weights, counted)

    def one_target(self, index: int) -> SplitPredictions:
        """Return the predictions of one of several targets alone."""
        return SplitPredictions(self.labels[:, index], self.outputs[:, index], self.weights)

    def mean(self, values: Floats) -> float:
        """Return the mean of `values` (n,), each example's, by their weights."""
        return float(np.average(values, weights=self.weights))


def _log_losses(right: Floats) -> Floats:
    epsilon = np.finfo(np.float32).eps
    result: Floats = -np.log(np.clip(right.astype(np.float64), epsilon, 1 - epsilon))
    return result


class Ranking(NamedTuple):
    """The examples of a class and of the others by falling score; examples of one score share a threshold.

    order: (n,), the places of the examples. threshold: (n,), that of each example in this order. Of each threshold:
    scores, its score; counted and found, the weights of the examples, and of those of the class, that are not below it.
    """

    order: NDArray[np.int64]
    threshold: NDArray[np.int64]
    scores: Floats
    counted: Floats
    found: Floats


def rank(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats | None) -> Ranking:
    """Rank examples by `scores` (n,); is_positive: (n,), whether each has the class; weights: (n,) or None."""
    order = np.argsort(-scores)
    ordered = scores[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    ends = np.flatnonzero(is_last)
    sample_weights = full_weights(weights, len(scores))
    counted, found = np.cumsum(sample_weights[order])[ends], np.cumsum((sample_weights * is_positive)[order])[ends]
    return Ranking(order, np.cumsum(is_last) - is_last, ordered[ends], counted, found)
