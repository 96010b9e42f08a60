"""Means of a logarithmic scale: the totals of predictions, of networks and of trees, beside those of the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate_folders import classifier, table_examples

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import keras

from trainyard.contract.artifacts.train import TARGET_UNIT
from trainyard.data import trained
from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import trees
from trainyard.steps.train.engines.network import in_original_units, in_target_units
from trainyard.steps.train.engines.target_mean import predicting_means


def folder_of(path: Path, scale: str, rows: int = 4000) -> ExampleFolder:
    """Targets whose logarithms have noise of deviation 1 around twice a feature."""
    draw = np.random.default_rng(4)
    x = draw.uniform(-1, 1, rows).astype(np.float32)
    y = np.exp(2 * x + draw.normal(size=rows)) - (0.01 if scale == "log1p" else 0)
    return open_examples(table_examples(str(path), {"x": x}, np.maximum(y, 0.001), None))


def sums(model: keras.Model, folder: ExampleFolder, split: Any) -> tuple[float, float]:
    """Return the sums of predictions and of targets."""
    parts = [
        (np.asarray(model({"x": features["x"].numpy()})).sum(), labels.numpy().sum())
        for features, labels, _key in folder.batches(split, 1000)
    ]
    predicted, actual = np.sum(parts, axis=0)
    return float(predicted), float(actual)


@pytest.mark.parametrize("scale", ["log", "log1p"])
def test_a_network_that_predicts_means_has_the_total_of_the_training_split(tmp_path: Path, scale: str) -> None:
    folder = folder_of(tmp_path / "examples", scale, rows=300)
    learned = in_target_units(classifier(str(tmp_path / "examples")), (0.3, 0.5))
    model = in_original_units(predicting_means(learned, scale, folder), scale)
    medians = in_original_units(learned, scale)
    predicted, actual = sums(model, folder, "train")
    assert predicted == pytest.approx(actual, rel=1e-5)
    assert abs(sums(medians, folder, "train")[0] / actual - 1) > 0.05, "an untrained network has another total"
    assert [layer.name for layer in model.layers].count(TARGET_UNIT) == 1, "files and warm starts find the same layers"


def test_the_trees_total_is_within_the_noise_of_the_test_splits_and_without_the_key_short(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "examples", "log")
    ratios = {}
    for mean in (False, True):
        recipe = Recipe.model_validate(
            {
                "name": "totals",
                "task": "regression",
                "data": {"format": "csv", "path": "t.csv", "label": "y", "features": {"x": {"type": "numeric"}}},
                "model": {"name": "boosted_trees", "trees": {"max_iter": 30}},
                "train": {"target": {"scale": "log", "mean": mean}},
            }
        )
        output = tmp_path / str(mean)
        output.mkdir()
        trees.train(recipe, folder.uri, output)
        predicted, actual = sums(trained.load_file(output / "model.keras"), folder, "test")
        ratios[mean] = predicted / actual
    # 800 rows of this noise have a mean target that is off by 5 %.
    assert ratios[False] < 0.75 and abs(ratios[True] - 1) < 0.1, ratios
