"""JAX's compiled work: one training step over the gang a call, and one batch of the eval split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainyard.steps.train.engines.optimizer import RateSchedule
from trainyard.steps.train.engines.steps import LOSS_SUM, SCALE, STEP, Steps
from trainyard.steps.train.input import on_device

AXIS = "batch"
"""The mesh axis over which the rows of a batch are sharded; everything else is replicated."""

State = dict[str, jax.Array]
_Batch = tuple[dict[str, jax.Array], jax.Array, jax.Array]


@dataclass(eq=False)
class JaxSteps(Steps):
    """Model, optimizer and the loop's variables on the devices of `mesh`, by their names in a checkpoint.

    Keras' variables hold the initial values and what `load` sets. In between, values are arguments and results of a
    pure function, which reuses the memory of its arguments.
    """

    mesh: Mesh
    step = 0

    def __post_init__(self) -> None:
        self._sharded = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        self._variables = self.named_variables()
        self._names = {id(variable): name for name, variable in self._variables.items()}
        self._trainable = self._names_of(self.model.trainable_variables)
        self._non_trainable = self._names_of(self.model.non_trainable_variables)
        self._values: State = {}
        taught = self.teacher.model.non_trainable_variables if self.teacher else []
        # Arguments, because values in a closure become constants of the program.
        self._teacher_values = [self._replicate(np.asarray(variable.value)) for variable in taught]
        # The phase number is static: each phase and each image size has its own program.
        replicated = partial(jax.jit, out_shardings=self._replicated)
        self._compiled_update = replicated(self._apply_update, donate_argnums=(0, 1), static_argnums=3)
        self._compiled_accumulate = replicated(self._accumulate_gradients, donate_argnums=(0, 1), static_argnums=3)
        self._compiled_evaluate = replicated(self._evaluate_batch)
        self._mean = replicated(lambda worker_values: jnp.mean(worker_values, axis=0))
        self._sum = replicated(lambda vectors: jnp.sum(vectors, axis=0))
        self._zeros = jax.jit(
            lambda: jnp.zeros((self.mesh.size, self.gradient_bytes // 4)), out_shardings=self._sharded
        )
        self._finite = replicated(lambda values: jnp.stack([jnp.all(jnp.isfinite(value)) for value in values]))
        # Without jit each of its dozen operations would be a program.
        self._rate = jax.jit(_rate, static_argnums=0)

    @property
    def loss_sum(self) -> float:
        return float(np.asarray(self._state[LOSS_SUM]))

    @loss_sum.setter
    def loss_sum(self, value: float) -> None:
        self._state[LOSS_SUM] = self._replicate(np.float32(value))

    @property
    def scale(self) -> float:
        return float(np.asarray(self._state[SCALE]))

    @scale.setter
    def scale(self, value: float) -> None:
        self.phases.scale.assign(value)
        self._state[SCALE] = self._replicate(np.float32(value))

    @property
    def learning_rate(self) -> float:
        phase = self.phases.at(self.step)
        return float(self._rate(phase.schedule, np.int32(self.step - phase.first_step), np.float32(self.scale)))

    def distributed(self, dataset: Any) -> Iterable[Any]:
        return _Batches(dataset, self._sharded)

    def train(self, batches: Any, count: int, worker_values: Sequence[float]) -> list[float]:
        state, phase = self._state, self.enter_phase()
        try:
            for _ in range(count):
                accumulated: list[jax.Array] = []
                for _ in range(self.settings.accumulation_steps - 1):
                    state, accumulated = self._compiled_accumulate(
                        state, accumulated, next(batches), phase, self._teacher_values
                    )
                state = self._values = self._compiled_update(
                    state, accumulated, next(batches), phase, self._teacher_values
                )
            jax.block_until_ready(state[LOSS_SUM])
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error
        self.step += count
        return self.mean(worker_values)

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        sums = self._replicate(totals)
        for _ in range(count):
            sums = self._compiled_evaluate(self._state, next(batches), sums)
        return np.asarray(sums)

    def mean(self, worker_values: Sequence[float]) -> list[float]:
        if jax.process_count() == 1:
            return list(worker_values)
        own = np.tile(np.asarray(worker_values, np.float32), (jax.local_device_count(), 1))
        mean = self._mean(jax.make_array_from_process_local_data(self._sharded, own))
        return [float(value) for value in np.asarray(mean)]

    def all_reduce(self, count: int) -> None:
        vectors = self._zeros()
        jax.block_until_ready([self._sum(vectors) for _ in range(count)])

    def not_finite(self) -> str | None:
        # In the order of a step's results, because another order would be another program.
        state = sorted(self._state.items())
        floating = {name: value for name, value in state if jnp.issubdtype(value.dtype, jnp.floating)}
        finite = np.asarray(self._finite(list(floating.values())))
        return next((name for name, whether in zip(floating, finite, strict=True) if not whether), None)

    def arrays(self) -> dict[str, np.ndarray]:
        # A copy, because the next step reuses the memory.
        return {name: np.array(value) for name, value in self._state.items()} | {STEP: np.asarray(self.step, np.int64)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable to its value in `arrays`; integer types differ between the engines."""
        for name, variable in self._variables.items():
            variable.assign(arrays[name].astype(variable.dtype))
        self._values = {}
        self.loss_sum = float(arrays[LOSS_SUM])
        self.step = int(arrays[STEP])

    @property
    def _state(self) -> State:
        """The values of the variables, read on first use because a champion's weights are loaded late."""
        if not self._values:
            self._values = {
                name: self._replicate(np.asarray(variable.value)) for name, variable in self._variables.items()
            }
            self._values[LOSS_SUM] = self._replicate(np.float32(0))
        return self._values

    def _replicate(self, value: np.ndarray | np.float32) -> jax.Array:
        """Return `value`, equal on every worker, on all devices of the gang."""
        array = np.asarray(value)
        return jax.make_array_from_callback(array.shape, self._replicated, lambda index: array[index])

    def _names_of(self, variables: Sequence[keras.Variable]) -> list[str]:
        return [self._names[id(variable)] for variable in variables]

    def _apply_update(
        self, state: State, accumulated: list[jax.Array], batch: _Batch, phase: int, teacher: list[jax.Array]
    ) -> State:
        """Return the state after an update by the gradients of the last micro-batch and the `accumulated` ones."""
        now, gradients = self._accumulate_gradients(state, accumulated, batch, phase, teacher)
        current = self.phases.current
        # Not `stateless_apply`: it would turn the schedule's variable into a constant.
        mapping = [(variable, now[name]) for name, variable in self._variables.items()]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            current.optimizer.apply(gradients, current.variables)
        return {**now, **{name: scope.get_current_value(variable) for name, variable in self._variables.items()}}

    def _accumulate_gradients(
        self, state: State, accumulated: list[jax.Array], batch: _Batch, phase: int, teacher: list[jax.Array]
    ) -> tuple[State, list[jax.Array]]:
        """Return the state after one micro-batch, before an update, and its gradients plus the `accumulated` ones.

        The weights include the division by the global batch. Sums over the rows are sums over all replicas, because JAX
        partitions a program for the whole batch. phase: the number of the current phase. teacher: the values of its
        variables.
        """
        del phase
        features, labels, weights = batch
        features = on_device.augment(features, self.settings.augment)
        model, shown = self.resizing.model(), self.resizing.resize_images(features)
        state_names = self._names_of(model.non_trainable_variables)

        def loss_of(trained: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            values = {**state, **dict(zip(names, trained, strict=True))}
            outputs, layer_state, penalties = model.stateless_call(
                [values[name] for name in self._names_of(model.trainable_variables)],
                [state[name] for name in state_names],
                shown,
                training=True,
                return_losses=True,
            )
            loss = jnp.sum(weights * self._train_loss(features, outputs, labels, teacher))
            return loss + sum(penalties) / self.settings.accumulation_steps, layer_state

        names = self._names_of(self.phases.current.variables)
        trained = [state[name] for name in names]
        (loss, layer_state), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        if accumulated:
            gradients = [new + previous for new, previous in zip(gradients, accumulated, strict=True)]
        now = {**state, **dict(zip(state_names, layer_state, strict=True)), LOSS_SUM: state[LOSS_SUM] + loss}
        return now, gradients

    def _train_loss(
        self, features: dict[str, jax.Array], outputs: jax.Array, labels: jax.Array, values: list[jax.Array]
    ) -> jax.Array:
        if self.teacher is None:
            return self.objective.train_loss(outputs, labels)
        answers, _ = self.teacher.model.stateless_call([], values, features, training=False)  # no variable is trainable
        return self.teacher.loss(self.objective, outputs, labels, answers)

    def _evaluate_batch(self, state: State, batch: _Batch, totals: jax.Array) -> jax.Array:
        """Return `totals`, float32 (4,), plus loss, metric, top-5 hits and weight summed over the batch."""
        features, labels, weights = batch
        trained, layer_state = ([state[name] for name in names] for names in (self._trainable, self._non_trainable))
        outputs, _ = self.model.stateless_call(trained, layer_state, on_device.as_floats(features), training=False)
        return totals + self.eval_sums(outputs, labels, weights)


@dataclass(frozen=True)
class _Batches:
    """The elements of a tf.data.Dataset, one a local replica, as this process's rows of global arrays."""

    dataset: Any
    rows: NamedSharding

    def __iter__(self) -> Iterator[_Batch]:
        for features, labels, weights in self.dataset.batch(jax.local_device_count()).as_numpy_iterator():
            yield (
                {name: self._shard(rows) for name, rows in features.items()},
                self._shard(labels),
                self._shard(weights),
            )

    def _shard(self, parts: np.ndarray) -> jax.Array:
        """Return `parts`, (local replicas, rows, …), as rows of the global batch; int64 becomes int32 for JAX."""
        rows = parts.reshape(-1, *parts.shape[2:])
        placed: jax.Array = jax.make_array_from_process_local_data(
            self.rows, rows.astype(np.int32) if rows.dtype == np.int64 else rows
        )
        return placed


def _rate(schedule: RateSchedule, step: keras.KerasTensor, scale: jax.Array) -> keras.KerasTensor:
    """Return the learning rate of step `step` of `schedule`, with `scale` as an argument instead of a constant."""
    with keras.StatelessScope(state_mapping=[(schedule.scale, scale)]):
        return schedule(step)
