"""Preprocess compares what it reads with the recipe's schema, and warns of images that look the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from preprocess_sources import preprocess

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.drift import Statistics
from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe

SCHEMA = """\
schema_of: table
columns:
  age: {type: integer, min: 0, max: 99}
  city: {type: category, values: [Oslo, Bergen], max_missing: 0.01}
  unread: {type: text}
"""


def recipe(folder: Path, ages: range) -> Recipe:
    rows = [f"{age},{['Oslo', 'Bergen', ''][age % 3]},{age % 2}" for age in ages]
    (folder / "a.csv").write_text("\n".join(["age,city,label", *rows]) + "\n")
    data = {
        "format": "csv",
        "path": str(folder / "a.csv"),
        "schema": SCHEMA,
        "features": {"age": {"type": "numeric"}, "city": {"type": "category"}},
    }
    return Recipe.model_validate({"name": "r", "data": data, "model": {"name": "mlp"}})


def test_rows_that_do_not_fit_the_schema_end_preprocess_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        preprocess(recipe(tmp_path, range(102)), tmp_path / "out")
    assert str(refused.value).splitlines() == [
        "data.schema: the data do not fit, 2 anomalies:",
        "age: expected at most 99, received '100' in 2 rows, such as a.csv:102 '100'; a.csv:103 '101'.",
        "city: expected a value in all rows but 1.00%, received 33.33% missing in 34 rows.",
    ]


def test_copies_in_different_splits_are_warned_of_and_numbers_have_a_histogram(tmp_path: Path) -> None:
    for seed in range(40):
        patches = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(patches).resize((64, 64), Image.Resampling.BICUBIC)
        folder = tmp_path / "data" / f"c{seed % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{seed}.png")
        image.resize((48, 48)).save(folder / f"{seed}-copy.jpg", quality=80)
    data = {"format": "image_folder", "path": str(tmp_path / "data"), "near_duplicates": True, "image_size": [32, 32]}
    split = {"train": 0.6, "eval": 0.2, "test": 0.2}
    looking = Recipe.model_validate({"name": "r", "data": {**data, "split": split}, "model": {"name": "cnn_small"}})
    output = preprocess(looking, tmp_path / "out")
    [warning] = [text for text in Examples.read(output).warnings if "look the same" in text]
    assert 10 <= int(warning.split()[0]) <= 40 and "-copy.jpg (" in warning and " ≈ " in warning
    height = Statistics.read(output).features["height"]["train"]
    assert height.histogram is not None and height.histogram.starts == [48.0, 64.0]
