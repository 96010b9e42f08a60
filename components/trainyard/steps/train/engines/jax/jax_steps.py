"""JAX's compiled work: one training step over the whole gang a call, and one batch of the eval split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainyard.steps.train.engines.names import LOSS_SUM, SCALE, STEP, named_variables
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import Schedule

AXIS = "batch"
"""The one axis of the mesh: the rows of a batch are divided over it, and everything else is on all devices."""

State = dict[str, jax.Array]
_Batch = tuple[dict[str, jax.Array], jax.Array, jax.Array]


class JaxSteps:
    """Model, optimizer and the loop's own variables on the devices of `mesh`, by their names in a checkpoint.

    The variables of Keras are their first values, and what `load` sets. In between they are arguments and results of a
    pure function, which takes the memory of the former for the latter.

    slices: elements of the batches that make a step, each a part of its global batch.
    """

    def __init__(
        self,
        mesh: Mesh,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        schedule: Schedule,
        objective: Objective,
        slices: int,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._schedule = schedule
        self._objective = objective
        self._slices = slices
        self._rows = NamedSharding(mesh, PartitionSpec(AXIS))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._variables = {**named_variables(model, optimizer), SCALE: schedule.scale}
        names = {id(variable): name for name, variable in self._variables.items()}
        self._trained = [names[id(variable)] for variable in model.trainable_variables]
        self._others = [names[id(variable)] for variable in model.non_trainable_variables]
        self._made: State = {}
        self.step = 0
        self._advance = jax.jit(self._advanced, donate_argnums=(0, 1), out_shardings=self._everywhere)
        self._add = jax.jit(self._added, donate_argnums=(0, 1), out_shardings=self._everywhere)
        self._sum_up = jax.jit(self._summed_up, out_shardings=self._everywhere)
        self._mean = jax.jit(lambda said: jnp.mean(said, axis=0), out_shardings=self._everywhere)
        self._sum = jax.jit(lambda vectors: jnp.sum(vectors, axis=0), out_shardings=self._everywhere)
        self._zeros = jax.jit(lambda: jnp.zeros((mesh.size, self.gradient_bytes // 4)), out_shardings=self._rows)
        self._finite = jax.jit(_finite, out_shardings=self._everywhere)

    @property
    def loss_sum(self) -> float:
        """The sum of the batches' weighted mean losses since it was set to 0."""
        return float(np.asarray(self._state[LOSS_SUM]))

    @loss_sum.setter
    def loss_sum(self, value: float) -> None:
        self._state[LOSS_SUM] = self._put(np.float32(value))

    @property
    def scale(self) -> float:
        """What the schedule's learning rate is multiplied by."""
        return float(np.asarray(self._state[SCALE]))

    @scale.setter
    def scale(self, value: float) -> None:
        self._schedule.scale.assign(value)
        self._state[SCALE] = self._put(np.float32(value))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._schedule(self.step))

    @property
    def gradient_bytes(self) -> int:
        """Bytes that each replica sends and receives the sum of, each step."""
        return sum(4 * math.prod(variable.shape) for variable in self.model.trainable_variables)

    def distributed(self, dataset: Any) -> Iterable[Any]:
        """Return the elements of `dataset`, one a local replica, as parts of arrays over the whole gang."""
        return _Batches(dataset, self._rows)

    def train(self, batches: Any, count: int, said: Sequence[float]) -> list[float]:
        """Take `count` steps and return the mean of what all workers `said`."""
        state = self._state
        try:
            for _ in range(count):
                held: list[jax.Array] = []
                for _ in range(self._slices - 1):
                    state, held = self._add(state, held, next(batches))
                state = self._made = self._advance(state, held, next(batches))
            jax.block_until_ready(state[LOSS_SUM])
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error
        self.step += count
        return self.mean(said)

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        """Return `totals` and on top of it loss, metric and weight summed over the next `count` batches."""
        found = self._put(totals)
        for _ in range(count):
            found = self._sum_up(self._state, next(batches), found)
        return np.asarray(found)

    def mean(self, said: Sequence[float]) -> list[float]:
        """Return the mean over the workers of what they `said`."""
        if jax.process_count() == 1:
            return list(said)
        own = np.tile(np.asarray(said, np.float32), (jax.local_device_count(), 1))
        mean = self._mean(jax.make_array_from_process_local_data(self._rows, own))
        return [float(each) for each in np.asarray(mean)]

    def all_reduce(self, count: int) -> None:
        """Sum a vector of the gradients' size over the replicas `count` times."""
        vectors = self._zeros()
        jax.block_until_ready([self._sum(vectors) for _ in range(count)])

    def not_finite(self) -> str | None:
        """Return the name of the first variable that holds NaN or infinity, or None."""
        fine = {name: value for name, value in self._state.items() if jnp.issubdtype(value.dtype, jnp.floating)}
        found = zip(fine, np.asarray(self._finite(list(fine.values()))), strict=True)
        return next((name for name, each in found if not each), None)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a copy of every variable by its name."""
        # A copy, for the next step takes the memory.
        return {name: np.array(value) for name, value in self._state.items()} | {STEP: np.asarray(self.step, np.int64)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable to what `arrays` gave for it; the other engine's seeds and counters have other integers."""
        for name, variable in self._variables.items():
            variable.assign(arrays[name].astype(variable.dtype))
        self._made = {}
        self.loss_sum = float(arrays[LOSS_SUM])
        self.step = int(arrays[STEP])

    @property
    def _state(self) -> State:
        """The variables' values; the first ones only now, for a champion's weights come after the steps were made."""
        if not self._made:
            self._made = {name: self._put(np.asarray(each.value)) for name, each in self._variables.items()}
            self._made[LOSS_SUM] = self._put(np.float32(0))
        return self._made

    def _put(self, value: np.ndarray | np.float32) -> jax.Array:
        """Return `value`, the same on every worker, on all devices of the gang."""
        whole = np.asarray(value)
        return jax.make_array_from_callback(whole.shape, self._everywhere, lambda index: whole[index])

    def _advanced(self, state: State, held: list[jax.Array], batch: _Batch) -> State:
        """Return the state after one update: with the gradients of a step's last slice and of those before, `held`."""
        now, gradients = self._added(state, held, batch)
        # Not `stateless_apply`: it knows nothing of the schedule's variable, which would become a constant.
        mapping = [(variable, now[name]) for name, variable in self._variables.items()]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.optimizer.apply(gradients, self.model.trainable_variables)
        return {**now, **{name: scope.get_current_value(variable) for name, variable in self._variables.items()}}

    def _added(self, state: State, held: list[jax.Array], batch: _Batch) -> tuple[State, list[jax.Array]]:
        """Return the state after one slice, nothing learned yet, and the gradients with those of the slices before.

        The weights carry the division by the global batch. Sums over the rows are sums over all replicas: the program is
        written for the whole batch, and JAX divides it.
        """
        features, labels, weights = batch

        def loss_of(trained: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            outputs, others, penalties = self.model.stateless_call(
                trained, [state[name] for name in self._others], features, training=True, return_losses=True
            )
            loss = jnp.sum(weights * self._objective.train_loss(outputs, labels))
            return loss + sum(penalties) / self._slices, others

        trained = [state[name] for name in self._trained]
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        if held:
            gradients = [each + before for each, before in zip(gradients, held, strict=True)]
        now = {**state, **dict(zip(self._others, others, strict=True)), LOSS_SUM: state[LOSS_SUM] + loss}
        return now, gradients

    def _summed_up(self, state: State, batch: _Batch, totals: jax.Array) -> jax.Array:
        """Return `totals`, float32 (3,), and on top of it loss, metric and weight summed over the batch."""
        features, labels, weights = batch
        trained, others = ([state[name] for name in names] for names in (self._trained, self._others))
        outputs, _ = self.model.stateless_call(trained, others, features, training=False)
        loss = jnp.sum(weights * self._objective.eval_loss(outputs, labels))
        metric = jnp.sum(weights * self._objective.metric(outputs, labels))
        return totals + jnp.stack([loss, metric, jnp.sum(weights)])


@dataclass(frozen=True)
class _Batches:
    """The elements of a tf.data.Dataset, one a local replica, as this process's rows of global arrays."""

    dataset: Any
    rows: NamedSharding

    def __iter__(self) -> Iterator[_Batch]:
        for features, labels, weights in self.dataset.batch(jax.local_device_count()).as_numpy_iterator():
            yield (
                {name: self._placed(each) for name, each in features.items()},
                self._placed(labels),
                self._placed(weights),
            )

    def _placed(self, parts: np.ndarray) -> jax.Array:
        """Return `parts`, (local replicas, rows, …), as rows of the global batch; JAX has no int64."""
        rows = parts.reshape(-1, *parts.shape[2:])
        return jax.make_array_from_process_local_data(
            self.rows, rows.astype(np.int32) if rows.dtype == np.int64 else rows
        )


def _finite(values: list[jax.Array]) -> jax.Array:
    """Return bool (variables,): whether each of `values` is finite."""
    return jnp.stack([jnp.all(jnp.isfinite(value)) for value in values])
