"""What a device has to know beside a LiteRT file: which inputs to make, and from what."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.drift import Statistics
from trainyard.contract.version import PREPROCESSING as FILE
from trainyard.contract.version import VOCABULARIES
from trainyard.spec.recipe import Recipe
from trainyard.steps.export import signature
from trainyard.storage import storage

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import _TensorDetails

_NUMBERS = {"mean", "std", "min", "max"}


def write(recipe: Recipe, document: Examples, examples: str, files: Sequence[Path], folder: Path) -> None:
    """Write labels.txt or targets.txt, preprocessing.json and the transform's vocabularies into `folder`.

    preprocessing.json holds the model's `inputs` (name in the LiteRT file, feature, dtype, shape of a batch of one,
    number of ids), the `raw_features` that the transform makes them from, the `computed_features` that it makes of
    those first by a `formula` of the recipe, the `image` (height, width, channels, range, white_level) and the
    `vocabularies`: files below `vocabularies/`, where the line number, counted from 0, is the id. `transform` says
    whose that is: `columns` (each raw feature has the `column` of the recipe and what was `learned`,
    `contract.artifacts.preprocess.Column`), `image`, or `module`, the recipe's own function, of which nothing is known
    here. `train` is the mean, std, min and max of a number on the training split, rounded. `files` says of each LiteRT
    file what it takes and gives itself: dtype and shape, and for integers that stand for real numbers their scale and
    zero point, real = (integer - zero_point) * scale. `label_separator` stands between the classes of one answer, if it
    may have several. Of single training examples it holds no more than a number's extremes and quantiles and a
    category's values.
    """
    signature.write_names(document, folder)
    assets = Path(storage.join(examples, "transform", "transform_fn", "assets"))
    vocabularies = sorted(path.name for path in assets.iterdir()) if assets.is_dir() else []
    if vocabularies:
        shutil.copytree(assets, folder / VOCABULARIES)
    image, transform = document.image, _transform(document)
    columns = recipe.data.features | recipe.data.inputs
    statistics = Statistics.read(examples).features
    content = {
        "transform": transform,
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
                **feature.model_dump(exclude_none=True),
                "column": columns[feature.name].model_dump() if feature.name in columns else None,
                "train": train.model_dump(include=_NUMBERS, exclude_none=True) if train else {},
            }
            for feature in document.raw_features
            for train in [statistics.get(feature.name, {}).get("train")]
        ],
        "computed_features": [
            {
                **feature.model_dump(exclude_none=True),
                "column": columns[feature.name].model_dump() if feature.name in columns else None,
            }
            for feature in document.computed_features
        ],
        "image": image
        and {**image.model_dump(), "range": [0, 255], "resize": "bilinear, antialiased", "alpha": "white"},
        "vocabularies": vocabularies,
        "label_separator": recipe.data.label_separator,
        "quote": recipe.data.quote,
        "files": {path.name: _border(path) for path in files},
    }
    (folder / FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _transform(document: Examples) -> str:
    """Return whose transform the examples have: columns (by their type), image, or module (the recipe's own)."""
    learned = [feature.learned for feature in document.raw_features]
    if any(learned + [feature.learned for feature in document.computed_features]):
        return "columns"
    return "image" if all(feature.encoded for feature in document.features) else "module"


def _border(path: Path) -> dict[str, Any]:
    """Return the inputs and outputs of the LiteRT file at `path` by name, as it takes and gives them itself."""
    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    sides = {"inputs": runner.get_input_details(), "outputs": runner.get_output_details()}
    return {side: {name: _tensor(details) for name, details in tensors.items()} for side, tensors in sides.items()}


def _tensor(details: _TensorDetails) -> dict[str, Any]:
    scale, zero_point = details["quantization"]
    real = {"scale": float(scale), "zero_point": int(zero_point)} if scale else {}
    return {"dtype": np.dtype(details["dtype"]).name, "shape": [int(size) for size in details["shape"]], **real}
