"""The TensorFlow engine: tf.distribute over the listed devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import keras
import tensorflow as tf

from trainyard.contract.artifacts.train import Device
from trainyard.errors import PeerLost
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Train
from trainyard.steps.train.engines import probe
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import optimizer
from trainyard.steps.train.engines.phases import phases
from trainyard.steps.train.engines.resizing import Resizing
from trainyard.steps.train.engines.teacher import TeacherModel
from trainyard.steps.train.engines.tensorflow import strategy
from trainyard.steps.train.engines.tensorflow.replicas import AllReduce, synchronize_layers
from trainyard.steps.train.engines.tensorflow.steps import TensorFlowSteps
from trainyard.steps.train.expected_devices import devices_error, expected_devices, visible_devices

# Errors of TensorFlow if another worker is lost (seen: Unavailable, Internal, Aborted, Cancelled).
_PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.InternalError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
)


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
        return probe.report([_measure_device(name, details) for name in strategy.devices()], self.versions())

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

    def is_peer_loss(self, error: Exception) -> bool:
        """Return True if `error`, raised in training, means that another worker is lost."""
        ring_lost = isinstance(error, tf.errors.UnknownError) and PeerLost.__name__ in error.message
        return ring_lost or isinstance(error, _PEER_ERRORS)


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
    return probe.device_record(name, *details.get(name, (name.partition(":")[0], 0)), *_calls_per_second(name))


@cache  # a process that trains again has the same devices
def _calls_per_second(name: str) -> tuple[float, float]:
    """Return the products and copies a second of a device."""
    edge, size = probe.SIZES[name.partition(":")[0]]
    with tf.device(name):
        matrix = tf.cast(tf.random.stateless_normal((edge, edge), (1, 2)) / edge**0.5, _native_precision())
        vector = tf.zeros(size // 4, tf.float32)
        products = probe.calls_per_second(lambda x: tf.matmul(matrix, x), matrix, _wait)
        copies = probe.calls_per_second(lambda x: x + 1.0, vector, _wait)
    return products, copies


def _wait(value: tf.Tensor) -> None:
    tf.reshape(value, [-1])[0].numpy()
