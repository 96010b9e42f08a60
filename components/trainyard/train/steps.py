"""The compiled work: many training steps in one call, one pass over the eval split in another."""

from __future__ import annotations

import math
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
    def train(self, iterator: Any, count: tf.Tensor, said: tf.Tensor) -> tf.Tensor:
        """Take `count` (int64 scalar) steps; `loss_sum` grows by each batch's weighted mean loss, `step` by one.

        Every worker of a gang must ask for the same count. said: float32 (n,), what this worker has to say to the
        others; returns the mean of what all of them said.
        """
        for _ in tf.range(count):
            losses = self.strategy.run(_plain(self._replica_step), args=(next(iterator),))
            # The gang's loss in every replica: one of them is enough.
            self.loss_sum.assign_add(self.strategy.experimental_local_results(losses)[0])
            self.step.assign_add(1)
        return self.mean(said)

    @tf.function
    def all_reduce(self, vector: tf.Tensor, count: tf.Tensor) -> None:
        """Do nothing but sum `vector`, float32 (n,), over the replicas `count` times."""
        for _ in tf.range(count):
            self.strategy.run(_plain(self._sum), args=(vector,))

    @tf.function
    def mean(self, said: tf.Tensor) -> tf.Tensor:
        """Return the mean over the workers of their `said`, float32 (n,)."""
        if self.strategy.num_replicas_in_sync == 1:
            return said
        sums = self.strategy.run(_plain(self._sum), args=(said,))
        return self.strategy.experimental_local_results(sums)[0] / self.strategy.num_replicas_in_sync

    @tf.function
    def evaluate(self, iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return float32 scalars, the mean loss and the mean metric over the examples of the next `count` batches."""
        totals = tf.zeros((3,))
        for _ in tf.range(count):
            sums = self.strategy.run(_plain(self._replica_sums), args=(next(iterator),))
            totals += self.strategy.reduce("SUM", sums, axis=None)
        return totals[0] / totals[2], totals[1] / totals[2]

    @property
    def gradient_bytes(self) -> int:
        """Bytes that each replica sends and receives the sum of, each step."""
        return sum(4 * math.prod(tuple(map(int, v.shape))) for v in self.model.trainable_variables)

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

        The weights carry the division by the global batch, so replicas' gradients add up to the whole batch's. They
        travel in one vector, the loss with them: one collective a step.
        """
        features, labels, weights = batch
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self.model(features, training=True)
            loss = tf.reduce_sum(weights * self.objective.train_loss(outputs, labels))
            if self.model.losses:
                loss += tf.add_n(self.model.losses) / self.strategy.num_replicas_in_sync
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if self.strategy.num_replicas_in_sync > 1:
            gradients, loss = self._summed(gradients, loss)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def _summed(self, gradients: list[Any], loss: tf.Tensor) -> tuple[list[Any], tf.Tensor]:
        """Return the sums over all replicas of `gradients` and `loss`."""
        known = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
        vector = self._sum(tf.concat([*(tf.reshape(each, [-1]) for each in known), loss[None]], axis=0))
        *parts, total = tf.split(vector, [*(each.shape.num_elements() for each in known), 1])
        sums = iter([tf.reshape(part, each.shape) for part, each in zip(parts, known, strict=True)])
        return [None if gradient is None else next(sums) for gradient in gradients], total[0]

    @staticmethod
    def _sum(vector: tf.Tensor) -> tf.Tensor:
        # The identity puts an argument of the call onto the replica's device: without one there is no collective.
        placed = tf.identity(vector)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed)

    def _replica_sums(self, batch: Batch) -> tf.Tensor:
        """Return float32 (3,): loss, metric and weight summed over this replica's examples."""
        features, labels, weights = batch
        outputs = self.model(features, training=False)
        loss = tf.reduce_sum(weights * self.objective.eval_loss(outputs, labels))
        metric = tf.reduce_sum(weights * self.objective.metric(outputs, labels))
        return tf.stack([loss, metric, tf.reduce_sum(weights)])
