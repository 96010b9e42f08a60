"""How much the examples of each class count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.spec.recipe import Recipe


def class_weights(recipe: Recipe, labels: Sequence[str] | None, counts: Sequence[int] | None) -> np.ndarray | None:
    """Return one float32 weight a class, or None if the recipe asks for none.

    balanced: examples / (classes * examples of the class), so that the weights' mean over the examples is 1.
    Raises `ConfigurationError` for a weight of a label that the data does not have.
    """
    chosen = recipe.train.class_weights
    if chosen is None or labels is None or counts is None:
        return None
    if chosen == "balanced":
        examples = np.asarray(counts, np.float64)
        return np.asarray(examples.sum() / (len(examples) * np.maximum(examples, 1)), np.float32)
    unknown = [name for name in chosen if name not in labels]
    if unknown:
        raise ConfigurationError(
            f"train.class_weights: no label '{unknown[0]}'.{did_you_mean(unknown[0], labels)} "
            f"The data has {', '.join(labels[:20])}."
        )
    return np.asarray([chosen.get(label, 1.0) for label in labels], np.float32)
