"""Sums over the replicas, within a step: over a ring of plain TCP between CPUs, else by TensorFlow's own collectives."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.steps.train.engines.tensorflow.ring import Ring
from trainyard.steps.train.gang.place import place

_PORTS = 7  # the ring's port is one of so many behind TensorFlow's own: the NetworkPolicy of a gang lets them through


class Sums:
    """Call it with float32 tensors in a replica's context; it returns their sums over all replicas, with a gradient."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._ring = _ring(strategy)
        self._last: Any = None

    def __call__(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum over the replicas of each of `vectors`, which travel together."""
        # The identity puts an argument of the call onto the replica's device: without one there is no collective.
        placed = [tf.identity(each) for each in vectors]
        ring = self._ring
        if ring is None:
            return _collected(placed)

        @tf.custom_gradient
        def summed(*each: tf.Tensor) -> Any:
            return self._in_order(ring, each), lambda *gradients: self._in_order(ring, gradients)

        return list(summed(*placed))

    def _in_order(self, ring: Ring, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sum over the ring after the sum that was traced before: all workers must take them in one order."""
        graph = tf.compat.v1.get_default_graph()
        before = [self._last] if self._last is not None and self._last.graph is graph else []
        with tf.control_dependencies(before):
            flat = [tf.reshape(each, [-1]) for each in vectors]
            totals = tf.numpy_function(ring.sum, flat, [tf.float32] * len(flat))
        self._last = totals[0].op
        return [_shaped(total, each) for total, each in zip(totals, vectors, strict=True)]


def _collected(vectors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums of `vectors` by TensorFlow's collectives: as one vector, where there are several."""
    context = tf.distribute.get_replica_context()
    if len(vectors) == 1:
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, vectors[0])]
    flat = tf.concat([tf.reshape(each, [-1]) for each in vectors], axis=0)
    parts = tf.split(
        context.all_reduce(tf.distribute.ReduceOp.SUM, flat), [each.shape.num_elements() for each in vectors]
    )
    return [_shaped(part, each) for part, each in zip(parts, vectors, strict=True)]


def _shaped(flat: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.reshape(flat, tf.shape(like) if None in like.shape.as_list() else like.shape)


def _ring(strategy: tf.distribute.Strategy) -> Ring | None:
    """Return this worker's ring; None where there is one worker, or where it has several devices or a GPU."""
    here = place()
    if here.workers == 1 or strategy.num_replicas_in_sync != here.workers or tf.config.list_physical_devices("GPU"):
        return None
    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    hosts = [each.rpartition(":")[0] for each in addresses]
    port = int(addresses[here.index].rpartition(":")[2])

    @tf.function
    def total(said: tf.Tensor) -> Any:
        return strategy.run(_all_reduced, args=(said,))

    def agree(said: np.ndarray) -> np.ndarray:
        return np.asarray(strategy.experimental_local_results(total(tf.constant(said)))[0])

    token = os.environ.get("TRAINYARD_GANG_TOKEN", "")
    return Ring.joined(here.index, hosts, range(port + 1, port + 1 + _PORTS), agree, token)


@tf.autograph.experimental.do_not_convert
def _all_reduced(said: tf.Tensor) -> tf.Tensor:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(said))
