"""The strategy over the training devices, and computation over its replicas: all-reduce, layers of the global batch.

The all-reduce uses a ring of TCP connections on CPUs, otherwise TensorFlow's collectives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from types import MethodType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.errors import ConfigurationError, PeerLost
from trainyard.steps.train.devices import ExpectedDevices, devices_error, expected_devices
from trainyard.steps.train.engines.ring import Ring
from trainyard.steps.train.peers import settings
from trainyard.steps.train.peers.settings import current_rank, gang_addresses

_PORTS = settings.PORT_RANGE - 1  # the ring uses one of the ports behind TensorFlow's


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


class AllReduce:
    """Sums float32 tensors over all replicas, with gradients. Call it in a replica context."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._ring = _connect_ring(strategy)
        self._last: Any = None

    @property
    def seconds(self) -> float | None:
        """Seconds that this worker has spent in all-reduces, None without a ring."""
        return self._ring.seconds if self._ring else None

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of each of `tensors` over the replicas, in one message."""
        # The identity places the argument on the replica's device, which the collective needs.
        local = [tf.identity(tensor) for tensor in tensors]
        ring = self._ring
        if ring is None:
            return _collective_sums(local)

        @tf.custom_gradient
        def ring_sums(*tensors: tf.Tensor) -> Any:
            return self._ring_sums(ring, tensors), lambda *gradients: self._ring_sums(ring, gradients)

        return list(ring_sums(*local))

    def _ring_sums(self, ring: Ring, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sum over the ring after the sum that was traced before, because all workers must sum in one order."""
        graph = tf.compat.v1.get_default_graph()
        previous = [self._last] if self._last is not None and self._last.graph is graph else []
        with tf.control_dependencies(previous):
            flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
            totals = tf.numpy_function(ring.sum, flat, [tf.float32] * len(flat))
        self._last = totals[0].op
        return [_reshape_like(total, tensor) for total, tensor in zip(totals, tensors, strict=True)]


def _collective_sums(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums by TensorFlow's collectives, as one vector if there are several tensors."""
    context = tf.distribute.get_replica_context()
    if len(tensors) == 1:
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensors[0])]
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    parts = tf.split(
        context.all_reduce(tf.distribute.ReduceOp.SUM, flat), [tensor.shape.num_elements() for tensor in tensors]
    )
    return [_reshape_like(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _reshape_like(flat: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(flat, tf.shape(tensor) if None in tensor.shape.as_list() else tensor.shape)


def _connect_ring(strategy: tf.distribute.Strategy) -> Ring | None:
    """Return this worker's ring; None for one worker, several devices or a GPU."""
    rank = current_rank()
    if rank.workers == 1 or strategy.num_replicas_in_sync != rank.workers or tf.config.list_physical_devices("GPU"):
        return None
    addresses = gang_addresses()
    hosts = [address.rpartition(":")[0] for address in addresses]
    port = int(addresses[rank.index].rpartition(":")[2])

    @tf.function(autograph=False)
    def collective_sum(values: tf.Tensor) -> Any:
        return strategy.run(lambda: _collective_sums([tf.identity(values)])[0])

    def all_reduce(values: np.ndarray) -> np.ndarray:
        return np.asarray(strategy.experimental_local_results(collective_sum(tf.constant(values)))[0])

    token = os.environ.get(settings.GANG_TOKEN, "")
    return Ring.connect(rank.index, hosts, range(port + 1, port + 1 + _PORTS), all_reduce, token)


def synchronize_layers(
    model: keras.Model, all_reduce: AllReduce, xla: bool, own_statistics: bool
) -> list[keras.layers.BatchNormalization]:
    """Make normalization and dropout of `model` use the global batch. Call it in the strategy's scope, before tracing.

    Batch statistics are summed over the replicas. Each replica draws the dropout mask of the global batch and takes its
    own rows, so the mask is that of one worker. Saved files do not change. Raises `ConfigurationError` for other random
    layers, for batch renormalization, and for normalization under `xla`.

    own_statistics: each replica normalizes by its own rows and keeps its own moving averages. Returns the layers whose
    averages a step must average over the replicas.
    """
    apart = []
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.renorm:
                raise ConfigurationError(
                    f"train.workers: the layer {layer.name} has renorm=True, which several workers cannot share. "
                    "Leave it out, or set train.workers to 1."
                )
            if xla and not own_statistics:
                raise ConfigurationError(
                    f"train.xla: the layer {layer.name} sums over the devices, which XLA does not compile. "
                    "Leave train.xla out, set train.batch_statistics: worker, or train on one device."
                )
            layer.call = partial(_normalize, layer, None if own_statistics else all_reduce)
            apart += [layer] if own_statistics else []
        elif type(layer) is keras.layers.Dropout:
            layer.call = MethodType(_drop_globally, layer)
        elif getattr(layer, "seed_generator", None) is not None:
            raise ConfigurationError(
                f"train.workers: the layer {layer.name} ({type(layer).__name__}) draws the same numbers on every "
                "replica. Several workers support only Dropout. Use it, or set train.workers to 1."
            )
    return apart


def _normalize(
    layer: keras.layers.BatchNormalization,
    all_reduce: AllReduce | None,
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """BatchNormalization.call with synchronized=True (keras 3.15), with fewer collectives.

    Keras uses five collectives a layer forward (two moments, a count and the moving averages) and two backward. This
    uses one each way. Without `all_reduce` it is synchronized=False, with none.
    """
    if not training or not layer.trainable:
        return type(layer).call(layer, inputs, training=training, mask=mask)
    values = tf.cast(inputs, tf.float32)
    axis = layer.axis % len(values.shape)
    axes = [other for other in range(len(values.shape)) if other != axis]
    moments = tf.stack([tf.reduce_mean(values, axes), tf.reduce_mean(tf.square(values), axes)])
    if all_reduce is not None:
        # The replicas have equally many rows, so the mean of their means is that of the global batch.
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        (moments,) = all_reduce([moments / replicas])
    mean, square = tf.unstack(moments)
    variance = tf.maximum(square - tf.square(mean), 0.0)
    for average, new in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        # Only this replica's copy: assigning to all copies would average them again.
        copy = average.value._get()
        copy.assign(copy * layer.momentum + new * (1.0 - layer.momentum))
    outputs = keras.ops.batch_normalization(
        values, mean, variance, layer.axis, layer.beta, layer.gamma, epsilon=layer.epsilon
    )
    return tf.cast(outputs, layer.compute_dtype)


def _drop_globally(layer: keras.layers.Dropout, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Dropout.call of one worker (keras 3.15) for this replica's rows of the global batch."""
    if not training or not layer.rate:
        return inputs
    context = tf.distribute.get_replica_context()
    rows = tf.shape(inputs)[0]
    global_shape = tf.concat([rows[None] * context.num_replicas_in_sync, tf.shape(inputs)[1:]], axis=0)
    if layer.noise_shape is not None:
        sizes = [global_shape[i] if size is None else size for i, size in enumerate(layer.noise_shape)]
        global_shape = tf.stack(sizes)
    draws = tf.random.stateless_uniform(
        global_shape, seed=tf.cast(layer.seed_generator.next(), tf.int32), dtype=inputs.dtype
    )
    first = context.replica_id_in_sync_group * rows
    keep = draws[first : first + rows] >= layer.rate
    return tf.where(keep, inputs / (1 - layer.rate), tf.zeros((), inputs.dtype))
