"""What is minimized, and the one metric that each epoch reports; tensors are those of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from keras import ops

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

Tensor = TypeVar("Tensor", "tf.Tensor", "jax.Array")
"""Of the engine that trains."""


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
        return ops.categorical_crossentropy(targets, outputs, from_logits=True)

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
        return ops.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,): 1 where the largest logit is the label's."""
        return ops.cast(ops.equal(ops.argmax(outputs, axis=-1), ops.cast(labels, "int32")), "float32")


@dataclass(frozen=True)
class Regression:
    """Squared error in units of the training targets' variance; the metric is the absolute error in their own unit."""

    deviation: float

    def train_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,) of float32 outputs (batch, 1) and labels (batch,)."""
        return ops.square((outputs[:, 0] - labels) / self.deviation)

    def distance(self, outputs: Tensor, answers: Tensor, temperature: float) -> Tensor:
        """Return float32 (batch,): the squared difference from another model's predictions, `answers`."""
        del temperature  # of probabilities
        return self.train_loss(outputs, answers[:, 0])

    eval_loss = train_loss

    def metric(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (batch,)."""
        return ops.abs(outputs[:, 0] - labels)


Objective = Classification | Regression
