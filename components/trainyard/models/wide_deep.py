"""A linear model over ids, pairs of ids and numbers beside a multilayer perceptron over embeddings.

Source: H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import keras
from keras import layers

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.models import mlp
from trainyard.spec.model import ModelConfig

# Chosen: crosses are kept while their table of weights stays small.
_LARGEST_CROSS = 10_000
_MOST_CROSSES = 10


def network(
    model: ModelConfig, features: Sequence[Feature], inputs: Mapping[str, keras.KerasTensor], outputs: int
) -> keras.KerasTensor:
    """Return (batch, outputs), the sum of the wide and the deep part."""
    return layers.Add(dtype="float32")(
        [mlp.network(model, features, inputs, outputs), *_wide(features, inputs, outputs)]
    )


def _wide(
    features: Sequence[Feature], inputs: Mapping[str, keras.KerasTensor], outputs: int
) -> list[keras.KerasTensor]:
    ids = [feature for feature in features if feature.vocabulary_size]
    sides = [_weights(mlp.layer_name("wide", column), column, inputs[column.name], outputs) for column in ids]
    for one, other in _crosses(ids):
        first, second = inputs[one.name], inputs[other.name]
        size = other.vocabulary_size or 0
        pair = one.model_copy(update={"vocabulary_size": (one.vocabulary_size or 0) * size})
        sides.append(_weights(mlp.layer_name("wide", one, other), pair, first * size + second, outputs))
    numbers = mlp.numeric_vector(features, inputs)
    if numbers is not None:
        sides.append(layers.Dense(outputs, use_bias=False, name="wide-numbers", dtype="float32")(numbers))
    return sides


def _crosses(ids: Sequence[Feature]) -> list[tuple[Feature, Feature]]:
    """Return the pairs of ids with a small crossed vocabulary, the smallest first."""

    def size(pair: tuple[Feature, Feature]) -> int:
        return (pair[0].vocabulary_size or 0) * (pair[1].vocabulary_size or 0)

    single = [feature for feature in ids if feature.filler is None]
    pairs = [pair for pair in combinations(single, 2) if pair[0].shape == pair[1].shape]
    pairs = [pair for pair in pairs if size(pair) <= _LARGEST_CROSS]
    return sorted(pairs, key=size)[:_MOST_CROSSES]


def _weights(name: str, feature: Feature, ids: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return (batch, outputs): a learned weight for each id and output, summed over the ids except the filler."""
    size = feature.vocabulary_size or 0
    table = layers.Embedding(size, outputs, embeddings_initializer="zeros", name=name, dtype="float32")(ids)
    weights = layers.Reshape((math.prod(feature.shape), outputs))(table)
    return keras.ops.sum(weights if feature.filler is None else weights * mlp.word_mask(feature, ids), axis=1)
