"""Understands a prepared TensorFlow Datasets folder without the tfds package."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from trainyard.core.errors import DataError, did_you_mean
from trainyard.core.recipe import Data
from trainyard.preprocess.files import Files, read_text

_SHARD = re.compile(r"-([^-/.]+)\.([a-z]+)-(\d+)-of-(\d+)$")


@dataclass(frozen=True)
class Dataset:
    """What the folder's own description says: class names by id, the image's feature, records by shard name."""

    label_names: list[str] | None
    image: str | None
    records: dict[str, int]


def read_dataset(data: Data, files: Files) -> Dataset:
    """Return the description of the TFDS folder that holds `files`.

    Raises `DataError` where it has no features.json, lacks the label, or lacks shards that dataset_info.json counts.
    Source: tensorflow_datasets/core/features/features_dict.py and splits.py (the `shardLengths` of each split).
    """
    features = _read_json(files.root, "features.json")
    info = _read_json(files.root, "dataset_info.json")
    content = features.get("featuresDict", {}).get("features", {})
    if data.label not in content:
        raise DataError(
            f"data.label: the TFDS folder {files.root} has no feature '{data.label}'. "
            f"It has: {', '.join(sorted(content))}.{did_you_mean(data.label, content)}"
        )
    images = [name for name, feature in content.items() if "image" in feature]
    if data.is_image and not images:
        raise DataError(f"data.features: the TFDS folder {files.root} has no image feature. Name the columns to use.")
    names = read_text(f"{files.root}/{data.label}.labels.txt")
    return Dataset(
        label_names=names.splitlines() if names is not None else None,
        image=sorted(images)[0] if images else None,
        records=_shard_records(info, files),
    )


def _shard_records(info: dict[str, Any], files: Files) -> dict[str, int]:
    lengths = {split["name"]: [int(n) for n in split.get("shardLengths", [])] for split in info.get("splits", [])}
    records: dict[str, int] = {}
    for name in (files.name(path) for path in files.paths):
        match = _SHARD.search(name)
        if match is None or match[1] not in lengths:
            raise DataError(
                f"{files.root}/{name}: belongs to no split of dataset_info.json. Splits: {', '.join(lengths)}."
            )
        if int(match[4]) != len(lengths[match[1]]):
            raise DataError(
                f"{files.root}/{name}: is one of {match[4]} shards, dataset_info.json counts {len(lengths[match[1]])}."
            )
        records[name] = lengths[match[1]][int(match[3])]
    found, expected = len(records), sum(map(len, lengths.values()))
    if found != expected:
        raise DataError(
            f"{files.root}: {found} shards found, dataset_info.json counts {expected}. Prepare the data set again."
        )
    return records


def _read_json(root: str, name: str) -> dict[str, Any]:
    text = read_text(f"{root}/{name}")
    if text is None:
        raise DataError(f"{root}: no {name}, so it is no prepared TFDS folder. Name the folder of one version.")
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise DataError(f"{root}/{name}: not valid JSON ({error}). Prepare the data set again.") from error
