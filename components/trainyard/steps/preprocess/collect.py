"""The first pipeline: reads, checks and splits the records, and counts what the run is judged by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import tensorflow as tf
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from trainyard.contract.artifacts import SPLITS, Part, Quarantined, Split, Window
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess import progress
from trainyard.steps.preprocess.facts.summary import SplitSummary, Summarize
from trainyard.steps.preprocess.readers.files import Files
from trainyard.steps.preprocess.readers.records import Record, Value
from trainyard.steps.preprocess.readers.sources import BAD, FATAL, GOOD, ReadRecords
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.steps.preprocess.runner import pipeline
from trainyard.steps.preprocess.split import assign_split, order_key

_EXAMPLES_SHOWN = 5
_KINDS = ("split", "bad", "fatal", "repeated")


class Repeated(Part):
    """Examples of equal content: their names in order (at most five) and how many labels they have."""

    split: Split
    times: int
    labels: list[str]
    sources: list[str]


@dataclass(frozen=True)
class Collected:
    """What the first pipeline found.

    records: the pattern of its TFRecord files, for the second pipeline. left_out: the files that are not of the format.
    """

    records: str
    splits: dict[Split, SplitSummary]
    bad: list[Quarantined]
    repeated: list[Repeated]
    window: Window | None = None
    left_out: tuple[str, ...] = ()


def collect(recipe: Recipe, files: Files, dataset: Dataset | None, work: str, beam_options: str) -> Collected:
    """Leave every good record below the folder `work` and return what was counted.

    Raises `DataError` that names the file where one is wrong as a whole, `ConfigurationError` where the workers do not
    see `work`.
    """
    with progress.told(1, len(files.paths), "files"), pipeline(beam_options) as root:
        read = root | ReadRecords(recipe, files, dataset)
        placed = read[GOOD] | "Place" >> beam.ParDo(_Place(recipe))
        splits = (
            placed
            | "Facts" >> beam.Map(lambda item: (item.split, (item.record, item.order, item.digest)))
            | "Summarize" >> beam.CombinePerKey(Summarize(recipe.data.label if recipe.task == "regression" else None))
            | "Split" >> beam.Map(lambda item: ("split", f"{item[0]}\0{item[1].model_dump_json()}"))
        )
        repeated = (
            placed
            | "Content"
            >> beam.Map(lambda item: (item.record.content, (item.record.source, item.record.label, item.split)))
            | "Equal" >> beam.GroupByKey()
            | "Repeated" >> beam.FlatMap(_repeated)
        )
        bad = read[BAD] | "Bad" >> beam.Map(lambda item: ("bad", item.model_dump_json()))
        fatal = read[FATAL] | "Fatal" >> beam.Map(lambda sentence: ("fatal", json.dumps(sentence)))
        _ = (
            (splits, repeated, bad, fatal)
            | "Findings" >> beam.Flatten()
            | "By kind" >> beam.GroupByKey()
            | "Report" >> beam.Map(_write_lines, work)
        )
        _ = (
            placed
            | "Serialize" >> beam.Map(_serialize)
            | "Keep" >> beam.io.WriteToTFRecord(f"{work}/records", file_name_suffix=".tfrecord")
        )
    _require_shared(work, beam_options)
    found = _read_findings(work)
    bad = sorted((*files.bad, *found.bad), key=lambda item: (item.source, item.reason))
    return replace(found, bad=bad, window=files.window, left_out=files.left_out)


@dataclass(frozen=True)
class _Placed:
    record: Record
    split: Split
    order: str
    digest: int


class _Place(beam.DoFn):  # type: ignore[misc]
    def __init__(self, recipe: Recipe) -> None:
        self._seed = recipe.seed
        self._fractions = recipe.data.split

    def process(self, record: Record) -> Iterator[_Placed]:
        """Yield the record with its split."""
        digest = hashlib.sha256(record.content + record.label.encode()).digest()
        yield _Placed(
            record,
            assign_split(record.content, self._seed, self._fractions),
            order_key(record.content, record.source, self._seed),
            int.from_bytes(digest, "big"),
        )


def _repeated(group: tuple[bytes, Iterable[tuple[str, str, Split]]]) -> Iterator[tuple[str, str]]:
    members = sorted(group[1])
    if len(members) > 1:
        labels = sorted({label for _, label, _ in members})
        sources = [source for source, _, _ in members[:_EXAMPLES_SHOWN]]
        found = Repeated(split=members[0][2], times=len(members), labels=labels, sources=sources)
        yield "repeated", found.model_dump_json()


def _serialize(placed: _Placed) -> bytes:
    """Return the record as a tf.Example: the raw features by name, and `_split`, `_order`, `_label` and `_source`."""
    own = {
        "_split": placed.split,
        "_order": placed.order,
        "_label": placed.record.label,
        "_source": placed.record.source,
    }
    features = {name: _feature(value) for name, value in {**placed.record.raw, **own}.items()}
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True))


def _feature(value: Value) -> Any:
    if isinstance(value, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    encoded = value if isinstance(value, bytes) else str(value).encode()
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))


def _write_lines(group: tuple[str, Iterable[str]], work: str) -> None:
    kind, lines = group
    with FileSystems.create(f"{work}/{kind}.txt", compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        stream.write("\n".join(sorted(lines)).encode())


def _require_shared(work: str, beam_options: str) -> None:
    if not FileSystems.match([f"{work}/records*"])[0].metadata_list:
        raise ConfigurationError(
            f"beam options '{beam_options}': nothing of what the workers wrote is in {work}. "
            "They must see this folder under the same name: mount one volume on all of them, or use DirectRunner."
        )


def _read_findings(work: str) -> Collected:
    lines = {kind: _lines(f"{work}/{kind}.txt") for kind in _KINDS}
    if lines["fatal"]:
        raise DataError("\n".join(map(json.loads, lines["fatal"][:_EXAMPLES_SHOWN])))
    splits = dict(line.split("\0", 1) for line in lines["split"])
    return Collected(
        records=f"{work}/records*",
        splits={
            split: SplitSummary.model_validate_json(splits[split]) if split in splits else SplitSummary()
            for split in SPLITS
        },
        bad=[Quarantined.model_validate_json(line) for line in lines["bad"]],
        repeated=sorted(
            (Repeated.model_validate_json(line) for line in lines["repeated"]), key=lambda item: item.sources
        ),
    )


def _lines(path: str) -> list[str]:
    if not FileSystems.exists(path):
        return []
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        return str(stream.read().decode()).split("\n")
