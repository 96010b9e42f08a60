"""TensorFlow's compiled work: many training steps in one call, one pass over the eval split in another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.steps.train.engines.names import LOSS_SUM, SCALE, STEP, named_variables
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import Schedule
from trainyard.steps.train.engines.tensorflow.sums import Sums
from trainyard.steps.train.input.input import Batch

# AutoGraph converts the loops over steps alone: nothing in a step branches on tensors.
_plain = tf.autograph.experimental.do_not_convert


PARCEL_BYTES = 4 << 20
"""Chosen: gradients are collected up to this size before they are summed over the replicas."""


class TensorFlowSteps:
    """Model, optimizer and the loop's own variables on the devices of a strategy.

    Variables change only inside `train`, so between two calls they are the state after a whole number of steps, whatever
    signal arrived meanwhile.

    slices: elements of the batches that make a step, each a part of its global batch. xla: compile what computes
    loss and gradients; in it must be no sum over the replicas.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        schedule: Schedule,
        objective: Objective,
        sums: Sums,
        slices: int,
        xla: bool,
    ) -> None:
        self.strategy = strategy
        self.model = model
        self.optimizer = optimizer
        self.objective = objective
        self._sum = sums
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._loss_sum = tf.Variable(0.0, dtype=tf.float32, trainable=False)
        self._scale = schedule.scale
        self._slices = slices
        self._loss_and_gradients = (
            tf.function(self._computed, autograph=False, jit_compile=True) if xla else self._computed
        )
        # Each replica's own sums over the slices before the last: the loss, then the gradients.
        self._held = [_held(()), *(_held(each.shape) for each in model.trainable_variables)] if slices > 1 else []

    @property
    def step(self) -> int:
        """The steps taken since the beginning of the training."""
        return int(self._step.numpy())

    @property
    def loss_sum(self) -> float:
        """The sum of the batches' weighted mean losses since it was set to 0."""
        return float(self._loss_sum.numpy())

    @loss_sum.setter
    def loss_sum(self, value: float) -> None:
        self._loss_sum.assign(value)

    @property
    def scale(self) -> float:
        """What the schedule's learning rate is multiplied by."""
        return float(self._scale.numpy())

    @scale.setter
    def scale(self, value: float) -> None:
        self._scale.assign(value)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.learning_rate)

    def distributed(self, dataset: tf.data.Dataset) -> Iterable[Any]:
        """Return the elements of `dataset`, one a local replica."""
        distributed: Iterable[Any] = self.strategy.distribute_datasets_from_function(lambda _: dataset)
        return distributed

    def train(self, batches: Any, count: int, said: Sequence[float]) -> list[float]:
        """Take `count` steps and return the mean of what all workers `said`."""
        try:
            mean = self._train(batches, tf.constant(count, tf.int64), tf.constant(said, tf.float32))
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(error.message.splitlines()[0]) from error
        return [float(each) for each in mean]

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        """Return `totals` and on top of it loss, metric and weight summed over the next `count` batches."""
        return np.asarray(self._evaluate(batches, tf.constant(count, tf.int64), tf.constant(totals)))

    def mean(self, said: Sequence[float]) -> list[float]:
        """Return the mean over the workers of what they `said`."""
        return [float(each) for each in self._mean(tf.constant(said, tf.float32))]

    def all_reduce(self, count: int) -> None:
        """Sum a vector of the gradients' size over the replicas `count` times."""
        self._all_reduce(tf.zeros((self.gradient_bytes // 4,)), tf.constant(count, tf.int64))

    @tf.function
    def _train(self, iterator: Any, count: tf.Tensor, said: tf.Tensor) -> tf.Tensor:
        """Take `count` (int64 scalar) steps and return the mean of what the workers `said`, float32 (n,)."""
        for _ in tf.range(count):
            if self._slices > 1:
                for _ in tf.range(self._slices - 1):
                    self.strategy.run(_plain(self._replica_slice), args=(next(iterator),))
            losses = self.strategy.run(_plain(self._replica_step), args=(next(iterator),))
            # The gang's loss in every replica: one of them is enough.
            self._loss_sum.assign_add(self.strategy.experimental_local_results(losses)[0])
            self._step.assign_add(1)
        # After the steps: where the sums go over a ring, all workers must ask for them in one order.
        with tf.control_dependencies([tf.identity(self._step)]):
            return self._mean(tf.identity(said))

    @tf.function
    def _all_reduce(self, vector: tf.Tensor, count: tf.Tensor) -> None:
        for _ in tf.range(count):
            self.strategy.run(_plain(self._sum), args=([vector],))

    @tf.function
    def _mean(self, said: tf.Tensor) -> tf.Tensor:
        if self.strategy.num_replicas_in_sync == 1:
            return said
        (sums,) = self.strategy.run(_plain(self._sum), args=([said],))
        return self.strategy.experimental_local_results(sums)[0] / self.strategy.num_replicas_in_sync

    @tf.function
    def _evaluate(self, iterator: Any, count: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(count):
            sums = self.strategy.run(_plain(self._replica_sums), args=(next(iterator),))
            totals += self.strategy.reduce("SUM", sums, axis=None)
        return totals

    @property
    def gradient_bytes(self) -> int:
        """Bytes that each replica sends and receives the sum of, each step."""
        return sum(4 * math.prod(tuple(map(int, v.shape))) for v in self.model.trainable_variables)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every variable's value by a name that is stable over processes; later steps leave it as it is."""
        # No copy: TensorFlow gives a variable new memory where its value is held elsewhere.
        values = {name: tf.convert_to_tensor(variable) for name, variable in self._variables().items()}
        return {name: np.asarray(memoryview(value)) for name, value in values.items()}

    def not_finite(self) -> str | None:
        """Return the name of the first variable that holds NaN or infinity, or None."""
        fine = self._finite().numpy()
        return next((name for name, each in zip(self._variables(), fine, strict=True) if not each), None)

    @tf.function
    def _finite(self) -> tf.Tensor:
        """Return bool (variables,): whether each variable is finite, in the order of `_variables`."""
        values = [tf.convert_to_tensor(variable) for variable in self._variables().values()]
        return tf.stack(
            [tf.reduce_all(tf.math.is_finite(each)) if each.dtype.is_floating else tf.constant(True) for each in values]
        )

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable to what `arrays` gave for it."""
        for name, variable in self._variables().items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, Any]:
        named = named_variables(self.model, self.optimizer)
        return named | {STEP: self._step, LOSS_SUM: self._loss_sum, SCALE: self._scale}

    def _replica_step(self, batch: Batch) -> tf.Tensor:
        """Apply one update, after a step's last slice, and return the gang's loss."""
        loss, *gradients = self._loss_and_gradients(batch)
        if self._held:
            loss, *gradients = [
                None if each is None else each + held for held, each in zip(self._held, [loss, *gradients], strict=True)
            ]
            for held in self._held:
                held.assign(tf.zeros(held.shape))
        if self.strategy.num_replicas_in_sync > 1:
            gradients, loss = self._summed(gradients, loss)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def _replica_slice(self, batch: Batch) -> None:
        """Add what one slice before a step's last gives to what is held."""
        for held, each in zip(self._held, self._loss_and_gradients(batch), strict=True):
            if each is not None:
                held.assign_add(each)

    def _computed(self, batch: Batch) -> list[Any]:
        """Return this replica's part of a slice's loss, and of its gradients, None for a variable without one.

        The weights carry the division by the global batch, so the parts add up to the whole batch's.
        """
        features, labels, weights = batch
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self.model(features, training=True)
            loss = tf.reduce_sum(weights * self.objective.train_loss(outputs, labels))
            if self.model.losses:
                loss += tf.add_n(self.model.losses) / (self.strategy.num_replicas_in_sync * self._slices)
            scaled = self.optimizer.scale_loss(loss)
        # An embedding's comes as slices, whose norm is wrong where an id is there twice.
        gradients = tape.gradient(scaled, variables)
        return [loss, *(None if each is None else tf.convert_to_tensor(each) for each in gradients)]

    def _summed(self, gradients: list[Any], loss: tf.Tensor) -> tuple[list[Any], tf.Tensor]:
        """Return the sums over all replicas of `gradients` and `loss`.

        They travel in few parcels. The last layers' gradients, known first, go first.
        """
        known = [(i, each) for i, each in enumerate(gradients) if each is not None]
        sums, parcel, size = list(gradients), [(-1, loss)], 0
        total = loss
        for i, each in reversed(known):
            parcel.append((i, each))
            size += each.shape.num_elements() * 4
            if size < PARCEL_BYTES and i != known[0][0]:
                continue
            for (number, _), value in zip(parcel, self._sum([each for _, each in parcel]), strict=True):
                if number < 0:
                    total = value
                else:
                    sums[number] = value
            parcel, size = [], 0
        return sums, total

    def _replica_sums(self, batch: Batch) -> tf.Tensor:
        """Return float32 (3,): loss, metric and weight summed over this replica's examples."""
        features, labels, weights = batch
        outputs = self.model(features, training=False)
        loss = tf.reduce_sum(weights * self.objective.eval_loss(outputs, labels))
        metric = tf.reduce_sum(weights * self.objective.metric(outputs, labels))
        return tf.stack([loss, metric, tf.reduce_sum(weights)])


def _held(shape: tuple[int, ...]) -> tf.Variable:
    """Return a variable of zeros of which each replica has its own."""
    on_read = tf.VariableSynchronization.ON_READ
    return tf.Variable(
        tf.zeros(shape), trainable=False, synchronization=on_read, aggregation=tf.VariableAggregation.SUM
    )
