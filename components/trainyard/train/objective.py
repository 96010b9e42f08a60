"""What is minimized, and the one metric that each epoch reports."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Classification:
    """Cross-entropy over `classes`; the metric is the accuracy. Labels are int64 (batch,)."""

    classes: int
    smoothing: float

    def train_loss(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return float32 (batch,), the label's share `smoothing` spread over all classes.

        Source: C. Szegedy et al., Rethinking the Inception Architecture, arXiv:1512.00567, section 7.
        """
        even = self.smoothing / self.classes
        targets = tf.one_hot(labels, self.classes, on_value=1 - self.smoothing + even, off_value=even)
        return tf.nn.softmax_cross_entropy_with_logits(targets, outputs)

    def eval_loss(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return float32 (batch,) without smoothing: the log loss."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)

    def metric(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return float32 (batch,): 1 where the largest logit is the label's."""
        return tf.cast(tf.argmax(outputs, axis=-1) == labels, tf.float32)


@dataclass(frozen=True)
class Regression:
    """Squared error in units of the training targets' variance; the metric is the absolute error in their own unit."""

    deviation: float

    def train_loss(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return float32 (batch,) of float32 outputs (batch, 1) and labels (batch,)."""
        return tf.square((outputs[:, 0] - labels) / self.deviation)

    eval_loss = train_loss

    def metric(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return float32 (batch,)."""
        return tf.abs(outputs[:, 0] - labels)


Objective = Classification | Regression
