"""A multilayer perceptron over columns: numbers as they are, ids through embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import keras
from keras import layers

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.models.build import columns_matrix, join
from trainyard.spec.columns import input_name
from trainyard.spec.model import ModelConfig


def network(
    model: ModelConfig, features: Sequence[Feature], inputs: Mapping[str, keras.KerasTensor], outputs: int
) -> keras.KerasTensor:
    """Return (batch, outputs) of dense layers of model.hidden_units."""
    x = dense_vector(features, inputs)
    for units in model.hidden_units:
        x = layers.Dense(units, activation="relu")(x)
        x = layers.Dropout(model.dropout)(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


def dense_vector(features: Sequence[Feature], inputs: Mapping[str, keras.KerasTensor]) -> keras.KerasTensor:
    """Return float (batch, width): numbers, and the learned embedding of each id with a vocabulary."""
    parts = [_embedding(feature, inputs[feature.name]) for feature in features if feature.vocabulary_size]
    numbers = numeric_vector(features, inputs)
    return join(parts if numbers is None else [numbers, *parts])


def numeric_vector(features: Sequence[Feature], inputs: Mapping[str, keras.KerasTensor]) -> keras.KerasTensor | None:
    """Return float32 (batch, width) of the features without a vocabulary, None without such features."""
    columns = [inputs[feature.name] for feature in features if not feature.vocabulary_size]
    return columns_matrix(columns) if columns else None


def layer_name(role: str, *features: Feature) -> str:
    """Return a unique layer name for `role` and `features`."""
    return f"{role}_{'-'.join(input_name(feature.name) for feature in features)}"


def word_mask(feature: Feature, ids: keras.KerasTensor) -> keras.KerasTensor:
    """Return float32 (batch, n, 1): 0 for filler ids, 1 otherwise."""
    return keras.ops.cast(keras.ops.expand_dims(keras.ops.not_equal(ids, feature.filler), -1), "float32")


def _embedding(feature: Feature, ids: keras.KerasTensor) -> keras.KerasTensor:
    size = feature.vocabulary_size or 0
    # Source of the width: fast.ai's tabular learner, 1.6 n^0.56; the limit of 32 is chosen.
    width = min(32, max(1, round(1.6 * size**0.56)))
    embedded = layers.Embedding(size, width, name=layer_name("embed", feature))(ids)
    if feature.filler is not None:
        # Divided by the root of the count, as TensorFlow's "sqrtn": the variance is then that of one word's vector,
        # and the sum does not vanish beside numbers if all are quantized to 8 bits.
        is_word = word_mask(feature, ids)
        count = keras.ops.maximum(keras.ops.sum(is_word, axis=1), 1)
        summed = keras.ops.sum(embedded * keras.ops.cast(is_word, embedded.dtype), axis=1)
        return summed * keras.ops.cast(keras.ops.rsqrt(count), embedded.dtype)
    return layers.Reshape((math.prod(feature.shape) * width,))(embedded)
