"""Gradient-boosted trees on the same split: an honest yardstick for a network that learns from a table."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from trainyard import events
from trainyard.contract.artifacts.document import Split
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data.examples import ExampleFolder
from trainyard.steps.evaluate.metrics.predictions import Predictions
from trainyard.steps.evaluate.yardsticks.columns import Arrays, first_examples, is_table

_Trees = HistGradientBoostingClassifier | HistGradientBoostingRegressor

MOST_EXAMPLES = 100_000
"""Of the training split that the trees learn from. Chosen: 1.5 s with 20 columns and two classes, 6 s with 50 classes,
measured on two cores."""

_MOST_CELLS = 50_000_000  # of those examples; chosen: 200 MB
_BATCH = 4096
_MOST_CLASSES = 50  # chosen: an iteration grows a tree a class
_MOST_CATEGORIES = 255  # that scikit-learn's trees tell apart; more ids count as numbers


def boosted_predictions(examples: ExampleFolder, split: Split, seed: int) -> tuple[Predictions, int] | None:
    """Return what boosted trees, grown on the training split, answer to the examples of `split`, in stored order.

    And how many examples they learnt from. They are those of scikit-learn with its own settings and the model's
    features; of multi_label and of several targets, as many times trees, which learn from so many fewer examples. None
    if the examples are no table or of more than 50 classes or targets.
    """
    labels, several = examples.document.labels, math.prod(examples.document.label_shape)
    if not is_table(examples) or examples.document.outputs > _MOST_CLASSES:
        return None
    started = time.monotonic()
    sizes = {feature.name: feature.vocabulary_size or 0 for feature in examples.document.features}
    names = sorted(sizes)
    features, targets = first_examples(examples, "train", min(MOST_EXAMPLES // several, _MOST_CELLS // len(names)))
    if any(len(np.unique(column)) < 2 for column in targets.reshape(len(targets), -1).T):
        return None
    categorical = [0 < sizes[name] <= _MOST_CATEGORIES for name in names]
    kind = HistGradientBoostingRegressor if labels is None else HistGradientBoostingClassifier
    weights = examples.weights("train")
    weights = None if weights is None else weights[: len(targets)]
    matrix = _matrix(features, names)
    trees = [
        kind(random_state=seed, categorical_features=categorical).fit(matrix, column, weights)
        for column in targets.reshape(len(targets), -1).T
    ]
    answers = [
        (
            label.numpy(),
            _answer(trees, {name: values.numpy() for name, values in batch.items()}, names, examples.document),
        )
        for batch, label, _ in examples.batches(split, _BATCH)
    ]
    events.emit("boosted", examples=len(targets), seconds=round(time.monotonic() - started, 2))
    judged_labels, outputs = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    return Predictions(judged_labels, outputs, examples.weights(split)), len(targets)


def _answer(trees: list[_Trees], features: Arrays, names: list[str], examples: Examples) -> NDArray[np.float32]:
    """Return predictions (n,) or (n, targets), or probabilities (n, classes): 0 for a class that no tree has met."""
    matrix = _matrix(features, names)
    columns = []
    for each in trees:
        if isinstance(each, HistGradientBoostingRegressor):
            columns.append(each.predict(matrix))
        elif examples.task == "multi_label":
            columns.append(each.predict_proba(matrix)[:, 1])
        else:
            outputs = np.zeros((len(matrix), examples.outputs), np.float32)
            outputs[:, each.classes_] = each.predict_proba(matrix)
            return outputs
    return np.stack(columns, axis=1).astype(np.float32).reshape(-1, *examples.label_shape)


def _matrix(features: Arrays, names: list[str]) -> NDArray[Any]:
    return np.stack([features[name].astype(np.float32) for name in names], axis=1)
