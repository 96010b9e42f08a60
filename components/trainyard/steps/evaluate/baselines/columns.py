"""The features of a table as arrays, split by the columns that they were made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder
from trainyard.spec.feature_names import date_names
from trainyard.spec.recipe import Recipe
from trainyard.spec.tables.columns import Date

Arrays = dict[str, NDArray[Any]]


def is_table(examples: ExampleFolder) -> bool:
    """Return True if every feature is a number or an id per example, or a row of them."""
    features = examples.document.features
    return bool(features) and all(len(feature.shape) <= 1 and not feature.encoded for feature in features)


def first_examples(examples: ExampleFolder, split: Split, limit: int) -> tuple[Arrays, NDArray[Any]]:
    """Return the first examples of `split`, which are in random order: features (n,) by name, and labels (n,)."""
    features, labels = [], []
    for batch, label, _ in examples.batches(split, 4096).take(-(-limit // 4096)):
        features.append({name: values.numpy() for name, values in batch.items()})
        labels.append(label.numpy())
    joined = {name: np.concatenate([batch[name] for batch in features])[:limit] for name in features[0]}
    return joined, np.concatenate(labels)[:limit]


def features_by_column(recipe: Recipe, examples: ExampleFolder) -> dict[str, list[str]]:
    """Return the features that each column of the recipe became; those of an own preprocessing_fn stand alone."""
    remaining = {feature.name for feature in examples.document.features}
    columns: dict[str, list[str]] = {}
    for name, kind in recipe.data.features.items():
        names = date_names(name, hour=True) if isinstance(kind, Date) else (name,)
        made = [feature for feature in names if feature in remaining]
        if made:
            columns[name] = made
            remaining -= set(made)
    return columns | {name: [name] for name in sorted(remaining)}
