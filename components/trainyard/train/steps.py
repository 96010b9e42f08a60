"""The compiled work: many training steps in one call, one pass over the eval split in another."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.train.input import Batch
from trainyard.train.objective import Objective
from trainyard.train.optimizer import Schedule

# AutoGraph converts the loops over steps alone: nothing in a step branches on tensors.
_plain = tf.autograph.experimental.do_not_convert


class Steps:
    """Model, optimizer and the loop's own variables on the devices of a strategy.

    Variables change only inside `train`, so between two calls they are the state after a whole number of steps, whatever
    signal arrived meanwhile.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        schedule: Schedule,
        objective: Objective,
    ) -> None:
        self.strategy = strategy
        self.model = model
        self.optimizer = optimizer
        self.objective = objective
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.loss_sum = tf.Variable(0.0, dtype=tf.float32, trainable=False)
        self.scale = schedule.scale

    @tf.function
    def train(self, iterator: Any, count: tf.Tensor) -> None:
        """Take `count` (int64 scalar) steps; `loss_sum` grows by each batch's weighted mean loss, `step` by one."""
        for _ in tf.range(count):
            losses = self.strategy.run(_plain(self._replica_step), args=(next(iterator),))
            self.loss_sum.assign_add(self.strategy.reduce("SUM", losses, axis=None))
            self.step.assign_add(1)

    @tf.function
    def evaluate(self, iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return float32 scalars, the mean loss and the mean metric over the examples of the next `count` batches."""
        totals = tf.zeros((3,))
        for _ in tf.range(count):
            sums = self.strategy.run(_plain(self._replica_sums), args=(next(iterator),))
            totals += self.strategy.reduce("SUM", sums, axis=None)
        return totals[0] / totals[2], totals[1] / totals[2]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a copy of every variable by a name that is stable over processes."""
        return {name: np.asarray(variable) for name, variable in self._variables().items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Set every variable to what `arrays` gave for it."""
        for name, variable in self._variables().items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, Any]:
        named = {f"model/{i:04d}/{v.path}": v for i, v in enumerate(self.model.variables)}
        named |= {f"optimizer/{i:04d}/{v.path}": v for i, v in enumerate(self.optimizer.variables)}
        return named | {"loop/step": self.step, "loop/loss_sum": self.loss_sum, "loop/learning_rate_scale": self.scale}

    def _replica_step(self, batch: Batch) -> tf.Tensor:
        """Apply one update and return this replica's part of the loss.

        The weights carry the division by the global batch, so replicas' gradients add up to the whole batch's; the
        optimizer adds them up itself.
        """
        features, labels, weights = batch
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self.model(features, training=True)
            loss = tf.reduce_sum(weights * self.objective.train_loss(outputs, labels))
            if self.model.losses:
                loss += tf.add_n(self.model.losses) / self.strategy.num_replicas_in_sync
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
        return loss

    def _replica_sums(self, batch: Batch) -> tf.Tensor:
        """Return float32 (3,): loss, metric and weight summed over this replica's examples."""
        features, labels, weights = batch
        outputs = self.model(features, training=False)
        loss = tf.reduce_sum(weights * self.objective.eval_loss(outputs, labels))
        metric = tf.reduce_sum(weights * self.objective.metric(outputs, labels))
        return tf.stack([loss, metric, tf.reduce_sum(weights)])
