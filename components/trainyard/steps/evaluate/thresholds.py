"""The decision thresholds of a trained model, by its answers on the eval split."""

from __future__ import annotations

import numpy as np

from trainyard.contract.statistics.threshold import ClassThreshold
from trainyard.data.examples import ExampleFolder
from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.predict import answer_batch, batch_size, replicated
from trainyard.steps.evaluate.threshold_choice import choose_thresholds


def thresholds_of(recipe: Recipe, model: str, folder: ExampleFolder) -> list[ClassThreshold]:
    """Return the thresholds of train's output `model` that meet the recipe's aim, none if it has no aim.

    They are chosen by the answers of the model in float32, as it is exported.
    Raises `ConfigurationError` as `choose_thresholds`, `DataError` if the eval split is empty or an answer is not
    finite, and as `trained.load`.
    """
    if recipe.threshold is None:
        return []
    replicas = replicated(model, folder, in_float32=True)
    batches = folder.batches("eval", batch_size(recipe, folder, "eval"))
    outputs = [answers for _batch, answers in replicas.map(answer_batch, batches)]
    if not outputs:
        raise DataError(f"{folder.uri}: the eval split is empty. Run with --from preprocess.")
    probabilities = np.concatenate(outputs)
    if not np.isfinite(probabilities).all():
        raise DataError(
            f"{model}: the model gives NaN or infinity on the eval split. Train again with a smaller "
            "train.optimizer.learning_rate."
        )
    labels = folder.document.labels or []
    return choose_thresholds(recipe.threshold, labels, folder.labels("eval"), probabilities, folder.weights("eval"))
