"""The JAX engine: one program over all devices of a gang, partitioned by JAX.

Its compiled work is one training step a call, and one batch of the eval split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.version import __version__ as jaxlib_version

from trainyard.contract.artifacts.train import Device
from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.spec.hardware.pools import ENGINE_VARIABLE
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Train
from trainyard.steps.train.devices import (
    SIZES,
    calls_per_second,
    device_record,
    devices_error,
    expected_devices,
    report,
    visible_devices,
)
from trainyard.steps.train.engines.objective import Objective, eval_sums
from trainyard.steps.train.engines.optimizer import RateSchedule, optimizer, phases
from trainyard.steps.train.engines.pushed_models import TeacherModel
from trainyard.steps.train.engines.resizing import Resizing
from trainyard.steps.train.engines.steps import LOSS_SUM, SCALE, STEP, Steps
from trainyard.steps.train.input import on_device
from trainyard.steps.train.peers import channel
from trainyard.steps.train.peers.settings import current_rank, gang_addresses

# JAX's name of a platform, if it is not the kind of its devices.
_PLATFORMS = {"gpu": "cuda"}
# Chosen: edge of the random tile of the probe's matrix, the size of a CPU's matrix.
_TILE = 512
# Chosen: batches on the devices that no step has asked for yet: one to compute after a call, while the other comes.
_AHEAD = 2
AXIS = "batch"
"""The mesh axis over which the rows of a batch are sharded; everything else is replicated."""

State = dict[str, jax.Array]
_Batch = tuple[dict[str, jax.Array], jax.Array, jax.Array]


class JaxEngine:
    """Trains on TPU slices of several hosts, on chips without a TensorFlow build, on the GPUs of one process if the
    pool uses the JAX image, and on CPUs in tests.

    Every process sees all devices of the gang, so batch statistics, dropout and gradients are those of the global batch
    without code of ours.
    """

    replicas = 1

    def check(self) -> None:
        """Raise `ConfigurationError` if a gang expects GPUs. JAX lists devices by starting them: see `join`."""
        expected, workers = expected_devices(), current_rank().workers
        if expected is not None and expected.kind == "gpu" and workers > 1:
            raise _several_workers(workers)

    def join(self) -> None:
        """Start the devices; the gang's chief is JAX's coordinator, at its address in TF_CONFIG.

        Raises `InfrastructureError` if they are not the expected ones, and `ConfigurationError` for a gang on GPUs.
        """
        rank, expected = current_rank(), expected_devices()
        # TensorFlow reads the examples on the CPU; it would take the memory of a GPU at the first operation.
        tf.config.set_visible_devices([], "GPU")
        if expected is not None:
            # By default JAX would use the CPU if a device does not start; it requires all of a list and uses the first.
            jax.config.update("jax_platforms", f"{_PLATFORMS.get(expected.kind, expected.kind)},cpu")
        if rank.workers > 1:
            # For CPUs; TPUs use their own links. The preemption service would take SIGTERM from the loop.
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.config.update("jax_enable_preemption_service", False)
            chief = gang_addresses()[0]
            # By default the coordinator would listen on every interface.
            bind = chief if channel.is_loopback(chief.rpartition(":")[0]) else None
            jax.distributed.initialize(
                chief, rank.workers, rank.index, cluster_detection_method="deactivate", coordinator_bind_address=bind
            )
        try:
            devices = jax.local_devices()
        except RuntimeError as error:
            if expected is None:
                raise
            text = str(error).partition("\n")[0]
            raise devices_error(expected, f"JAX {jax.__version__} could not start them ({text})") from error
        platform, count = devices[0].platform, len(devices)
        if platform == "gpu" and rank.workers > 1:  # without expected devices: each process would take the same GPUs
            raise _several_workers(rank.workers)
        # JAX without CUDA's plugin uses the CPU. A TPU chip has one or two cores.
        if expected is not None and (
            platform != expected.kind or (count != expected.count if platform == "gpu" else count % expected.count)
        ):
            raise devices_error(expected, f"JAX {jax.__version__} lists {platform.upper()}: {count}")
        if jax.process_index() != rank.index or jax.process_count() != rank.workers:
            raise InfrastructureError(
                f"devices: this is worker {rank.index} of {rank.workers}, and its devices are those of process "
                f"{jax.process_index()} of {jax.process_count()}. TPU_WORKER_ID and TPU_WORKER_HOSTNAMES come from "
                "GKE, in the order of the Job's indices: look at the pod."
            )
        if rank.workers > 1 and platform == "cpu":
            # Gloo's first connection fails if a worker comes 30 s after another, as one that reads its data may.
            multihost_utils.sync_global_devices("join")
        self.replicas = jax.device_count()

    def leave(self) -> None:
        """Wait for the other workers: a worker whose coordinator has left would abort."""
        if current_rank().workers > 1:
            jax.distributed.shutdown()

    def devices(self) -> list[str]:
        return [f"{device.platform.upper()}:{number}" for number, device in enumerate(_local_devices())]

    def hardware(self) -> str:
        expected, device = expected_devices(), _local_devices()[0]
        if expected is not None and device.platform == "tpu":
            return expected.accelerator
        return "CPU" if device.platform == "cpu" else device.device_kind

    def precision(self, train: Train) -> str:
        """Return the recipe's precision, by default bfloat16 on a TPU and on a GPU of compute capability 8 or more.

        Raises `ConfigurationError` for float16, and for batch statistics by worker.
        """
        if train.batch_statistics == "worker":
            raise ConfigurationError(
                "train.batch_statistics: JAX does not support worker, because its devices share a batch. Leave it out."
            )
        if train.precision == "float16":
            raise ConfigurationError(
                "train.precision: float16 needs loss scaling, which is not supported with JAX. Use bfloat16 or float32."
            )
        return _native_precision() if train.precision == "auto" else train.precision

    def probe(self) -> list[Device]:
        devices = [_measure_device(name, device) for name, device in zip(self.devices(), _local_devices(), strict=True)]
        return report(devices, self.versions())

    def versions(self) -> dict[str, str]:
        """Return the versions of JAX, its platform, a GPU's driver, and TensorFlow, which reads the examples."""
        versions = {"jax": jax.__version__, "jaxlib": jaxlib_version, "tensorflow": tf.version.VERSION}
        device = jax.local_devices()[0]
        versions["platform"] = device.client.platform_version.partition("\n")[0]
        return versions | ({"driver": visible_devices("gpu").driver} if device.platform == "gpu" else {})

    def steps(
        self,
        build: Callable[[], keras.Model],
        recipe: Recipe,
        steps_per_epoch: int,
        objective: Objective,
        precision: str,
        load_teacher: Callable[[], TeacherModel | None],
    ) -> JaxSteps:
        del precision  # only float16 would change the optimizer, and it is refused
        model, train = build(), recipe.train
        parts = phases(model, recipe, steps_per_epoch, partial(optimizer, train, float16=False))
        # Worker by worker, as `LocalReplicas` counts them.
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        mesh = Mesh(np.array(devices), (AXIS,))
        resizing = Resizing(model, train.progressive_resizing, steps_per_epoch)
        return JaxSteps(model, parts, resizing, objective, load_teacher(), train, mesh)

    def status(self, error: Exception) -> str:
        return str(error).partition(":")[0] if isinstance(error, jax.errors.JaxRuntimeError) else ""


