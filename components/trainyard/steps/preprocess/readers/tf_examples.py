"""Reads TFRecord files of tf.Example: images with a label, or named columns. TFDS shards are such files too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from trainyard.contract.artifacts import Quarantined
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.readers.files import image_limit, open_file
from trainyard.steps.preprocess.readers.images import image_record
from trainyard.steps.preprocess.readers.records import BadRecord, BadSource, Record
from trainyard.steps.preprocess.readers.rows import check_label, check_row
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.steps.preprocess.readers.tfrecord import read_records

_MAX_COLUMNS = 16 << 20  # bytes of an example without its image; chosen
_IMAGE_NAMES = ("image/encoded", "image")


def read_tf_examples(path: str, name: str, recipe: Recipe, dataset: Dataset | None) -> Iterator[Record | Quarantined]:
    """Yield the examples of the file at `path`, or why one is bad; `name` stands for the file in messages.

    With a TFDS `dataset`, integer labels get their names. Raises `BadSource` where the file is corrupt or holds another
    number of records than the data set's own description says.
    """
    number = 0
    with open_file(path) as stream:
        for serialized in read_records(stream, name, _limit(recipe.data)):
            number += 1
            source = f"{name}:{number}"
            try:
                if isinstance(serialized, BadRecord):
                    raise serialized
                yield _record(serialized, source, recipe, dataset)
            except BadRecord as error:
                yield Quarantined(source=source, reason=error.reason, detail=error.detail)
    if dataset is not None and number != dataset.records[name]:
        raise BadSource(
            f"{name}: {number} records, dataset_info.json counts {dataset.records[name]}. Prepare it again."
        )


def _limit(data: Data) -> int:
    return image_limit(data) + _MAX_COLUMNS if data.is_image else _MAX_COLUMNS


def _record(serialized: bytes, source: str, recipe: Recipe, dataset: Dataset | None) -> Record:
    try:
        features = tf.train.Example.FromString(serialized).features.feature
    except DecodeError as error:
        raise BadRecord("not_an_example", f"{len(serialized)} bytes are no tf.Example") from error
    columns = {name: _text(features[name], name) if name in features else "" for name in _wanted(recipe)}
    regression = recipe.task == "regression"
    label = _label_name(columns[recipe.data.label], recipe.data.label, dataset)
    if not recipe.data.is_image:
        return check_row({**columns, recipe.data.label: label}, source, recipe.data, regression=regression)
    check_label(label, recipe.data.label, regression=regression)
    encoded = _image(features, (dataset.image,) if dataset and dataset.image else _IMAGE_NAMES)
    return image_record(encoded, label, source, recipe.data)


def _wanted(recipe: Recipe) -> list[str]:
    return [*recipe.data.features, recipe.data.label]


def _label_name(label: str, name: str, dataset: Dataset | None) -> str:
    if dataset is None or dataset.label_names is None or not label:
        return label
    if not label.isdecimal() or int(label) >= len(dataset.label_names):
        raise BadRecord(
            "unknown_label", f"'{name}' is {label[:40]}, {name}.labels.txt names {len(dataset.label_names)}"
        )
    return dataset.label_names[int(label)]


def _image(features: Mapping[str, Any], names: tuple[str, ...]) -> bytes:
    for name in names:
        if name in features and features[name].bytes_list.value:
            return bytes(features[name].bytes_list.value[0])
    raise BadRecord(
        "not_an_image", f"no bytes in {' or '.join(names)}; the example has {', '.join(sorted(features))[:80]}"
    )


def _text(feature: Any, name: str) -> str:
    """Return the one value of a tf.train.Feature as text, empty where it has none."""
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else ()
    if len(values) > 1:
        raise BadRecord("mistyped_value", f"'{name}': one value is expected, {len(values)} were found")
    if not values:
        return ""
    if kind != "bytes_list":
        return repr(values[0])
    try:
        return bytes(values[0]).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecord("mistyped_value", f"'{name}': is not UTF-8, {values[0][:40]!r} was found") from error
