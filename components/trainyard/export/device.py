"""What a device has to know beside a LiteRT file: which inputs to make, and from what."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trainyard.core import storage
from trainyard.core.artifacts import Examples
from trainyard.core.recipe import Recipe
from trainyard.export import signature

FILE = "preprocessing.json"
VOCABULARIES = "vocabularies"
_NUMBERS = ("mean", "std", "min", "max")


def write(recipe: Recipe, document: Examples, examples: str, folder: Path) -> None:
    """Write labels.txt, preprocessing.json and the transform's vocabularies into `folder`.

    preprocessing.json holds the model's `inputs` (name in the LiteRT file, feature, dtype, shape of a batch of one,
    number of ids), the `raw_features` that the transform makes them from (how the recipe transforms each, and the mean,
    std, min and max of numbers on the training split), the `image` (height, width, channels, range) and the
    `vocabularies`: files below `vocabularies/`, where the line number, counted from 0, is the id. No value of a single
    training example is in it.
    """
    if document.labels is not None:
        signature.write_labels(document.labels, folder)
    assets = Path(storage.join(examples, "transform", "transform_fn", "assets"))
    vocabularies = sorted(path.name for path in assets.iterdir()) if assets.is_dir() else []
    if vocabularies:
        shutil.copytree(assets, folder / VOCABULARIES)
    image, columns = document.image, recipe.data.features
    statistics = _statistics(examples)
    content = {
        "inputs": [
            {
                "name": signature.input_name(feature.name),
                "feature": feature.name,
                "dtype": feature.dtype,
                "shape": [1, *feature.shape],
                "vocabulary_size": feature.vocabulary_size,
            }
            for feature in document.features
        ],
        "raw_features": [
            {
                **feature.model_dump(),
                "column": columns[feature.name].model_dump() if feature.name in columns else None,
                "train": {name: train[name] for name in _NUMBERS if name in train},
            }
            for feature in document.raw_features
            for train in [statistics.get(feature.name, {}).get("train", {})]
        ],
        "image": image and {**image.model_dump(), "range": [0, 255], "resize": "bilinear, antialiased"},
        "vocabularies": vocabularies,
    }
    (folder / FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _statistics(examples: str) -> dict[str, Any]:
    text = storage.read_text(storage.join(examples, "statistics.json"))
    features: dict[str, Any] = json.loads(text).get("features", {}) if text else {}
    return features
