"""A multilayer perceptron over columns: numbers as they are, ids through embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
from keras import layers

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.models import columns
from trainyard.spec.training.model import ModelConfig


def network(
    model: ModelConfig, features: Sequence[Feature], inputs: Mapping[str, keras.KerasTensor], outputs: int
) -> keras.KerasTensor:
    """Return (batch, outputs) of dense layers of model.hidden_units."""
    x = columns.dense_vector(features, inputs)
    for units in model.hidden_units:
        x = layers.Dense(units, activation="relu")(x)
        x = layers.Dropout(model.dropout)(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)
