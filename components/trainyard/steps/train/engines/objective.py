"""Losses, the metric that each epoch reports, and the scale of targets; tensors are those of the engine.

All that is judged is in the original units of the targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from keras import ops
from numpy.typing import NDArray

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder
from trainyard.errors import ConfigurationError, DataError, did_you_mean
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import Selection
from trainyard.spec.train import Target
from trainyard.steps.train.engines.scores import Score
from trainyard.values.numbers import MOST_OF_TARGET, coarse
from trainyard.values.quantiles import weighted_quantiles
from trainyard.values.text import canonical

TensorOrArray = TypeVar("TensorOrArray", "tf.Tensor", "jax.Array", NDArray[Any])
"""A tensor of the engine, or an array."""
_LEARNED: tuple[Split, ...] = ("train", "eval")  # by which the loss is computed
Moments = tuple[float, float] | tuple[list[float], list[float]]
"""Mean and standard deviation, of one or several columns."""

Tensor = TypeVar("Tensor", "tf.Tensor", "jax.Array")
"""A tensor of the engine."""

_TOP = 5


@dataclass(frozen=True)
class TargetScale:
    """The scale of learned targets (batch, targets), and their limits, None for no limits."""

    scale: str = "none"
    low: NDArray[np.float32] | np.float32 | None = None
    high: NDArray[np.float32] | np.float32 | None = None

    def limited(self, targets: TensorOrArray) -> TensorOrArray:
        """Return the targets within low..high."""
        if self.low is None or self.high is None:
            return targets
        return ops.minimum(ops.maximum(targets, self.low), self.high)

    def scaled(self, targets: TensorOrArray) -> TensorOrArray:
        """Return the targets on the scale."""
        if self.scale == "none":
            return targets
        return ops.log(targets) if self.scale == "log" else ops.log1p(targets)

    def original(self, outputs: TensorOrArray) -> TensorOrArray:
        """Return numbers on the scale in the units of the targets."""
        if self.scale == "none":
            return outputs
        return ops.exp(outputs) if self.scale == "log" else ops.expm1(outputs)


UNSCALED = TargetScale()


def learned_targets(target: Target, folder: ExampleFolder) -> tuple[TargetScale, Moments]:
    """Return the scale and the limits of a regression's training targets, and the moments of the learned ones.

    Preprocess knows the moments unless targets are limited, or do not fit the scale: then all examples are read.
    The limits are the exact quantiles of the training split, the moments those of limited targets on the scale, a
    deviation of constant ones 1; both by the sample weights. Raises `DataError` if the scale cannot hold the targets.
    """
    if known := folder.document.moments(target):
        means, deviations = (list(moments) for moments in zip(*known, strict=True))
        return TargetScale(target.scale), (means, deviations) if folder.document.targets else known[0]
    for split in _LEARNED if target.scale != "none" else ():
        require_above(target.scale, split, folder.labels(split), _names(folder), partial(folder.keys, split))
    labels, weights = folder.labels("train").astype(np.float64), folder.weights("train")
    scale = TargetScale(target.scale)
    if target.clip:
        columns = labels.reshape(len(labels), -1).T
        limits = np.array([weighted_quantiles(column, weights, target.clip) for column in columns])
        low, high = limits.T if labels.ndim > 1 else limits[0]
        labels = np.clip(labels, low, high)
        scale = TargetScale(target.scale, np.float32(low), np.float32(high))
    if target.scale != "none":
        labels = np.log(labels) if target.scale == "log" else np.log1p(labels)
        for name, column in zip(_names(folder), labels.reshape(len(labels), -1).T, strict=True):
            if coarse(column.min(), column.max(), float(column.std()), MOST_OF_TARGET):
                raise DataError(
                    f"train.target.scale: the {target.scale} of '{name}' lies from {column.min():.12g} to "
                    f"{column.max():.12g}, too close together for 32-bit floats. Set scale: none."
                )
    return scale, target_moments(labels, weights)


def target_moments(labels: np.ndarray, weights: np.ndarray | None = None) -> Moments:
    """Return mean and standard deviation of the training targets, (n,) or (n, targets); 1 for constant targets.

    weights: (n,), of the examples.
    """
    labels = labels.astype(np.float64)
    mean = np.average(labels, axis=0, weights=weights)
    deviation = np.sqrt(np.average(np.square(labels - mean), axis=0, weights=weights))
    if labels.ndim == 1:
        return float(mean), float(deviation) or 1.0
    return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()


def require_above(
    scale: str, split: Split, labels: np.ndarray, names: list[str], keys: Callable[[], list[str]]
) -> None:
    """Raise `DataError` if the logarithmic `scale` has no number for one of `labels`, (n,) or (n, targets).

    names: of the targets. keys: returns the names of the rows.
    """
    labels = labels.reshape(len(labels), -1)
    wrong = labels <= 0 if scale == "log" else labels < 0
    if not wrong.any():
        return
    row, column = np.argwhere(wrong)[0]
    raise DataError(
        f"train.target.scale: {scale} needs targets {'above 0' if scale == 'log' else 'of at least 0'}, and "
        f"{wrong.any(axis=1).sum():,} of {len(labels):,} rows of the {split} split have another one, such as "
        f"{keys()[row]} ('{names[column]}' is {labels[row, column]:g}). Leave them out by data.where, or set "
        f"scale: {'log1p or none' if scale == 'log' else 'none'}."
    )


def _names(folder: ExampleFolder) -> list[str]:
    return folder.document.targets or [folder.document.label]


if TYPE_CHECKING:
    import jax
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """score: the metric that chooses the epoch, None if another one of its metrics does. class_weights: (classes,)."""

    score: Score | None = None
    class_weights: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Classification(_Judged):
    """Cross-entropy over `classes`; the metric is the accuracy. Labels are int64 (batch,).

    Labels of mixed training images are targets, float32 (batch, classes).
    """

    classes: int
    smoothing: float

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) with label smoothing over all classes.

        Source: C. Szegedy et al., Rethinking the Inception Architecture, arXiv:1512.00567, section 7.
        """
        targets = labels if len(labels.shape) == 2 else ops.one_hot(labels, self.classes)
        targets = (1 - self.smoothing) * targets + self.smoothing / self.classes
        return ops.categorical_crossentropy(targets, ops.cast(outputs, "float32"), from_logits=True)

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): the Kullback-Leibler divergence from a teacher's logits, `answers`.

        Both are softened by `temperature`; its square keeps the gradients as large as those of the labels. Source: G.
        Hinton et al., Distilling the Knowledge in a Neural Network, arXiv:1503.02531, section 2.
        """
        softened = ops.cast(outputs, "float32") / temperature
        expected = ops.cast(answers, "float32") / temperature
        logarithms = ops.log_softmax(expected, axis=-1) - ops.log_softmax(softened, axis=-1)
        return temperature**2 * ops.sum(ops.softmax(expected, axis=-1) * logarithms, axis=-1)

    def eval_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): the log loss without smoothing."""
        return ops.sparse_categorical_crossentropy(labels, ops.cast(outputs, "float32"), from_logits=True)

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): 1 if the largest logit is the label's."""
        return ops.cast(ops.equal(ops.argmax(outputs, axis=-1), ops.cast(labels, "int32")), "float32")


