"""All-reduce over the replicas within a step: a ring of TCP connections on CPUs, otherwise TensorFlow's collectives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.steps.train.engines.tensorflow.ring import Ring
from trainyard.steps.train.peers import settings
from trainyard.steps.train.peers.settings import current_rank, gang_addresses

_PORTS = settings.PORT_RANGE - 1  # the ring uses one of the ports behind TensorFlow's


class AllReduce:
    """Sums float32 tensors over all replicas, with gradients. Call it in a replica context."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._ring = _connect_ring(strategy)
        self._last: Any = None

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
