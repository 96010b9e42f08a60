"""Random images as the committed output of preprocess: for benchmarks that need bytes of a size, not something to learn."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts import SPLITS, Examples, Feature, ImageShape, RawFeature, SplitFiles
from trainyard.storage import storage

CLASSES = 10


def write(uri: str, size: int, examples: dict[str, int]) -> str:
    """Write JPEG images of `size` x `size` pixels, `examples` a split, below `uri`; return it."""
    draw = np.random.default_rng(1)
    splits: dict[str, SplitFiles] = {}
    with storage.stage(uri, producer="trainyard.preprocess") as folder:
        (folder / "examples").mkdir()
        for split in SPLITS:
            name = f"examples/{split}-00000-of-00001.tfrecord"
            labels = draw.integers(0, CLASSES, examples[split])
            with tf.io.TFRecordWriter(str(folder / name)) as writer:
                for label in labels:
                    coarse = draw.integers(0, 256, (size // 8, size // 8, 3), np.uint8)
                    jpeg = tf.io.encode_jpeg(coarse.repeat(8, 0).repeat(8, 1)).numpy()
                    writer.write(_example(jpeg, int(label)))
            counts = [int(count) for count in np.bincount(labels, minlength=CLASSES)]
            splits[split] = SplitFiles(
                examples=examples[split], files=[name], shard_examples=[examples[split]], class_counts=counts
            )
        Examples(
            task="classification",
            label="label",
            labels=[str(label) for label in range(CLASSES)],
            splits=splits,
            features=[Feature(name="image", dtype="float32", shape=(size, size, 3), encoded=True)],
            raw_features=[RawFeature(name="image", dtype="string")],
            image=ImageShape(height=size, width=size, channels=3),
            quarantined=0,
            quarantine={},
            warnings=[],
            fingerprint="random",
        ).write(folder)
    return uri


def _example(jpeg: bytes, label: int) -> bytes:
    feature = {
        "raw/image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"random"])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


if __name__ == "__main__":
    write(sys.argv[1], 96, {"train": 512, "eval": 64, "test": 64})