class _Device(Protocol):
    """The members of jax.Device that are used; JAX 0.10 publishes no types for it."""

    platform: str
    device_kind: str
    local_hardware_id: int | None

    def memory_stats(self) -> dict[str, int] | None: ...
    def __hash__(self) -> int: ...


def _local_devices() -> list[_Device]:
    devices: list[_Device] = jax.local_devices()
    return devices


def _native_precision() -> str:
    device = _local_devices()[0]
    if device.platform == "gpu":  # before 8 it computes mixed only in float16, which is refused
        return "bfloat16" if float(getattr(device, "compute_capability", 0)) >= 8 else "float32"
    return "bfloat16" if device.platform == "tpu" else "float32"


def _several_workers(workers: int) -> ConfigurationError:
    return ConfigurationError(
        f"{ENGINE_VARIABLE}: JAX trains on the GPUs of one worker, and this gang has {workers}. "
        "Give one worker, or leave the variable (engine of the pool) out."
    )


@cache  # a process that trains again has the same devices
def _measure_device(name: str, device: _Device) -> Device:
    """Return the measured record of a device."""
    kind = name.partition(":")[0]
    edge, size = SIZES[kind]
    # Drawn by NumPy because JAX would compile. Scaled so that repeated products neither grow nor vanish.
    tile = np.random.default_rng(1).normal(0, _TILE**0.5 / edge, (_TILE, _TILE)).astype(_native_precision())
    with jax.default_device(device):
        matrix = jnp.asarray(np.tile(tile, (edge // _TILE, edge // _TILE)))
        products = calls_per_second(jax.jit(lambda x: matrix @ x), matrix, jax.block_until_ready)
        copies = calls_per_second(jax.jit(lambda x: x + 1.0), jnp.zeros(size // 4), jax.block_until_ready)
    # JAX's limit is the share of a GPU's memory that it takes at its start.
    gpus = (visible_devices("gpu").gpus or []) if kind == "GPU" else []
    number = device.local_hardware_id or 0
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    memory = gpus[number].memory_bytes if number < len(gpus) else limit
    return device_record(name, kind if kind == "CPU" else device.device_kind, memory, products, copies)


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
        """Return `totals`, float32 (n,), plus `objective.eval_sums` of the batch."""
        features, labels, weights = batch
        trained, layer_state = ([state[name] for name in names] for names in (self._trainable, self._non_trainable))
        outputs, _ = self.model.stateless_call(trained, layer_state, on_device.as_floats(features), training=False)
        return totals + eval_sums(self.objective, outputs, labels, weights)


@dataclass(frozen=True)
class _Batches:
    """The elements of a tf.data.Dataset, one a local replica, as this process's rows of global arrays.

    A thread transfers them to the devices before a step asks for them, so that no step waits for a copy.
    """

    dataset: Any
    rows: NamedSharding

    def __iter__(self) -> Iterator[_Batch]:
        elements = self.dataset.as_numpy_iterator()
        batches = map(self._place, zip(*[elements] * jax.local_device_count(), strict=False))
        thread = ThreadPoolExecutor(1, "batches")
        try:
            ahead = deque(thread.submit(next, batches, None) for _ in range(_AHEAD))
            while batch := ahead.popleft().result():
                ahead.append(thread.submit(next, batches, None))
                yield batch
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _place(self, elements: Sequence[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]]) -> _Batch:
        """Return (features, labels, weights) of each local replica as a batch on the devices."""
        features, labels, weights = zip(*elements, strict=True)
        return (
            {name: self._shard([each[name] for each in features], name) for name in features[0]},
            self._shard(labels, "label"),
            self._shard(weights, "weight"),
        )

    def _shard(self, parts: Sequence[np.ndarray], name: str) -> jax.Array:
        """Return `parts`, (rows, …) of each local replica, as rows of the global batch."""
        devices = self.rows.mesh.local_mesh.devices.flat
        placed = [jax.device_put(narrow(part, name), device) for part, device in zip(parts, devices, strict=True)]
        rows, *rest = parts[0].shape
        return jax.make_array_from_single_device_arrays((rows * self.rows.mesh.size, *rest), self.rows, placed)


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Return int64 `values` as int32, which JAX has, and others unchanged. Raises `DataError` if one does not fit."""
    if values.dtype != np.int64:
        return values
    narrowed = values.astype(np.int32)
    if (wrong := values[narrowed != values]).size:
        raise DataError(
            f"'{name}': JAX has integers of 32 bits, which do not hold {wrong[0]}. -2147483648 to 2147483647 are "
            "allowed. Map it to smaller numbers in preprocessing_fn, or train with TensorFlow."
        )
    return narrowed


def _rate(schedule: RateSchedule, step: keras.KerasTensor, scale: jax.Array) -> keras.KerasTensor:
    """Return the learning rate of step `step` of `schedule`, with `scale` as an argument instead of a constant."""
    with keras.StatelessScope(state_mapping=[(schedule.scale, scale)]):
        return schedule(step)
