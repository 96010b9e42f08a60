"""Permutation importance of columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.evaluate import Importance
from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.baselines.columns import Arrays, features_by_column, first_examples, is_table
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions

_EXAMPLES, _REPEATS, _COLUMNS = 2000, 3, 200  # chosen: some seconds at the most


def importances(
    recipe: Recipe, examples: ExampleFolder, split: Split, predict: Callable[[dict[str, tf.Tensor]], tf.Tensor]
) -> list[Importance]:
    """Return the increase of the mean loss on `split` when a column is shuffled, largest first.

    At most 2,000 examples and three shuffles a column; nothing for images, and for more than 200 columns.
    Source: Breiman, Random Forests, 2001, section 10; Fisher, Rudin and Dominici, All Models are Wrong, 2019.
    """
    columns = features_by_column(recipe, examples) if is_table(examples) else {}
    if not 1 < len(columns) <= _COLUMNS:
        return []
    features, labels = first_examples(examples, split, _EXAMPLES)
    weights = examples.weights(split)
    weights = None if weights is None or not weights[:_EXAMPLES].any() else weights[:_EXAMPLES]

    def loss(inputs: Arrays) -> float:
        outputs = predict({name: tf.constant(values) for name, values in inputs.items()}).numpy()
        judged = SplitPredictions(labels, outputs, weights)
        return judged.mean(judged.losses)

    whole, draw = loss(features), np.random.default_rng(recipe.seed)
    results = []
    for name, made in columns.items():
        orders = [draw.permutation(len(labels)) for _ in range(_REPEATS)]
        grown = [loss(features | {feature: features[feature][order] for feature in made}) - whole for order in orders]
        results.append(Importance(column=name, loss_increase=float(np.mean(grown)), spread=float(np.std(grown))))
    return sorted(results, key=lambda feature: -feature.loss_increase)
