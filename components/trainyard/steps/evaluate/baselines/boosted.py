"""Gradient-boosted trees on the same split: a baseline for a network that learns from a table."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from trainyard import events
from trainyard.contract.artifacts.preprocess import Examples, Feature
from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder
from trainyard.steps.evaluate.baselines.columns import Arrays, first_examples, is_table
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions

_Trees = HistGradientBoostingClassifier | HistGradientBoostingRegressor

MOST_EXAMPLES = 100_000
"""Of the training split that the trees learn from. Chosen: 1.5 s with 20 columns and two classes, 6 s with 50 classes,
measured on two cores."""

_MOST_CELLS = 50_000_000  # of those examples; chosen: 200 MB
_BATCH = 4096
_MOST_CLASSES = 50  # chosen: an iteration grows a tree a class
_MOST_CATEGORIES = 255  # that scikit-learn's trees tell apart; more ids count as numbers
_MOST_WORDS = 200  # chosen: of a text, those that come most often


def boosted_predictions(examples: ExampleFolder, split: Split, seed: int) -> tuple[SplitPredictions, int] | None:
    """Train boosted trees on the training split, and return their predictions for `split` in stored order.

    Also returns the number of training examples. The trees are scikit-learn's with its defaults, on the model's
    features; a text becomes counts of its 200 most frequent words. Each label of multi_label and each target has its
    own trees, with proportionally fewer examples. None if the examples are no table or have over 50 classes or targets.
    """
    labels, several = examples.document.labels, math.prod(examples.document.label_shape)
    if not is_table(examples) or examples.document.outputs > _MOST_CLASSES:
        return None
    started = time.monotonic()
    inputs = sorted(examples.document.features, key=lambda feature: feature.name)
    width = sum(map(_width, inputs))
    features, targets = first_examples(examples, "train", min(MOST_EXAMPLES // several, _MOST_CELLS // width))
    if any(len(np.unique(column)) < 2 for column in targets.reshape(len(targets), -1).T):
        return None
    categorical = [
        not input_.shape and 0 < (input_.vocabulary_size or 0) <= _MOST_CATEGORIES
        for input_ in inputs
        for _ in range(_width(input_))
    ]
    kind = HistGradientBoostingRegressor if labels is None else HistGradientBoostingClassifier
    weights = examples.weights("train")
    weights = None if weights is None else weights[: len(targets)]
    matrix = _matrix(features, inputs)
    trees = [
        kind(random_state=seed, categorical_features=categorical).fit(matrix, column, weights)
        for column in targets.reshape(len(targets), -1).T
    ]
    answers = [
        (
            label.numpy(),
            _answer(trees, {name: values.numpy() for name, values in batch.items()}, inputs, examples.document),
        )
        for batch, label, _ in examples.batches(split, _BATCH)
    ]
    events.emit("boosted", examples=len(targets), seconds=round(time.monotonic() - started, 2))
    judged_labels, outputs = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    return SplitPredictions(judged_labels, outputs, examples.weights(split)), len(targets)


def _answer(trees: list[_Trees], features: Arrays, inputs: list[Feature], examples: Examples) -> NDArray[np.float32]:
    """Return predictions (n,) or (n, targets), or probabilities (n, classes): 0 for a class that no tree has met."""
    matrix = _matrix(features, inputs)
    columns = []
    for tree in trees:
        if isinstance(tree, HistGradientBoostingRegressor):
            columns.append(tree.predict(matrix))
        elif examples.task == "multi_label":
            columns.append(tree.predict_proba(matrix)[:, 1])
        else:
            outputs = np.zeros((len(matrix), examples.outputs), np.float32)
            outputs[:, tree.classes_] = tree.predict_proba(matrix)
            return outputs
    return np.stack(columns, axis=1).astype(np.float32).reshape(-1, *examples.label_shape)


def _matrix(features: Arrays, inputs: list[Feature]) -> NDArray[np.float32]:
    return np.concatenate([_columns(features[feature.name], feature) for feature in inputs], axis=1)


def _columns(values: NDArray[Any], feature: Feature) -> NDArray[np.float32]:
    """Return the trees' input for a feature, (n, _width(feature)): a row of ids becomes counts."""
    width = _width(feature)
    if not feature.shape or feature.vocabulary_size is None:
        return values.astype(np.float32).reshape(-1, width)
    counts = np.zeros((len(values), width), np.float32)
    rows, _ = known = np.nonzero((values < width) & (values != feature.filler))
    np.add.at(counts, (rows, values[known]), 1)
    return counts


def _width(feature: Feature) -> int:
    return (
        min(feature.vocabulary_size, _MOST_WORDS)
        if feature.shape and feature.vocabulary_size
        else math.prod(feature.shape)
    )
