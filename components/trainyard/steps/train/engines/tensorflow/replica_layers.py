"""Makes the layers of a model compute on all replicas as one replica would on the global batch."""

from __future__ import annotations

from functools import partial
from types import MethodType

import keras
import tensorflow as tf

from trainyard.errors import ConfigurationError
from trainyard.steps.train.engines.tensorflow.all_reduce import AllReduce


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
