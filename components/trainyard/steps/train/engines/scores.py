"""The metric of the eval split that chooses the epoch to keep, from sums over its examples.

Sums of the parts of a split add up, so any number of workers and batches gives the same metric. Tests hold it equal to
that of evaluate; an area under a curve is that of scores in bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from keras import ops
from numpy.typing import NDArray

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.spec.selection import Selection

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

Tensor = TypeVar("Tensor", "tf.Tensor", "jax.Array")
"""A tensor of the engine."""

_RANGE = 16.0  # chosen: log odds beyond it are equal; a probability of 1e-7
_BINS, _NUMBERS = 8192, 1 << 17  # chosen: 1/256 of the log odds a bin, and 512 KB for all classes together
_FEWEST_BINS = 64


@dataclass(frozen=True)
class Score:
    """A metric of `count` sums. The outputs of classes are logits, those of a regression in the targets' units."""

    @property
    def count(self) -> int:
        """The number of sums."""
        raise NotImplementedError

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return float32 (count,): sums over the examples by `weights` (batch,)."""
        raise NotImplementedError

    def value(self, sums: NDArray[np.float64]) -> float:
        """Return the metric, NaN if it is undefined for these examples."""
        raise NotImplementedError


@dataclass(frozen=True)
class LogLoss(Score):
    """The log loss, without class weights."""

    @property
    def count(self) -> int:
        return 2

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        if len(labels.shape) == 2:
            losses = ops.mean(ops.binary_crossentropy(ops.cast(labels, "float32"), outputs, from_logits=True), axis=-1)
        else:
            losses = ops.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
        return ops.stack([ops.sum(weights * losses), ops.sum(weights)])

    def value(self, sums: NDArray[np.float64]) -> float:
        return float(sums[0] / sums[1])


@dataclass(frozen=True)
class ExactMatch(Score):
    """The share of examples of multi_label with exactly their classes."""

    @property
    def count(self) -> int:
        return 2

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        right = ops.all(ops.equal(outputs > 0, ops.cast(labels, "bool")), axis=-1)
        return ops.stack([ops.sum(weights * ops.cast(right, "float32")), ops.sum(weights)])

    def value(self, sums: NDArray[np.float64]) -> float:
        return float(sums[0] / sums[1])


@dataclass(frozen=True)
class F1(Score):
    """The F1 of the class `index`, or the mean of those of `classes` that have examples."""

    classes: int
    index: int | None = None

    @property
    def count(self) -> int:
        return 3 * self.classes

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        actual = _members(labels, self.classes)
        if len(labels.shape) == 2:
            predicted = ops.cast(outputs > 0, "float32")
        else:
            predicted = ops.one_hot(ops.argmax(outputs, axis=-1), self.classes)
        parts = ops.concatenate([actual, predicted, actual * predicted], axis=-1)
        return ops.sum(weights[:, None] * parts, axis=0)

    def value(self, sums: NDArray[np.float64]) -> float:
        actual, predicted, right = sums.reshape(3, self.classes)
        f1 = 2 * right / np.where(actual + predicted > 0, actual + predicted, 1)
        if self.index is not None:
            return float(f1[self.index]) if actual[self.index] > 0 else np.nan
        return float(f1[actual > 0].mean()) if (actual > 0).any() else np.nan


@dataclass(frozen=True)
class Area(Score):
    """The area under a curve of the class `index` against the rest, or the mean of those of `classes`.

    is_roc: under the receiver's curve, otherwise the average precision. The scores are log odds in bins.
    """

    is_roc: bool
    classes: int
    index: int | None = None

    @property
    def count(self) -> int:
        return 2 * self._bins * self._judged

    @property
    def _judged(self) -> int:
        return self.classes if self.index is None else 1

    @property
    def _bins(self) -> int:
        return max(_FEWEST_BINS, min(_BINS, _NUMBERS // (2 * self._judged)))

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        actual = _members(labels, self.classes)
        odds = outputs if len(labels.shape) == 2 else _log_odds(outputs)
        if self.index is not None:
            actual, odds = (each[:, self.index : self.index + 1] for each in (actual, odds))
        shares = (ops.clip(odds, -_RANGE, _RANGE) + _RANGE) / (2 * _RANGE)
        bins = ops.cast(shares * (self._bins - 1) + 0.5, "int32")
        firsts = np.arange(self._judged, dtype=np.int32) * self._bins
        places = (bins + firsts) * 2 + ops.cast(actual, "int32")
        counted = weights[:, None] * ops.ones_like(actual)
        return ops.segment_sum(ops.reshape(counted, (-1,)), ops.reshape(places, (-1,)), num_segments=self.count)

    def value(self, sums: NDArray[np.float64]) -> float:
        by_class = sums.reshape(self._judged, self._bins, 2)[:, ::-1]  # by falling score
        areas = [self._area(*parts.T) for parts in by_class if parts.any(axis=0).all()]
        return float(np.mean(areas)) if areas else np.nan

    def _area(self, negatives: NDArray[np.float64], positives: NDArray[np.float64]) -> float:
        above, found = np.cumsum(negatives), np.cumsum(positives)
        if self.is_roc:
            return 1 - float((positives * (above - negatives / 2)).sum() / (found[-1] * above[-1]))
        counted = above + found
        return float((positives * found / np.where(counted > 0, counted, 1)).sum() / found[-1])


@dataclass(frozen=True)
class SquaredErrors(Score):
    """The root of the mean squared error, or r2 if `is_r2`: of the target `index`, or the mean over the targets.

    spread: (targets,), the standard deviations of the eval split's targets, by which the errors are divided: float32
    holds no square of 1e20.
    """

    is_r2: bool
    spread: NDArray[np.float64]
    index: int | None = None

    @property
    def count(self) -> int:
        return len(self.spread) + 1

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        errors = (outputs - ops.reshape(labels, ops.shape(outputs))) / self._divisors
        squares = ops.sum(weights[:, None] * ops.square(errors), axis=0)
        return ops.concatenate([squares, ops.reshape(ops.sum(weights), (1,))])

    def value(self, sums: NDArray[np.float64]) -> float:
        means = sums[:-1] / sums[-1]
        values = np.where(self.spread > 0, 1 - means, np.nan) if self.is_r2 else np.sqrt(means) * self._divisors
        return float(np.mean(values) if self.index is None else values[self.index])

    @property
    def _divisors(self) -> NDArray[np.float32]:
        return np.where(self.spread > 0, self.spread, 1).astype(np.float32)


@dataclass(frozen=True)
class AbsoluteError(Score):
    """The mean absolute error of the target `index`."""

    index: int

    @property
    def count(self) -> int:
        return 2

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        errors = ops.abs(outputs - ops.reshape(labels, ops.shape(outputs)))[:, self.index]
        return ops.stack([ops.sum(weights * errors), ops.sum(weights)])

    def value(self, sums: NDArray[np.float64]) -> float:
        return float(sums[0] / sums[1])


def _members(labels: Tensor, classes: int) -> Tensor:
    """Return float32 (batch, classes): 1 if the example has the class."""
    return ops.cast(labels, "float32") if len(labels.shape) == 2 else ops.one_hot(labels, classes)


def _log_odds(logits: Tensor) -> Tensor:
    """Return the log odds of each class against the rest (batch, classes)."""
    logarithms = ops.log_softmax(logits, axis=-1)
    return logarithms - ops.log(ops.maximum(-ops.expm1(logarithms), 1e-7))


def score_of(selection: Selection, document: Examples, spread: Any = ()) -> Score | None:
    """Return the score of `selection`, None if an epoch has it as its loss, metric or top-5 accuracy.

    spread: as of `SquaredErrors`, for a regression.
    """
    metric, classes = selection.metric, document.outputs
    index = None if selection.class_name is None else (document.labels or []).index(selection.class_name)
    target = None if selection.target is None else document.targets.index(selection.target)
    scores: dict[str, Score] = {
        "log_loss": LogLoss(),
        "exact_match": ExactMatch(),
        "macro_f1": F1(classes),
        "roc_auc": Area(True, classes, index),
        "pr_auc": Area(False, classes, index),
    }
    if document.task == "regression":
        scores = {name: SquaredErrors(name == "r2", np.asarray(spread, np.float64), target) for name in ("rmse", "r2")}
        if target is not None:
            scores["mae"] = AbsoluteError(target)
    elif index is not None:
        scores["f1"] = F1(classes, index)
    return scores.get(metric)