@dataclass(frozen=True)
class MultiLabel(_Judged):
    """Binary cross-entropy, averaged over the classes; the metric is each example's F1.

    Labels are bool (batch, classes). The mean over classes, as in Keras, keeps a learning rate suitable for any number
    of classes.
    """

    smoothing: float

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) with label smoothing over yes and no."""
        targets = (1 - self.smoothing) * ops.cast(labels, "float32") + self.smoothing / 2
        return ops.mean(ops.binary_crossentropy(targets, ops.cast(outputs, "float32"), from_logits=True), axis=-1)

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): the divergence of `Classification` for yes and no of each class, averaged."""
        softened = ops.cast(outputs, "float32") / temperature
        expected = ops.cast(answers, "float32") / temperature
        yes = ops.sigmoid(expected)
        divergence = yes * (ops.log_sigmoid(expected) - ops.log_sigmoid(softened))
        divergence += (1 - yes) * (ops.log_sigmoid(-expected) - ops.log_sigmoid(-softened))
        return temperature**2 * ops.mean(divergence, axis=-1)

    def eval_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): the log loss without smoothing."""
        return MultiLabel(0.0).train_loss(outputs, labels)

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): F1 of the classes with a logit above 0; 1 without predictions and labels."""
        predicted, actual = ops.cast(outputs > 0, "float32"), ops.cast(labels, "float32")
        total = ops.sum(predicted, axis=-1) + ops.sum(actual, axis=-1)
        both = 2 * ops.sum(predicted * actual, axis=-1)
        return ops.where(total > 0, both / ops.maximum(total, 1.0), 1.0)


@dataclass(frozen=True)
class Regression(_Judged):
    """Squared error in units of the training targets' variance; the metric is the absolute error in the targets' unit.

    Outputs are on the scale of `target`, labels in the targets' unit. With several targets, labels are float32 (batch,
    targets), and both are means over the targets.
    """

    deviation: float | np.ndarray
    target: TargetScale = UNSCALED

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) for float32 outputs (batch, targets) and labels, (batch,) for one target."""
        return self._squared_error(outputs, self.target.limited(ops.reshape(labels, ops.shape(outputs))))

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): the squared difference from a teacher's predictions, `answers`."""
        del temperature  # only for probabilities
        return self.train_loss(outputs, answers)

    def eval_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): the loss against the unclipped targets."""
        return self._squared_error(outputs, ops.reshape(labels, ops.shape(outputs)))

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,)."""
        return ops.mean(ops.abs(self.target.original(outputs) - ops.reshape(labels, ops.shape(outputs))), axis=-1)

    def _squared_error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ops.mean(ops.square((outputs - self.target.scaled(targets)) / self.deviation), axis=-1)


