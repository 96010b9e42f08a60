"""What is minimized, and the one metric that each epoch reports; tensors are those of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from keras import ops

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.spec.recipe import Recipe
from trainyard.values.text import canonical

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

Tensor = TypeVar("Tensor", "tf.Tensor", "jax.Array")
"""Of the engine that trains."""
_TOP = 5


@dataclass(frozen=True)
class Classification:
    """Cross-entropy over `classes`; the metric is the accuracy. Labels are int64 (batch,).

    Those of mixed images are targets, float32 (batch, classes), of which training alone has any.
    """

    classes: int
    smoothing: float

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,), the label's share `smoothing` spread over all classes.

        Source: C. Szegedy et al., Rethinking the Inception Architecture, arXiv:1512.00567, section 7.
        """
        targets = labels if len(labels.shape) == 2 else ops.one_hot(labels, self.classes)
        targets = (1 - self.smoothing) * targets + self.smoothing / self.classes
        return ops.categorical_crossentropy(targets, ops.cast(outputs, "float32"), from_logits=True)

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): the Kullback-Leibler divergence from another model's logits, `answers`.

        Both are softened by `temperature`, whose square keeps the gradients as large as those of the labels.
        Source: G. Hinton et al., Distilling the Knowledge in a Neural Network, arXiv:1503.02531, section 2.
        """
        softened = ops.cast(outputs, "float32") / temperature
        expected = ops.cast(answers, "float32") / temperature
        logarithms = ops.log_softmax(expected, axis=-1) - ops.log_softmax(softened, axis=-1)
        return temperature**2 * ops.sum(ops.softmax(expected, axis=-1) * logarithms, axis=-1)

    def eval_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) without smoothing: the log loss."""
        return ops.sparse_categorical_crossentropy(labels, ops.cast(outputs, "float32"), from_logits=True)

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): 1 where the largest logit is the label's."""
        return ops.cast(ops.equal(ops.argmax(outputs, axis=-1), ops.cast(labels, "int32")), "float32")


@dataclass(frozen=True)
class MultiLabel:
    """Binary cross-entropy, its mean over the classes; the metric is each example's F1.

    Labels are bool (batch, classes). The mean, as Keras has it, keeps a learning rate that suits few classes right for
    many.
    """

    smoothing: float

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,), the label's share `smoothing` spread over yes and no."""
        targets = (1 - self.smoothing) * ops.cast(labels, "float32") + self.smoothing / 2
        return ops.mean(ops.binary_crossentropy(targets, ops.cast(outputs, "float32"), from_logits=True), axis=-1)

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): as of `Classification`, of each class's yes and no, the mean over the classes."""
        softened = ops.cast(outputs, "float32") / temperature
        expected = ops.cast(answers, "float32") / temperature
        yes = ops.sigmoid(expected)
        divergence = yes * (ops.log_sigmoid(expected) - ops.log_sigmoid(softened))
        divergence += (1 - yes) * (ops.log_sigmoid(-expected) - ops.log_sigmoid(-softened))
        return temperature**2 * ops.mean(divergence, axis=-1)

    def eval_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) without smoothing: the log loss."""
        return MultiLabel(0.0).train_loss(outputs, labels)

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): F1 of the classes whose logit is above 0; 1 if there are none and none is."""
        predicted, actual = ops.cast(outputs > 0, "float32"), ops.cast(labels, "float32")
        total = ops.sum(predicted, axis=-1) + ops.sum(actual, axis=-1)
        both = 2 * ops.sum(predicted * actual, axis=-1)
        return ops.where(total > 0, both / ops.maximum(total, 1.0), 1.0)


@dataclass(frozen=True)
class Regression:
    """Squared error in units of the training targets' variance; the metric is the absolute error in their own unit.

    Of several targets, whose labels are float32 (batch, targets), both are the mean over them.
    """

    deviation: float | np.ndarray

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) of float32 outputs (batch, targets) and labels (batch,) if there is one target."""
        return ops.mean(ops.square(self._errors(outputs, labels) / self.deviation), axis=-1)

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): the squared difference from another model's predictions, `answers`."""
        del temperature  # of probabilities
        return self.train_loss(outputs, answers)

    eval_loss = train_loss

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,)."""
        return ops.mean(ops.abs(self._errors(outputs, labels)), axis=-1)

    def _errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs - ops.reshape(labels, ops.shape(outputs))


Objective = Classification | MultiLabel | Regression


def has_top5(document: Examples) -> bool:
    """Return whether a label among the five most probable classes says anything."""
    return document.task == "classification" and document.outputs > _TOP


def top5(objective: Objective, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return float32 (batch,): 1 where the label is among the five largest logits; 0 of a task that has no such thing.

    The lower id goes first among equals, as evaluate has it.
    """
    if not isinstance(objective, Classification):
        return ops.zeros_like(objective.metric(outputs, labels))
    ids = ops.reshape(ops.cast(labels, "int32"), (-1, 1))
    own = ops.take_along_axis(outputs, ids, axis=-1)
    lower = ops.less(np.arange(objective.classes, dtype=np.int32), ids)
    before = ops.less(own, outputs) | (ops.equal(own, outputs) & lower)
    return ops.cast(ops.less(ops.sum(ops.cast(before, "float32"), axis=-1), float(_TOP)), "float32")


def objective(document: Examples, smoothing: float, deviation: float | list[float]) -> Objective:
    """Return what is minimized for the task of `document`; deviation: the standard deviation of its targets."""
    if document.task == "classification":
        return Classification(document.outputs, smoothing)
    return MultiLabel(smoothing) if document.task == "multi_label" else Regression(np.asarray(deviation, np.float32))


def class_weights(recipe: Recipe, labels: Sequence[str] | None, counts: Sequence[int] | None) -> np.ndarray | None:
    """Return one float32 weight a class, or None if the recipe asks for none.

    balanced: examples / (classes * examples of the class), so that the weights' mean over the examples is 1.
    Raises `ConfigurationError` for a weight of a label that the data does not have.
    """
    chosen = recipe.train.class_weights
    if chosen is None or labels is None or counts is None:
        return None
    if chosen == "balanced":
        examples = np.asarray(counts, np.float64)
        return np.asarray(examples.sum() / (len(examples) * np.maximum(examples, 1)), np.float32)
    chosen = {canonical(name): weight for name, weight in chosen.items()}
    unknown = [name for name in chosen if name not in labels]
    if unknown:
        raise ConfigurationError(
            f"train.class_weights: no label '{unknown[0]}'.{did_you_mean(unknown[0], labels)} "
            f"The data has {', '.join(labels[:20])}."
        )
    return np.asarray([chosen.get(label, 1.0) for label in labels], np.float32)
