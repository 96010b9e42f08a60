"""Committed folders of preprocess and train over real data, written by the real document classes: small and quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests import small_documents

import trainyard.data  # noqa: F401  (chooses Keras 3 before TensorFlow is imported)

import keras  # isort: skip
import tensorflow as tf  # isort: skip

from trainyard.contract.artifacts.preprocess import Examples, Feature, ImageShape, RawFeature, SplitFiles
from trainyard.contract.artifacts.train import Epoch, Machine, Training, TrainingSpeed
from trainyard.contract.document import SPLITS
from trainyard.storage import storage

Row = Mapping[str, Any]


def png(pixels: np.ndarray) -> bytes:
    """Return gray pixels (h, w) in 0..255 as a PNG."""
    stream = BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "png")
    return stream.getvalue()


def image_examples(uri: str, images: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> str:
    """Commit gray images (n, h, w) in 0..255 as preprocess does; three fifths train, one fifth each eval and test."""
    rows = [
        {"raw/image": png(image), "label": int(label), "key": f"{index:04d}.png"}
        for index, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    document = {
        "task": "classification",
        "label": "label",
        "labels": list(names),
        "features": [Feature(name="image", dtype="float32", shape=(*images.shape[1:], 1), encoded=True)],
        "raw_features": [RawFeature(name="image", dtype="string")],
        "image": ImageShape(height=images.shape[1], width=images.shape[2], channels=1),
    }
    return _commit(uri, rows, document)


def table_examples(uri: str, columns: Mapping[str, np.ndarray], labels: np.ndarray, names: Sequence[str] | None) -> str:
    """Commit columns (n,), of which the numeric ones are model features as they are; `names` None is a regression."""
    rows = [
        {f"raw/{name}": values[index] for name, values in columns.items()}
        | {name: float(values[index]) for name, values in columns.items() if values.dtype.kind == "f"}
        | {"label": int(labels[index]) if names else float(labels[index]), "key": f"row {index}"}
        for index in range(len(labels))
    ]
    document = {
        "task": "classification" if names else "regression",
        "label": "target",
        "labels": list(names) if names else None,
        "features": [
            Feature(name=name, dtype="float32", shape=())
            for name, values in columns.items()
            if values.dtype.kind == "f"
        ],
        "raw_features": [
            RawFeature(name=name, dtype="float32" if values.dtype.kind == "f" else "string")
            for name, values in columns.items()
        ],
        "image": None,
    }
    return _commit(uri, rows, document)


def trained(uri: str, examples: str, model: keras.Model, epochs: int) -> str:
    """Fit `model` with plain Keras on the train split and commit it as train does."""
    from trainyard.data.examples import open_examples

    folder = open_examples(examples)
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if folder.document.labels else "mse"
    model.compile(keras.optimizers.Adam(0.01), loss)
    batches = folder.batches("train", 32).map(lambda features, label, _key: (features, label)).cache()
    losses = model.fit(batches, epochs=epochs, verbose=0, shuffle=False).history["loss"]
    with storage.stage(uri, "trainyard.train") as output:
        model.save(output / "model.keras")
        _training(model, losses).write(output)
    return uri


def classifier(examples: str, units: int = 32) -> keras.Model:
    """Return a small untrained network over the folder's features, with logits."""
    document = Examples.read(examples)
    inputs = {feature.name: keras.Input(feature.shape, name=feature.name) for feature in document.features}
    flat = [
        keras.layers.Rescaling(1 / 255)(keras.layers.Flatten()(inputs[feature.name]))
        if feature.encoded
        else keras.layers.Reshape((1,))(inputs[feature.name])
        for feature in document.features
    ]
    joined = flat[0] if len(flat) == 1 else keras.layers.Concatenate()(flat)
    if not document.image:
        joined = keras.layers.BatchNormalization(momentum=0.5)(joined)
    hidden = keras.layers.Dense(units, activation="relu")(joined)
    return keras.Model(inputs, keras.layers.Dense(len(document.labels or [0]))(hidden))


def saved_model(folder: Path, answer: Any, inputs: Mapping[str, tf.DType], labels: Sequence[str] | None) -> str:
    """Commit, as push does, a SavedModel whose serving_default is `answer(**raw)`, with labels.txt."""
    module = tf.Module()
    module.serve = tf.function(answer)
    signature = module.serve.get_concrete_function(
        **{name: tf.TensorSpec((None,), dtype, name=name) for name, dtype in inputs.items()}
    )
    with storage.stage(str(folder), "trainyard.push") as staging:
        tf.saved_model.save(module, str(staging), signatures={"serving_default": signature})
        if labels:
            (staging / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    return str(folder)


def _commit(uri: str, rows: list[dict[str, Any]], document: dict[str, Any]) -> str:
    places = {split: [row for index, row in enumerate(rows) if _split(index) == split] for split in SPLITS}
    with storage.stage(uri, "trainyard.preprocess") as output:
        (output / "examples").mkdir()
        splits = {}
        for split, members in places.items():
            name = f"examples/{split}-00000-of-00001.tfrecord"
            with tf.io.TFRecordWriter(str(output / name)) as writer:
                for row in members:
                    writer.write(_example(row))
            counts = np.bincount([row["label"] for row in members]).tolist() if document["labels"] else None
            splits[split] = SplitFiles(
                examples=len(members), files=[name], shard_examples=[len(members)], class_counts=counts
            )
        small_documents.examples(splits=splits, fingerprint="f" * 16, **document).write(output)
    return uri


def _split(index: int) -> str:
    return ("train", "train", "train", "eval", "test")[index % 5]


def _example(row: dict[str, Any]) -> bytes:
    def feature(value: Any) -> tf.train.Feature:
        if isinstance(value, bytes | str):
            data = value if isinstance(value, bytes) else value.encode()
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))

    return tf.train.Example(
        features=tf.train.Features(feature={name: feature(value) for name, value in row.items()})
    ).SerializeToString()


def _training(model: keras.Model, losses: Sequence[float]) -> Training:
    return Training(
        model="small",
        parameters=model.count_params(),
        steps=len(losses) * 10,
        epochs=len(losses),
        best_epoch=len(losses),
        precision="float32",
        speed=TrainingSpeed(examples_per_second=1000.0, bottleneck="compute", step_ms=10.0, cached_step_ms=9.5),
        machine=Machine(devices=["CPU:0"]),
        history=[
            Epoch(
                epoch=index + 1,
                step=(index + 1) * 10,
                learning_rate=0.01,
                train_loss=loss,
                eval_loss=loss * 1.1,
                metric=1 - loss / 4,
                examples_per_second=900.0 + index,
                seconds=1.0,
            )
            for index, loss in enumerate(losses)
        ],
        seconds={"start": 3.0, "steps": 8.0, "eval": 1.0},
    )
