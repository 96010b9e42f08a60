"""The TensorFlow engine: tf.distribute over the listed devices.

Its compiled work is several training steps a call, and one pass over the eval split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.train import Device
from trainyard.data.examples import Tensors
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
from trainyard.steps.train.engines import strategy
from trainyard.steps.train.engines.objective import Objective, eval_sums
from trainyard.steps.train.engines.optimizer import optimizer, phases
from trainyard.steps.train.engines.peer_loss import PEER_STATUSES
from trainyard.steps.train.engines.pushed_models import TeacherModel
from trainyard.steps.train.engines.resizing import Resizing
from trainyard.steps.train.engines.steps import LOSS_SUM, STEP, Steps
from trainyard.steps.train.engines.strategy import AllReduce, synchronize_layers
from trainyard.steps.train.input import on_device
from trainyard.steps.train.input.input import Batch

_STATUSES = {getattr(tf.errors, status): status for status in PEER_STATUSES}
GRADIENT_BUCKET_BYTES = 4 << 20
"""Chosen: size up to which gradients are collected for an all-reduce."""


class TensorFlowEngine:
    """Trains on all devices except slices of several hosts and chips without a TensorFlow build.

    replicas: the devices of all workers, once they have joined.
    """

    replicas = 1
    devices = staticmethod(strategy.devices)

    def check(self) -> None:
        """Raise `InfrastructureError` if TensorFlow does not list the expected devices.

        Call it before a strategy is created: it starts no device.
        """
        expected = expected_devices()
        if expected is None or expected.kind == "tpu":  # TensorFlow lists TPUs only after their start
            return
        devices = tf.config.list_physical_devices(expected.kind.upper())
        if len(devices) != expected.count:
            raise devices_error(expected, f"TensorFlow {tf.version.VERSION} lists {len(devices)}")

    def join(self) -> None:
        """Start the devices and join the gang's other workers, without a deadline.

        Raises `InfrastructureError` if the expected devices cannot be started.
        """
        self.strategy = strategy.create_strategy()
        self.replicas = self.strategy.num_replicas_in_sync

    def leave(self) -> None:
        """Do nothing: finished workers wait to be stopped, because TensorFlow treats a worker that leaves as lost."""

    def hardware(self) -> str:
        """Return the product name of a training device, such as NVIDIA L4, or CPU."""
        expected = expected_devices()
        if expected is not None and expected.kind == "tpu":
            return expected.accelerator
        gpus = tf.config.list_physical_devices("GPU")
        return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else "CPU"

    def precision(self, train: Train) -> str:
        """Return float32, bfloat16 or float16: the recipe's precision, or the device's fastest suitable one.

        auto: bfloat16 on a TPU and on a GPU of compute capability 8 or more, float16 on an older GPU, float32 on a CPU,
        where bfloat16 measured slower without AMX and gains little on small networks with it.
        """
        return _native_precision() if train.precision == "auto" else train.precision

    def probe(self) -> list[Device]:
        """Return and emit the measured compute and memory speed of each device of this process.

        Call it in the training process. TFLOP/s are of a matrix product (float32 on a CPU, otherwise bfloat16 or
        float16), GB/s of reading and writing.
        """
        details = _gpu_details()
        return report([_measure_device(name, details) for name in strategy.devices()], self.versions())

    def versions(self) -> dict[str, str]:
        """Return the versions of TensorFlow, of CUDA and cuDNN, and of the driver."""
        build = tf.sysconfig.get_build_info()
        versions = {"tensorflow": tf.version.VERSION, "driver": visible_devices("gpu").driver}
        if tf.config.list_physical_devices("GPU"):
            versions |= {"cuda": str(build.get("cuda_version", "")), "cudnn": str(build.get("cudnn_version", ""))}
        return {name: value for name, value in versions.items() if value}

    def steps(
        self,
        build: Callable[[], keras.Model],
        recipe: Recipe,
        steps_per_epoch: int,
        objective: Objective,
        precision: str,
        load_teacher: Callable[[], TeacherModel | None],
    ) -> TensorFlowSteps:
        """Return the steps of the model that `build` returns, with initial weights, before anything is traced."""
        all_reduce, train = AllReduce(self.strategy), recipe.train
        xla = train.xla and not tf.config.list_logical_devices("TPU")
        with self.strategy.scope():
            model = build()
            replicated, own = self.replicas > 1, train.batch_statistics == "worker"
            apart = synchronize_layers(model, all_reduce, xla, own) if replicated else []
            make = partial(optimizer, train, float16=precision == "float16", gradients_summed=replicated)
            parts = phases(model, recipe, steps_per_epoch, make)
            resizing = Resizing(model, train.progressive_resizing, steps_per_epoch)
            return TensorFlowSteps(
                model, parts, resizing, objective, load_teacher(), train, self.strategy, all_reduce, xla, apart
            )

    def status(self, error: Exception) -> str:
        """Return the status of an error of the framework if it is one of `PEER_STATUSES`, otherwise another text."""
        return _STATUSES.get(error.error_code, "") if isinstance(error, tf.errors.OpError) else ""


def _native_precision() -> str:
    if tf.config.list_logical_devices("TPU"):
        return "bfloat16"
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "float32"
    major, _ = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", (0, 0))
    return "bfloat16" if major >= 8 else "float16"


def _gpu_details() -> dict[str, tuple[str, int]]:
    """Return product name and memory of each GPU by device name."""
    gpus = visible_devices("gpu").gpus or []
    details = {}
    for index, device in enumerate(tf.config.list_physical_devices("GPU")):
        name = tf.config.experimental.get_device_details(device).get("device_name", "GPU")
        details[f"GPU:{index}"] = (str(name), gpus[index].memory_bytes if index < len(gpus) else 0)
    return details


def _measure_device(name: str, details: dict[str, tuple[str, int]]) -> Device:
    return device_record(name, *details.get(name, (name.partition(":")[0], 0)), *_calls_per_second(name))


@cache  # a process that trains again has the same devices
def _calls_per_second(name: str) -> tuple[float, float]:
    """Return the products and copies a second of a device."""
    edge, size = SIZES[name.partition(":")[0]]
    with tf.device(name):
        matrix = tf.cast(tf.random.stateless_normal((edge, edge), (1, 2)) / edge**0.5, _native_precision())
        vector = tf.zeros(size // 4, tf.float32)
        products = calls_per_second(lambda x: tf.matmul(matrix, x), matrix, _wait)
        copies = calls_per_second(lambda x: x + 1.0, vector, _wait)
    return products, copies


def _wait(value: tf.Tensor) -> None:
    tf.reshape(value, [-1])[0].numpy()


@dataclass(eq=False)
class TensorFlowSteps(Steps):
    """Model, optimizers and the loop's variables on the devices of a strategy.

    xla: compile loss and gradients; they must contain no all-reduce. apart: normalization layers with separate moving
    averages on each replica, which each step averages.
    """

    strategy: tf.distribute.Strategy
    all_reduce_vectors: AllReduce
    xla: bool
    apart: Sequence[keras.layers.BatchNormalization]

    def __post_init__(self) -> None:
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._known_step: int | None = None  # a read of a variable on several replicas takes milliseconds
        self._loss_sum = tf.Variable(0.0, dtype=tf.float32, trainable=False)
        self._loss_and_gradients = (
            tf.function(self._replica_loss_and_gradients, autograph=False, jit_compile=True)
            if self.xla
            else self._replica_loss_and_gradients
        )
        # Each replica's sums over all micro-batches but a step's last: the loss as "", the gradients by name.
        shapes = {"": (), **{variable.path: variable.shape for variable in self.phases.variables}}
        accumulated = shapes if self.settings.accumulation_steps > 1 else {}
        self._accumulator_by_path = {path: _accumulator(shape) for path, shape in accumulated.items()}

    @property
    def step(self) -> int:
        if self._known_step is None:
            self._known_step = int(self._step.numpy())
        return self._known_step

    @property
    def loss_sum(self) -> float:
        return float(self._loss_sum.numpy())

    @loss_sum.setter
    def loss_sum(self, value: float) -> None:
        self._loss_sum.assign(value)

    @property
    def scale(self) -> float:
        return float(self.phases.scale.numpy())

    @scale.setter
    def scale(self, value: float) -> None:
        self.phases.scale.assign(value)

    @property
    def learning_rate(self) -> float:
        return float(self.phases.at(self.step).optimizer.learning_rate)

    @property
    def all_reduced_seconds(self) -> float | None:
        return self.all_reduce_vectors.seconds

    def distributed(self, dataset: tf.data.Dataset[Batch]) -> Iterable[Batch]:
        if strategy.devices() == ["CPU:0"]:
            return dataset  # nothing to copy; an iterator over devices would be traced again for every pass
        distributed: Iterable[Batch] = self.strategy.distribute_datasets_from_function(lambda _: dataset)
        return distributed

    def train(self, batches: Any, count: int, worker_values: Sequence[float]) -> list[float]:
        phase = self.enter_phase()
        self._known_step = None
        try:
            mean = self._train(batches, tf.constant(count, tf.int64), tf.constant(worker_values, tf.float32), phase)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(error.message.splitlines()[0]) from error
        return np.asarray(mean).tolist()

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        return np.asarray(self._evaluate(batches, tf.constant(count, tf.int64), tf.constant(totals)))

    def mean(self, worker_values: Sequence[float]) -> list[float]:
        return np.asarray(self._mean(tf.constant(worker_values, tf.float32))).tolist()

    def all_reduce(self, count: int) -> None:
        self._all_reduce(tf.zeros((self.gradient_bytes // 4,)), tf.constant(count, tf.int64))

    @tf.function(autograph=False)
    def _train(self, iterator: Any, count: tf.Tensor, worker_values: tf.Tensor, phase: int) -> tf.Tensor:
        """Take `count` (int64 scalar) steps and return the means of all workers' `worker_values`, float32 (n,).

        phase: the number of the current phase; each has its own graph.
        """

        def accumulate(number: tf.Tensor) -> tf.Tensor:
            self.strategy.run(self._accumulate, args=(next(iterator), phase))
            return number

        def step(_: tf.Tensor) -> tf.Tensor:
            if self.settings.accumulation_steps > 1:
                _repeat(accumulate, tf.constant(self.settings.accumulation_steps - 1, tf.int64), tf.constant(0))
            losses = self.strategy.run(self._replica_step, args=(next(iterator), phase))
            # Every replica has the gang's loss.
            self._loss_sum.assign_add(self.strategy.experimental_local_results(losses)[0])
            self._step.assign_add(1)
            return tf.identity(self._step)

        # After the steps: all workers must call a ring's all-reduce in one order.
        with tf.control_dependencies([_repeat(step, count, tf.identity(self._step))]):
            return self._mean(tf.identity(worker_values))

    @tf.function(autograph=False)
    def _all_reduce(self, vector: tf.Tensor, count: tf.Tensor) -> None:
        def all_reduce(vector: tf.Tensor) -> tf.Tensor:
            self.strategy.run(self.all_reduce_vectors, args=([vector],))
            return vector

        _repeat(all_reduce, count, vector)

    @tf.function(autograph=False)
    def _mean(self, worker_values: tf.Tensor) -> tf.Tensor:
        if self.strategy.num_replicas_in_sync == 1:
            return worker_values
        (sums,) = self.strategy.run(self.all_reduce_vectors, args=([worker_values],))
        return self.strategy.experimental_local_results(sums)[0] / self.strategy.num_replicas_in_sync

    @tf.function(autograph=False)
    def _evaluate(self, iterator: Any, count: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        def add(totals: tf.Tensor) -> tf.Tensor:
            sums = self.strategy.run(self._replica_sums, args=(next(iterator),))
            return totals + self.strategy.reduce("SUM", sums, axis=None)

        return _repeat(add, count, totals)

    def arrays(self) -> dict[str, np.ndarray]:
        # No copy: TensorFlow allocates new memory for a variable whose value is in use.
        values = {name: tf.convert_to_tensor(variable) for name, variable in self._variables().items()}
        return {name: np.asarray(memoryview(value)) for name, value in values.items()}

    def not_finite(self) -> str | None:
        if strategy.devices()[0].startswith("CPU"):  # nothing to copy; a trace costs more than many such passes
            fine = [bool(np.isfinite(value).all()) for value in self.arrays().values()]
        else:
            fine = self._finite().numpy()
        return next((name for name, finite in zip(self._variables(), fine, strict=True) if not finite), None)

    @tf.function(autograph=False)
    def _finite(self) -> tf.Tensor:
        """Return bool (variables,): True for each finite variable, in the order of `_variables`."""
        values = [tf.convert_to_tensor(variable) for variable in self._variables().values()]
        return tf.stack(
            [
                tf.reduce_all(tf.math.is_finite(value)) if value.dtype.is_floating else tf.constant(True)
                for value in values
            ]
        )

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._known_step = None
        for name, variable in self._variables().items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, Any]:
        return self.named_variables() | {STEP: self._step, LOSS_SUM: self._loss_sum}

    @property
    def _accumulators(self) -> list[tf.Variable]:
        """The gradient accumulators of the current phase, the loss first; empty without gradient accumulation."""
        paths = ["", *(variable.path for variable in self.phases.current.variables)]
        return [self._accumulator_by_path[path] for path in paths] if self._accumulator_by_path else []

    def _replica_step(self, batch: Batch, phase: int) -> tf.Tensor:
        """Apply one update after a step's last micro-batch and return the gang's loss."""
        loss, gradients = self._loss_and_gradients(batch, phase)
        if accumulators := self._accumulators:
            loss = loss + accumulators[0]
            gradients = [
                None if value is None else value + accumulator
                for accumulator, value in zip(accumulators[1:], gradients, strict=True)
            ]
            for accumulator in accumulators:
                accumulator.assign(tf.zeros(accumulator.shape))
        if self.strategy.num_replicas_in_sync > 1:
            gradients, loss = self._all_reduced_gradients(gradients, loss)
        current = self.phases.current
        current.optimizer.apply_gradients(zip(gradients, current.variables, strict=True))
        return loss

    def _accumulate(self, batch: Batch, phase: int) -> None:
        """Add loss and gradients of a micro-batch to the accumulators."""
        loss, gradients = self._loss_and_gradients(batch, phase)
        for accumulator, value in zip(self._accumulators, [loss, *gradients], strict=True):
            if value is not None:
                accumulator.assign_add(value)

    def _replica_loss_and_gradients(self, batch: Batch, phase: int) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        """Return this replica's part of a micro-batch's loss and gradients; None for a variable without gradient.

        The weights include the division by the global batch, so the parts add up to the global batch's values.
        """
        del phase  # only a key: XLA compiles one function for each phase
        features, labels, weights = batch
        features = on_device.augment(features, self.settings.augment)
        optimizer, variables = self.phases.current.optimizer, self.phases.current.variables
        model = self.resizing.model()
        # Frozen weights are not watched, so that no gradients are computed below the head of a frozen backbone.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            outputs = model(self.resizing.resize_images(features), training=True)
            loss = tf.reduce_sum(weights * self._train_loss(features, outputs, labels))
            if model.losses:
                loss += tf.add_n(model.losses) / (self.strategy.num_replicas_in_sync * self.settings.accumulation_steps)
            scaled = optimizer.scale_loss(loss)
        # An embedding's gradient comes as slices, whose norm is wrong for repeated ids.
        gradients = tape.gradient(scaled, variables)
        return loss, [None if value is None else tf.convert_to_tensor(value) for value in gradients]

    def _train_loss(self, features: Tensors, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self.teacher is None:
            return self.objective.train_loss(outputs, labels)
        return self.teacher.loss(self.objective, outputs, labels, self.teacher.model(features, training=False))

    def _all_reduced_gradients(
        self, gradients: list[tf.Tensor | None], loss: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return the sums of `gradients` and `loss` over all replicas.

        They are sent in a few buckets: first the last layers' gradients, which are known first, with the moving
        averages.
        """
        present = [(i, gradient) for i, gradient in enumerate(gradients) if gradient is not None]
        averages = self._averages_apart()
        sums, size = list(gradients), 0
        extras = [loss, *(tf.identity(average) for average in averages)]
        bucket = [(-1 - number, value) for number, value in enumerate(extras)]
        for i, gradient in reversed(present):
            bucket.append((i, gradient))
            size += gradient.shape.num_elements() * 4
            if size < GRADIENT_BUCKET_BYTES and i != present[0][0]:
                continue
            reduced = self.all_reduce_vectors([vector for _, vector in bucket])
            for (number, _), value in zip(bucket, reduced, strict=True):
                if number < 0:
                    extras[-1 - number] = value
                else:
                    sums[number] = value
            bucket, size = [], 0
        for average, total in zip(averages, extras[1:], strict=True):
            average.assign(total / self.strategy.num_replicas_in_sync)
        return sums, extras[0]

    def _averages_apart(self) -> list[tf.Variable]:
        """Return this replica's copies of the moving averages that differ between replicas."""
        learning = [layer for layer in self.apart if layer.trainable]
        return [average.value._get() for layer in learning for average in (layer.moving_mean, layer.moving_variance)]

    def _replica_sums(self, batch: Batch) -> tf.Tensor:
        """Return float32 (4,): loss, metric, top-5 hits and weight summed over this replica's examples."""
        features, labels, weights = batch
        outputs = self.model(on_device.as_floats(features), training=False)
        return eval_sums(self.objective, outputs, labels, weights)


def _repeat(body: Callable[[tf.Tensor], tf.Tensor], times: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return `value` after `times` (int64 scalar) calls of `body`, in a graph loop.

    AutoGraph would create the loop from Python, at 0.2 s of CPU for each process start.
    """
    start = (tf.constant(0, tf.int64), value)
    return tf.while_loop(lambda done, _: done < times, lambda done, value: (done + 1, body(value)), start)[1]


def _accumulator(shape: tuple[int, ...]) -> tf.Variable:
    """Return a variable of zeros with a separate value on each replica."""
    on_read = tf.VariableSynchronization.ON_READ
    return tf.Variable(
        tf.zeros(shape), trainable=False, synchronization=on_read, aggregation=tf.VariableAggregation.SUM
    )
