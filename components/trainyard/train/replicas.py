"""Makes a model compute over the replicas of a gang what it would compute over the whole batch in one place."""

from __future__ import annotations

from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from trainyard.core.errors import ConfigurationError


def join_replicas(model: keras.Model) -> None:
    """Let normalization and dropout of `model` see the global batch; call it in the strategy's scope, before tracing.

    Batch statistics are summed over the replicas. Each replica draws the dropout of the whole batch and takes its own
    rows, so the draws are those of one worker. Raises `ConfigurationError` for another layer that draws at random.
    """
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
        elif type(layer) is keras.layers.Dropout:
            layer.call = MethodType(_dropped, layer)
        elif getattr(layer, "seed_generator", None) is not None:
            raise ConfigurationError(
                f"train.workers: the layer {layer.name} ({type(layer).__name__}) draws the same numbers on every replica. "
                "Several workers take Dropout alone. Use it, or set train.workers to 1."
            )


def part_replicas(model: keras.Model) -> None:
    """Undo what would go into the saved file."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = False


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
