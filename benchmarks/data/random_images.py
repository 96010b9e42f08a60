"""Random images as the committed output of preprocess: for benchmarks that need bytes of a size, not a lesson."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import Examples, Feature, ImageShape, RawFeature, SplitFiles
from trainyard.contract.document import SPLITS
from trainyard.steps.preprocess.shards import count_shards, shard_name, write_shard
from trainyard.storage import storage

CLASSES = 10


def write(uri: str, size: int, examples: dict[str, int]) -> str:
    """Write JPEG images of `size` x `size` pixels, `examples` a split, below `uri`; return it."""
    draw = np.random.default_rng(1)

    def image() -> tf.Tensor:
        coarse = draw.integers(0, 256, (size // 8, size // 8, 3), np.uint8)
        return tf.io.encode_jpeg(coarse.repeat(8, 0).repeat(8, 1))

    return _write(uri, size, examples, image)


def write_photographs(uri: str, stored: int, size: int, examples: int) -> str:
    """Write JPEG images of `stored` x `stored` pixels for a model of `size`, as large in bytes as photographs."""
    draw = np.random.default_rng(1)
    kinds = [_smooth_noise(stored, draw) for _ in range(32)]
    numbers = itertools.count()

    def image() -> tf.Tensor:
        return tf.io.encode_jpeg(kinds[next(numbers) % len(kinds)], quality=90)

    return _write(uri, size, {"train": examples, "eval": 1, "test": 1}, image)


def _smooth_noise(size: int, draw: np.random.Generator) -> np.ndarray:
    image = np.full((size, size, 3), 128, np.float32)
    for cells, deviation in ((8, 90), (32, 40), (128, 14), (size, 6)):
        noise = draw.normal(0, deviation, (cells, cells, 3)).astype(np.float32)
        image += tf.image.resize(noise, (size, size), "bicubic").numpy()
    return np.clip(image, 0, 255).astype(np.uint8)


def _write(uri: str, size: int, examples: dict[str, int], image: Callable[[], tf.Tensor]) -> str:
    draw = np.random.default_rng(1)
    rows = {}
    for split in SPLITS:
        labels = draw.integers(0, CLASSES, examples[split])
        rows[split] = [(image().numpy(), int(label)) for label in labels]
    return commit(uri, (size, size, 3), CLASSES, rows)


def commit(uri: str, shape: tuple[int, int, int], classes: int, rows: dict[str, list[tuple[bytes, int]]]) -> str:
    """Write encoded images and their labels, `rows` a split, as preprocess would below `uri`; return it."""
    splits: dict[str, SplitFiles] = {}
    with storage.stage(uri, producer="trainyard.preprocess") as folder:
        (folder / "examples").mkdir()
        for split in SPLITS:
            count = len(rows[split])
            shards = count_shards(count, None)
            bounds = [count * shard // shards for shard in range(shards + 1)]
            names = [f"examples/{shard_name(split, shard, shards)}" for shard in range(shards)]
            for name, (start, end) in zip(names, itertools.pairwise(bounds), strict=True):
                write_shard((_example(*row) for row in rows[split][start:end]), folder / name)
            class_counts = [int(number) for number in np.bincount([label for _, label in rows[split]], None, classes)]
            shard_examples = np.diff(bounds).tolist()
            splits[split] = SplitFiles(
                examples=count, files=names, shard_examples=shard_examples, class_counts=class_counts
            )
        Examples(
            task="classification",
            label="label",
            labels=[str(label) for label in range(classes)],
            splits=splits,
            features=[Feature(name="image", dtype="float32", shape=shape, encoded=True)],
            raw_features=[RawFeature(name="image", dtype="string")],
            image=ImageShape(height=shape[0], width=shape[1], channels=shape[2]),
            quarantined=0,
            quarantine={},
            warnings=[],
            fingerprint="random",
        ).write(folder)
    return uri


def _example(image: bytes, label: int) -> bytes:
    feature = {
        "raw/image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"random"])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write(sys.argv[1], 96, {"train": 512, "eval": 64, "test": 64})
    else:
        write_photographs(sys.argv[1], *map(int, sys.argv[2:]))
