"""The JAX engine: one program over all devices of a gang, partitioned by JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh
from jaxlib.version import __version__ as jaxlib_version

from trainyard.contract.artifacts.train import Device
from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec.hardware.pools import ENGINE_VARIABLE
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Train
from trainyard.steps.train.engines import probe
from trainyard.steps.train.engines.jax.jax_steps import AXIS, JaxSteps
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import optimizer
from trainyard.steps.train.engines.phases import phases
from trainyard.steps.train.engines.resizing import Resizing
from trainyard.steps.train.engines.teacher import TeacherModel
from trainyard.steps.train.expected_devices import devices_error, expected_devices, visible_devices
from trainyard.steps.train.peers import handshake
from trainyard.steps.train.peers.settings import current_rank, gang_addresses

# Prefixes of the errors that a lost worker causes: TensorFlow's statuses, and UNKNOWN with gloo.
_PEER_ERRORS = (
    "UNAVAILABLE",
    "INTERNAL",
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "UNKNOWN",
)
# JAX's name of a platform, if it is not the kind of its devices.
_PLATFORMS = {"gpu": "cuda"}
# Chosen: edge of the random tile of the probe's matrix, the size of a CPU's matrix.
_TILE = 512


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
            bind = chief if handshake.is_loopback(chief.rpartition(":")[0]) else None
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
        return probe.report(devices, self.versions())

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

    def is_peer_loss(self, error: Exception) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith(_PEER_ERRORS)


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
    edge, size = probe.SIZES[kind]
    # Drawn by NumPy because JAX would compile. Scaled so that repeated products neither grow nor vanish.
    tile = np.random.default_rng(1).normal(0, _TILE**0.5 / edge, (_TILE, _TILE)).astype(_native_precision())
    with jax.default_device(device):
        matrix = jnp.asarray(np.tile(tile, (edge // _TILE, edge // _TILE)))
        products = probe.calls_per_second(jax.jit(lambda x: matrix @ x), matrix, jax.block_until_ready)
        copies = probe.calls_per_second(jax.jit(lambda x: x + 1.0), jnp.zeros(size // 4), jax.block_until_ready)
    # JAX's limit is the share of a GPU's memory that it takes at its start.
    gpus = (visible_devices("gpu").gpus or []) if kind == "GPU" else []
    number = device.local_hardware_id or 0
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    memory = gpus[number].memory_bytes if number < len(gpus) else limit
    return probe.device_record(name, kind if kind == "CPU" else device.device_kind, memory, products, copies)
