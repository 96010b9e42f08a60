"""Makes a model compute over the replicas of a gang what it would compute over the whole batch in one place."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from trainyard.errors import ConfigurationError
from trainyard.steps.train.engines.tensorflow.sums import Sums


def join_replicas(model: keras.Model, sums: Sums, xla: bool) -> None:
    """Let normalization and dropout of `model` see the global batch; call it in the strategy's scope, before tracing.

    Batch statistics are summed over the replicas. Each replica draws the dropout of the whole batch and takes its own
    rows, so the draws are those of one worker. Nothing of it goes into a saved file. Raises `ConfigurationError` for
    another layer that draws at random, for batch renormalization, and for normalization under `xla`.
    """
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.renorm:
                raise ConfigurationError(
                    f"train.workers: the layer {layer.name} has renorm=True, which several workers cannot share. "
                    "Leave it out, or set train.workers to 1."
                )
            if xla:
                raise ConfigurationError(
                    f"train.xla: the layer {layer.name} sums over the devices, which XLA does not compile. "
                    "Leave train.xla out, or train on one device."
                )
            layer.call = partial(_normalized, layer, sums)
        elif type(layer) is keras.layers.Dropout:
            layer.call = MethodType(_dropped, layer)
        elif getattr(layer, "seed_generator", None) is not None:
            raise ConfigurationError(
                f"train.workers: the layer {layer.name} ({type(layer).__name__}) draws the same numbers on every replica. "
                "Several workers take Dropout alone. Use it, or set train.workers to 1."
            )


def _normalized(layer: Any, sums: Sums, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
    """Do what BatchNormalization.call does with synchronized=True (keras 3.15), with fewer collectives.

    Keras sums each of the two moments and a count of ones over the replicas, and then the moving averages, which are
    equal on all of them by then: five collectives a layer forward and two backward. Here it is one each way.
    """
    if not training or not layer.trainable:
        return type(layer).call(layer, inputs, training=training, mask=mask)
    values = tf.cast(inputs, tf.float32)
    axis = layer.axis % len(values.shape)
    others = [each for each in range(len(values.shape)) if each != axis]
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    own = tf.stack([tf.reduce_mean(values, others), tf.reduce_mean(tf.square(values), others)])
    # The replicas' parts are of one size, so the mean of their means is the whole batch's.
    mean, square = tf.unstack(sums([own / replicas])[0])
    variance = tf.maximum(square - tf.square(mean), 0.0)
    for average, new in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        # This replica's own copy: an assignment to all copies would take the mean over them again.
        copy = average.value._get()
        copy.assign(copy * layer.momentum + new * (1.0 - layer.momentum))
    outputs = keras.ops.batch_normalization(
        values, mean, variance, layer.axis, layer.beta, layer.gamma, epsilon=layer.epsilon
    )
    return tf.cast(outputs, layer.compute_dtype)


def _dropped(layer: Any, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Do what Dropout.call does for one worker (keras 3.15), on this replica's rows of the global batch."""
    if not training or not layer.rate:
        return inputs
    context = tf.distribute.get_replica_context()
    rows = tf.shape(inputs)[0]
    whole = tf.concat([rows[None] * context.num_replicas_in_sync, tf.shape(inputs)[1:]], axis=0)
    if layer.noise_shape is not None:
        wanted = [whole[i] if size is None else size for i, size in enumerate(layer.noise_shape)]
        whole = tf.stack(wanted)
    drawn = tf.random.stateless_uniform(whole, seed=tf.cast(layer.seed_generator.next(), tf.int32), dtype=inputs.dtype)
    first = context.replica_id_in_sync_group * rows
    kept = drawn[first : first + rows] >= layer.rate
    return tf.where(kept, inputs / (1 - layer.rate), tf.zeros((), inputs.dtype))
