"""The training devices."""

from __future__ import annotations

import tensorflow as tf

from trainyard.errors import PeerLost
from trainyard.steps.train.expected_devices import ExpectedDevices, devices_error, expected_devices
from trainyard.steps.train.peers.settings import current_rank


def create_strategy() -> tf.distribute.Strategy:
    """Return the strategy over the gang's devices; waits for every worker, without a deadline.

    Several workers: all-reduce over gRPC in a ring, or over NCCL on GPUs. One worker: mirrored over its GPUs, or over
    logical CPUs if there are several; otherwise one device. Expected TPUs: the cores of this host. Raises
    `InfrastructureError` if TPUs cannot be started, `PeerLost` if this worker's port is taken.
    """
    expected = expected_devices()
    result: tf.distribute.Strategy
    if expected is not None and expected.kind == "tpu":
        return _tpu_strategy(expected)
    gpus = tf.config.list_physical_devices("GPU")
    if current_rank().workers > 1:
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.NCCL if gpus else kinds.RING)
        result = _multi_worker(options)
    elif len(tf.config.list_logical_devices("GPU" if gpus else "CPU")) > 1:
        result = tf.distribute.MirroredStrategy([f"/{name}" for name in devices()])
    else:
        return tf.distribute.get_strategy()
    # The input never ends early; otherwise each step would ask every worker for a remaining batch.
    result.extended.experimental_enable_get_next_as_optional = False
    return result


def _multi_worker(options: tf.distribute.experimental.CommunicationOptions) -> tf.distribute.Strategy:
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except tf.errors.UnknownError as error:
        if "gRPC server" not in error.message:
            raise
        # Another program took the agreed port: the gang starts again with another port.
        raise PeerLost(f"train: TensorFlow could not listen on this worker's port ({error.message}).") from error


def _tpu_strategy(expected: ExpectedDevices) -> tf.distribute.Strategy:
    """Return the strategy over the TPUs of this host, started.

    Source: https://cloud.google.com/tpu/docs/run-calculation-tensorflow (`tpu="local"`).
    """
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect("local")
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise devices_error(expected, f"TensorFlow {tf.version.VERSION} could not start them ({text})") from error
    cores = len(tf.config.list_logical_devices("TPU"))
    if not cores or cores % expected.count:  # one or two cores a chip
        raise devices_error(expected, f"TensorFlow {tf.version.VERSION} lists {cores} cores")
    return tf.distribute.TPUStrategy(resolver)


def devices() -> list[str]:
    """Return the names of the training devices, such as CPU:0."""
    kinds = ("TPU", "GPU", "CPU")
    logical_devices = next(devices for kind in kinds if (devices := tf.config.list_logical_devices(kind)))
    own_task = f"/task:{current_rank().index}/"
    return [d.name.split("/device:")[1] for d in logical_devices if "/task:" not in d.name or own_task in d.name]
