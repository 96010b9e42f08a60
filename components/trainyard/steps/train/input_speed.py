"""Measures the examples a second of a training's input alone: an upper bound for the speed of any model.

Reads, decodes and augments some of the recipe's examples through the training's own pipeline: from shards of encoded
images, from shards of pixels, and from memory.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import Examples, Feature, SplitFiles
from trainyard.contract.artifacts.train import InputSpeed
from trainyard.data.examples import ExampleFolder
from trainyard.graph import producer, remedy
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.input.input import Input
from trainyard.storage import storage

_EXAMPLES, _BYTES = 2048, 64 << 20  # chosen: examples, or bytes of pixels, that are read repeatedly
_WARM_UP_SECONDS, _PART_SECONDS, _PARTS = 0.4, 0.2, 3  # chosen: a second a source
_EPOCHS = 1_000_000  # more than are read
_ANY_SIZE = 1 << 60
_FILE = "examples/train-00000-of-00001.tfrecord"
JPEG, PNG, RAW, MEMORY = "JPEG shards", "PNG shards", "raw shards", "memory"


def speeds(recipe: Recipe, examples: str) -> Iterator[InputSpeed]:
    """Yield the speed of each source for the training images of the committed preprocess output `examples`."""
    document = Examples.read(examples)
    feature = next(feature for feature in document.features if feature.encoded)
    count = _count(recipe, feature)
    files = _first_files(document.splits["train"], count)
    local = storage.local(examples, remedy("preprocess"), lambda name: not name.endswith(".tfrecord") or name in files)
    folder = ExampleFolder(str(local))
    records = _records(folder, files, count, recipe.train.batch_size)
    other = _rewrite_images(folder, records, feature)
    encoded, pixels = (other, records) if feature.pixels else (records, other)
    streams = not Input(recipe, folder, None).fits("train")
    kind = JPEG if _is_jpeg(encoded[0], feature) else PNG
    with tempfile.TemporaryDirectory(prefix="trainyard-") as root:
        shards = {
            kind: _write_split(f"{root}/encoded", document, encoded, feature, pixels=False),
            RAW: _write_split(f"{root}/raw", document, pixels, feature, pixels=True),
        }
        own = RAW if feature.pixels else kind
        for source, copy in {**shards, MEMORY: shards[own]}.items():
            used = source == (own if streams else MEMORY)
            rates = _measure_rates(recipe, copy, _ANY_SIZE if source == MEMORY else 0)
            yield InputSpeed(
                source=source,
                examples_per_second=round(sum(rates) / len(rates), 1),
                low=round(min(rates), 1),
                high=round(max(rates), 1),
                used=used,
            )


def _count(recipe: Recipe, feature: Feature) -> int:
    """Return the number of examples to read: at least a batch."""
    size = max(1, math.prod(feature.shape))
    return max(recipe.train.batch_size, min(_EXAMPLES, _BYTES // size))


def _first_files(split: SplitFiles, count: int) -> list[str]:
    """Return the first shards that hold `count` examples."""
    before = [0, *itertools.accumulate(split.shard_examples)]
    return [file for file, preceding in zip(split.files, before, strict=False) if preceding < count]


def _records(folder: ExampleFolder, files: Sequence[str], count: int, batch_size: int) -> list[bytes]:
    """Return the first serialized training examples, cut to whole batches if there are enough."""
    data = tf.data.TFRecordDataset([storage.join(folder.uri, file) for file in files]).take(count)
    records = [bytes(record) for record in data.as_numpy_iterator()]
    return records[: len(records) // batch_size * batch_size] or records


def _rewrite_images(folder: ExampleFolder, records: Sequence[bytes], feature: Feature) -> list[bytes]:
    """Return `records` with pixels instead of encoded images, or with JPEGs instead of pixels."""
    written = []
    decode = tf.autograph.experimental.do_not_convert(folder.decode)
    images = tf.data.Dataset.from_tensor_slices(records).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    for record, (features, _) in zip(records, images, strict=True):
        image = features[feature.name]
        content = tf.io.encode_jpeg(image).numpy() if feature.pixels else image.numpy().tobytes()
        example = tf.train.Example.FromString(record)
        example.features.feature[f"raw/{feature.name}"].bytes_list.value[0] = bytes(content)
        written.append(bytes(example.SerializeToString()))
    return written


def _is_jpeg(record: bytes, feature: Feature) -> bool:
    example = tf.train.Example.FromString(record)
    return bool(example.features.feature[f"raw/{feature.name}"].bytes_list.value[0][:2] == b"\xff\xd8")


def _write_split(
    uri: str, document: Examples, records: Sequence[bytes], feature: Feature, *, pixels: bool
) -> ExampleFolder:
    """Commit `records` as the training split of a preprocess output at `uri` and return it."""
    features = [
        item.model_copy(update={"pixels": pixels}) if item.name == feature.name else item for item in document.features
    ]
    train = document.splits["train"].class_counts
    split = SplitFiles(examples=len(records), files=[_FILE], shard_examples=[len(records)], class_counts=train)
    with storage.stage(uri, producer=producer("preprocess")) as folder:
        (folder / "examples").mkdir()
        with tf.io.TFRecordWriter(str(Path(folder) / _FILE)) as writer:
            for record in records:
                writer.write(record)
        copied = document.model_copy(update={"features": features, "splits": {**document.splits, "train": split}})
        copied.write(folder)
    return ExampleFolder(uri)


def _measure_rates(recipe: Recipe, folder: ExampleFolder, memory_bytes: int) -> list[float]:
    """Return the examples a second of several time slices, after a warm-up in which tf.data tunes itself."""
    train = recipe.train.model_copy(update={"epochs": _EPOCHS})
    data = Input(recipe.model_copy(update={"train": train}), folder, None, memory_bytes=memory_bytes)
    examples = min(recipe.train.batch_size, folder.document.splits["train"].examples) / recipe.train.accumulation_steps
    batches = iter(data.train(0))
    _count_batches(batches, _WARM_UP_SECONDS)
    rates = []
    for _ in range(_PARTS):
        start = time.perf_counter()
        count = _count_batches(batches, _PART_SECONDS)
        rates.append(examples * count / (time.perf_counter() - start))
    return rates


def _count_batches(batches: Iterator[object], seconds: float) -> int:
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        next(batches)
        count += 1
    return count
