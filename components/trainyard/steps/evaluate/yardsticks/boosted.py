"""Gradient-boosted trees on the same split: an honest yardstick for a network that learns from a table."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from trainyard import events
from trainyard.contract.artifacts.document import Split
from trainyard.data.examples import ExampleFolder
from trainyard.steps.evaluate.metrics import Predictions
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
    features. None if the examples are no table or of more than 50 classes.
    """
    labels = examples.document.labels
    if not is_table(examples) or (labels is not None and len(labels) > _MOST_CLASSES):
        return None
    started = time.monotonic()
    sizes = {feature.name: feature.vocabulary_size or 0 for feature in examples.document.features}
    names = sorted(sizes)
    features, targets = first_examples(examples, "train", min(MOST_EXAMPLES, _MOST_CELLS // len(names)))
    if len(np.unique(targets)) < 2:
        return None
    categorical = [0 < sizes[name] <= _MOST_CATEGORIES for name in names]
    kind = HistGradientBoostingRegressor if labels is None else HistGradientBoostingClassifier
    trees = kind(random_state=seed, categorical_features=categorical)
    weights = examples.weights("train")
    trees.fit(_matrix(features, names), targets, None if weights is None else weights[: len(targets)])
    answers = [
        (label.numpy(), _answer(trees, {name: values.numpy() for name, values in batch.items()}, names, labels))
        for batch, label, _ in examples.batches(split, _BATCH)
    ]
    events.emit("boosted", examples=len(targets), seconds=round(time.monotonic() - started, 2))
    judged_labels, outputs = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    return Predictions(judged_labels, outputs, examples.weights(split)), len(targets)


def _answer(trees: _Trees, features: Arrays, names: list[str], labels: list[str] | None) -> NDArray[np.float32]:
    """Return predictions (n,), or probabilities (n, classes): 0 for a class that the trees have not met."""
    matrix = _matrix(features, names)
    if isinstance(trees, HistGradientBoostingRegressor):
        return trees.predict(matrix).astype(np.float32)
    outputs = np.zeros((len(matrix), len(labels or [])), np.float32)
    outputs[:, trees.classes_] = trees.predict_proba(matrix)
    return outputs


def _matrix(features: Arrays, names: list[str]) -> NDArray[Any]:
    return np.stack([features[name].astype(np.float32) for name in names], axis=1)
