"""Small committed preprocess folders on which the training tests run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tests import small_documents

from trainyard.contract.artifacts.preprocess import Feature, ImageShape, RawFeature, SplitFiles
from trainyard.contract.document import SPLITS
from trainyard.storage import storage


def digits(
    uri: Path | str,
    limit: int = 1797,
    shards: int = 1,
    classes: range = range(10),
    scale: int = 1,
    train_limit: int | None = None,
) -> str:
    """Write scikit-learn's digits as encoded PNG, split 80/10/10 by the hash of the pixels.

    classes: those that are kept. scale: of the sides of 8 pixels. train_limit: the training split keeps so many.
    """
    bunch = load_digits()
    rows = {split: [] for split in SPLITS}
    for image, label in zip(bunch.images[:limit], bunch.target[:limit], strict=True):
        if label not in classes:
            continue
        label -= classes.start
        pixels = np.kron(np.clip(image * 16, 0, 255).astype(np.uint8), np.ones((scale, scale), np.uint8))[..., None]
        tenth = hashlib.sha256(pixels.tobytes()).digest()[0] * 10 // 256
        png = tf.io.encode_png(pixels).numpy()
        rows["test" if tenth == 0 else "eval" if tenth == 1 else "train"].append(
            {"raw/image": _bytes(png), "label": _ints(int(label)), "key": _bytes(b"digit")}
        )
    rows["train"] = rows["train"][:train_limit]
    side = 8 * scale
    feature = Feature(name="image", dtype="float32", shape=(side, side, 1), encoded=True)
    image = ImageShape(height=side, width=side, channels=1)
    return _commit(uri, _dealt(rows, shards), [feature], [str(label) for label in classes], image)


def table(uri: Path | str, examples: int = 300, shards: int = 1) -> str:
    """Write a regression: y = 100 + 20 a - 10 b + 5 [c = 1] + noise of deviation 1."""
    draw = np.random.default_rng(7)
    a, b = draw.normal(size=(2, examples))
    c = draw.integers(0, 3, examples)
    y = 100 + 20 * a - 10 * b + 5 * (c == 1) + draw.normal(size=examples)
    rows = {split: [] for split in SPLITS}
    for index in range(examples):
        rows["test" if index % 10 == 0 else "eval" if index % 10 == 1 else "train"].append(
            {
                "numbers": _floats(a[index], b[index]),
                "c": _ints(int(c[index])),
                "label": _floats(y[index]),
                "key": _bytes(str(index).encode()),
            }
        )
    features = [
        Feature(name="numbers", dtype="float32", shape=(2,)),
        Feature(name="c", dtype="int64", shape=(), vocabulary_size=4),
    ]
    return _commit(uri, _dealt(rows, shards), features, None, None)


def numbers(uri: Path | str, shards: list[int]) -> str:
    """Write shards of so many examples; feature and class of each are its number in the split's stored order."""
    rows = [
        {"number": _floats(number), "label": _ints(number), "key": _bytes(b"number")} for number in range(sum(shards))
    ]
    shard_rows = [rows[sum(shards[:index]) :][:count] for index, count in enumerate(shards)]
    labels = [str(number) for number in range(len(rows))]
    feature = Feature(name="number", dtype="float32", shape=())
    return _commit(uri, dict.fromkeys(SPLITS, shard_rows), [feature], labels, None)


def _dealt(rows: dict, shards: int) -> dict:
    return {split: [split_rows[shard::shards] for shard in range(shards)] for split, split_rows in rows.items()}


def _commit(uri: Path | str, shards: dict, features: list, labels: list | None, image: ImageShape | None) -> str:
    with storage.stage(str(uri), producer="trainyard.preprocess") as folder:
        (folder / "examples").mkdir()
        splits = {}
        for split in SPLITS:
            names = [
                f"examples/{split}-{i:05d}-of-{len(shards[split]):05d}.tfrecord" for i in range(len(shards[split]))
            ]
            for rows, name in zip(shards[split], names, strict=True):
                with tf.io.TFRecordWriter(str(folder / name)) as writer:
                    for row in rows:
                        writer.write(tf.train.Example(features=tf.train.Features(feature=row)).SerializeToString())
            shard_rows = [len(rows) for rows in shards[split]]
            counts = None
            if labels:
                ids = [row["label"].int64_list.value[0] for rows in shards[split] for row in rows]
                counts = [int(count) for count in np.bincount(ids, minlength=len(labels))]
            splits[split] = SplitFiles(
                examples=sum(shard_rows), files=names, shard_examples=shard_rows, class_counts=counts
            )
        moments = {}
        for split in () if labels else SPLITS:
            targets = [row["label"].float_list.value[0] for rows in shards[split] for row in rows]
            moments[split] = [(float(np.mean(targets)), float(np.std(targets)))] if targets else []
        small_documents.examples(
            task="classification" if labels else "regression",
            target_moments=moments.get("train", []),
            target_log_moments={"log1p": moments["train"]} if moments else {},
            eval_target_moments=moments.get("eval", []),
            labels=labels,
            splits=splits,
            features=features,
            raw_features=[RawFeature(name=f.name, dtype="string") for f in features],
            image=image,
        ).write(folder)
    return str(uri)


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
