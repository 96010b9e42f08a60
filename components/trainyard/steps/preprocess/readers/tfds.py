"""Understands a prepared TensorFlow Datasets folder without the tfds package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, NonNegativeInt, ValidationError

from trainyard.errors import DataError, did_you_mean
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.files import Files, read_text
from trainyard.steps.preprocess.readers.records import BadRecord

SHARD = re.compile(r"-([^-/.]+)\.([a-z]+)-([0-9]{1,9})-of-([0-9]{1,9})$")
"""Matches a shard's name: split, format, number, number of shards."""


@dataclass(frozen=True)
class Dataset:
    """The folder's own description: class names by id, the image's feature, records by shard name."""

    label_names: list[str] | None
    image: str | None
    records: dict[str, int]

    def label_name(self, label: str, name: str) -> str:
        """Return the name of the class `label`, a number in the feature `name`. Raises `BadRecord`."""
        if self.label_names is None or not label:
            return label
        if not label.isdecimal() or int(label) >= len(self.label_names):
            count = len(self.label_names)
            raise BadRecord("unknown_label", f"'{name}' is {label[:40]}, {name}.labels.txt names {count}")
        return self.label_names[int(label)]

    def require_count(self, name: str, count: int) -> None:
        """Raise `DataError` if the shard `name` holds another number of records than its description says."""
        if count != self.records[name]:
            raise DataError(
                f"{name}: {count:,} records, dataset_info.json counts {self.records[name]:,}. Prepare it again."
            )


class _Described(BaseModel):
    """A file that describes the data set; what is not used here may be anything."""

    @classmethod
    def read(cls, root: str, name: str) -> Self:
        text = read_text(f"{root}/{name}")
        if text is None:
            raise DataError(f"{root}: no {name}, so it is no prepared TFDS folder. Name the folder of one version.")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = "".join(f"{part}: " for part in first["loc"])
            raise DataError(
                f"{root}/{name}: {place}{first['msg']}. It is not what TensorFlow Datasets writes. "
                "Prepare the data set again."
            ) from error


class _Names(BaseModel):
    features: dict[str, dict[str, Any]] = {}


class _Features(_Described):
    featuresDict: _Names = _Names()


class _Split(BaseModel):
    name: str
    shardLengths: list[NonNegativeInt] = []


class _Info(_Described):
    splits: list[_Split] = []


def read_dataset(data: Data, files: Files) -> Dataset:
    """Return the description of the TFDS folder that holds `files`.

    Raises `DataError` if it has no features.json, lacks the label, or lacks shards that dataset_info.json counts.
    Source: tensorflow_datasets/core/features/features_dict.py and splits.py (the `shardLengths` of each split).
    """
    content = _Features.read(files.root, "features.json").featuresDict.features
    info = _Info.read(files.root, "dataset_info.json")
    if data.label not in content:
        raise DataError(
            f"data.label: the TFDS folder {files.root} has no feature '{data.label}'. "
            f"It has: {', '.join(sorted(content))[:400]}.{did_you_mean(data.label, sorted(content)[:1000])}"
        )
    images = [name for name, feature in content.items() if "image" in feature]
    if data.is_image and not images:
        raise DataError(f"data.features: the TFDS folder {files.root} has no image feature. Name the columns to use.")
    names = read_text(f"{files.root}/{data.label}.labels.txt")
    return Dataset(
        label_names=_lines(names) if names is not None else None,
        image=sorted(images)[0] if images else None,
        records=_shard_records(info, files),
    )


def _lines(text: str) -> list[str]:
    """Return the lines of `text`, which end in LF or CR LF: a label may hold what else Python splits at."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _shard_records(info: _Info, files: Files) -> dict[str, int]:
    lengths = {split.name: split.shardLengths for split in info.splits}
    if files.official:
        used = {match[1] for name in files.official.parts if (match := SHARD.search(name))}
        lengths = {name: shards for name, shards in lengths.items() if name in used}
    records: dict[str, int] = {}
    for name in (files.name(path) for path in files.paths):
        match = SHARD.search(name)
        if match is None or match[1] not in lengths:
            raise DataError(
                f"{files.root}/{name}: belongs to no split of dataset_info.json. Splits: {', '.join(lengths)}."
            )
        shards = len(lengths[match[1]])
        if int(match[4]) != shards or int(match[3]) >= shards:
            raise DataError(
                f"{files.root}/{name}: is shard {match[3]} of {match[4]}, dataset_info.json counts {shards} from 0 on. "
                "Prepare the data set again."
            )
        records[name] = lengths[match[1]][int(match[3])]
    count, expected = len(records), sum(map(len, lengths.values()))
    if count != expected:
        raise DataError(
            f"{files.root}: {count} shards found, dataset_info.json counts {expected}. Prepare the data set again."
        )
    return records
