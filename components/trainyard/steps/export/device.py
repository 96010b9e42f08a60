"""The document for devices beside a LiteRT or ONNX file: the inputs, and how to compute them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.drift import Statistics
from trainyard.contract.version import PREPROCESSING as FILE
from trainyard.contract.version import VOCABULARIES
from trainyard.spec.formula import as_lists, parse
from trainyard.spec.recipe import Recipe
from trainyard.steps.export import signature
from trainyard.steps.export.on_device import bundle
from trainyard.steps.export.signature import Border, target_outputs
from trainyard.storage import storage
from trainyard.values.patterns import SPLIT_WORDS, TIDY_SIGNS

_NUMBERS = {"mean", "std", "min", "max"}


def write(
    recipe: Recipe,
    document: Examples,
    examples: str,
    files: Mapping[str, Border],
    folder: Path,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write labels.txt or targets.txt, preprocessing.json and the transform's vocabularies into `folder`.

    preprocessing.json holds the model's `inputs` (name in the file, feature, dtype, shape of a batch of one, number of
    ids) and `outputs` (names in the file, of several targets one each), the `raw_features` that the transform makes the
    inputs from, the `computed_features` that it makes of those first by a `formula` of the recipe (as a `tree` too,
    which needs no parser), the `image` (height, width, channels, range, white_level) and the `vocabularies`: files
    below `vocabularies/`, where the line number, counted from 0, is the id. `transform` says whose that is: `columns`
    (each raw feature has the `column` of the recipe and what was `learned`, `contract.artifacts.preprocess.Column`),
    `image`, or `module`, the recipe's own function, of which nothing is known here. `train` is the mean, std, min and
    max of a number on the training split, rounded. `files` has the border of each LiteRT and ONNX file. If integers
    stand for real numbers there, real = (integer - zero_point) * scale. `label_separator` stands between the classes of
    one answer, if it may have several. A class with a threshold in `thresholds` is predicted exactly if its probability
    is above it. `words` are replacements that split a text into words. In `time_zone` the days and hours of times with
    an offset are counted. Of single training examples it holds no more than a number's extremes and quantiles and a
    category's values.

    If the transform is known, preprocess.py and predict.py do that on a device.
    """
    signature.write_names(document, folder)
    assets = Path(storage.join(examples, "transform", "transform_fn", "assets"))
    vocabularies = sorted(path.name for path in assets.iterdir()) if assets.is_dir() else []
    if vocabularies:
        shutil.copytree(assets, folder / VOCABULARIES)
    image, transform = document.image, _transform(document)
    columns = recipe.data.features | recipe.data.inputs
    statistics = Statistics.read(examples).features
    has_words = any(column.type == "text" and column.separator is None for column in columns.values())
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
        "outputs": [
            {"target": target, "name": name}
            for target, name in zip(document.targets or [document.label], target_outputs(document), strict=True)
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
                "tree": as_lists(parse(feature.formula)),
                "column": columns[feature.name].model_dump() if feature.name in columns else None,
            }
            for feature in document.computed_features
        ],
        "image": image
        and {**image.model_dump(), "range": [0, 255], "resize": "bilinear, antialiased", "alpha": "white"},
        "vocabularies": vocabularies,
        "label_separator": recipe.data.label_separator,
        "thresholds": dict(thresholds),
        "quote": recipe.data.quote,
        "encoding": recipe.data.encoding,
        "skip_rows": recipe.data.skipped_rows,
        "comment": recipe.data.comment,
        "comma_numbers": recipe.comma_numbers,
        "absent_columns": recipe.data.absent_columns,
        "words": TIDY_SIGNS + SPLIT_WORDS if has_words else None,
        "time_zone": recipe.data.time_zone,
        "files": dict(files),
    }
    (folder / FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    modules = {"columns": bundle.COLUMNS, "image": bundle.IMAGES}.get(transform)
    if modules:
        (folder / "preprocess.py").write_text(bundle.preprocess_file(modules), encoding="utf-8")
        (folder / "predict.py").write_text(bundle.predict_file(), encoding="utf-8")


def _transform(document: Examples) -> str:
    """Return whose transform the examples have: columns (by their type), image, or module (the recipe's own)."""
    learned = [feature.learned for feature in document.raw_features]
    if any(learned + [feature.learned for feature in document.computed_features]):
        return "columns"
    return "image" if all(feature.encoded for feature in document.features) else "module"