Objective = Classification | MultiLabel | Regression

EVAL_SUMS = 5
"""The sums of `eval_sums` before those of the score."""


class Evaluated(NamedTuple):
    """Of the eval split: mean loss, mean metric, top-5 accuracy, and the metric that chooses the epoch.

    top5: None unless it counts. selected: None if the loss chooses, or these examples do not define the metric.
    """

    loss: float
    metric: float
    top5: float | None
    selected: float | None

    @classmethod
    def from_sums(
        cls, sums: NDArray[np.float32], score: Score | None, selection: Selection, *, top5_counts: bool
    ) -> Evaluated:
        """Return it from the `eval_sums` of the whole split."""
        loss, loss_weight, metric, top5, weight = (float(value) for value in sums[:EVAL_SUMS])
        hits = top5 / weight if top5_counts else None
        selected = None
        if score is not None:
            selected = score.value(sums[EVAL_SUMS:].astype(np.float64))
        elif not selection.is_loss:
            selected = hits if selection.metric == "top5_accuracy" else metric / weight
        defined = None if selected is None or not math.isfinite(selected) else selected
        return cls(loss / loss_weight if loss_weight else 0.0, metric / weight, hits, defined)


def eval_sums(objective: Objective, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return float32 sums over the examples: loss, loss weight, metric, top-5 hits and weight, and those of the score.

    The loss counts by sample and class weights, the rest by `weights`, the sample weights (batch,).
    """
    outputs = ops.cast(outputs, "float32")
    loss_weights = weights
    if objective.class_weights is not None:
        loss_weights = weights * ops.take(objective.class_weights, labels)
    losses, metrics = objective.eval_loss(outputs, labels), objective.metric(outputs, labels)
    hits = top5(objective, outputs, labels)
    parts = [loss_weights * losses, loss_weights, weights * metrics, weights * hits, weights]
    stacked = ops.stack([ops.sum(part) for part in parts])
    if objective.score is None:
        return stacked
    answers = objective.target.original(outputs) if isinstance(objective, Regression) else outputs
    return ops.concatenate([stacked, objective.score.sums(answers, labels, weights)])


def has_top5(document: Examples) -> bool:
    """Return True if top-5 accuracy is meaningful: for more than five classes."""
    return document.task == "classification" and document.outputs > _TOP


def top5(objective: Objective, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return float32 (batch,): 1 if the label is among the five largest logits; 0 without `has_top5`.

    Ties go to the lower id, as in evaluate.
    """
    if not isinstance(objective, Classification) or objective.classes <= _TOP:
        return ops.zeros_like(outputs[:, 0])
    ids = ops.reshape(ops.cast(labels, "int32"), (-1, 1))
    own = ops.take_along_axis(outputs, ids, axis=-1)
    lower = ops.less(np.arange(objective.classes, dtype=np.int32), ids)
    before = ops.less(own, outputs) | (ops.equal(own, outputs) & lower)
    return ops.cast(ops.less(ops.sum(ops.cast(before, "float32"), axis=-1), float(_TOP)), "float32")


def objective(
    document: Examples,
    smoothing: float,
    deviation: float | list[float],
    target: TargetScale = UNSCALED,
    score: Score | None = None,
    class_weights: NDArray[np.float32] | None = None,
) -> Objective:
    """Return the loss and metric for the task of `document`; deviation: standard deviation of its learned targets."""
    if document.task == "classification":
        return Classification(document.outputs, smoothing, score=score, class_weights=class_weights)
    if document.task == "multi_label":
        return MultiLabel(smoothing, score=score)
    return Regression(np.asarray(deviation, np.float32), target, score=score)


def class_weights(recipe: Recipe, labels: Sequence[str] | None, totals: Sequence[float] | None) -> np.ndarray | None:
    """Return float32 (classes,), or None without class weights.

    totals: `SplitFiles.class_totals`. balanced: total / (classes * total of the class), so that all classes count the
    same and the mean weight of the examples is 1; a class that does not count keeps 1. Raises `ConfigurationError` for
    an unknown label.
    """
    chosen = recipe.train.class_weights
    if chosen is None or labels is None or totals is None:
        return None
    if chosen == "balanced":
        sums = np.asarray(totals, np.float64)
        each = sums.sum() / np.count_nonzero(sums)
        return np.asarray(np.divide(each, sums, out=np.ones_like(sums), where=sums > 0), np.float32)
    chosen = {canonical(name): weight for name, weight in chosen.items()}
    unknown = [name for name in chosen if name not in labels]
    if unknown:
        raise ConfigurationError(
            f"train.class_weights: no label '{unknown[0]}'.{did_you_mean(unknown[0], labels)} "
            f"The data has {', '.join(labels[:20])}."
        )
    return np.asarray([chosen.get(label, 1.0) for label in labels], np.float32)
