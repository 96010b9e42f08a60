"""Committed outputs for the tests of export: digits as PNG images and a mixed table, each with a trained network."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tests import small_documents

from trainyard.contract.artifacts.preprocess import (
    Column,
    Examples,
    Feature,
    ImageShape,
    RawFeature,
    SplitFiles,
    Unknown,
)
from trainyard.data import trained
from trainyard.data.examples import load_transform, open_examples
from trainyard.data.images import decode_image
from trainyard.steps.export.formats import keras_predictor
from trainyard.storage import storage


def digits(root: Path) -> None:
    """Leave the committed outputs `examples` and `model` for 8 x 8 digits; the network is right on over nine in ten."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    shape = ImageShape(height=8, width=8, channels=1)

    class Decode(tf.Module):
        @tf.function(input_signature=[{"image": tf.TensorSpec((None,), tf.string)}])
        def transform_fn(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            spec = tf.TensorSpec((8, 8, 1), tf.float32)
            return {
                "image": tf.map_fn(lambda encoded: decode_image(encoded, shape), raw["image"], fn_output_signature=spec)
            }

    rows = [
        {"raw/image": [png(image)], "label": [int(label)], "key": [f"{index}".encode()]}
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True))
    ]
    described = document(
        features=[Feature(name="image", dtype="float32", shape=(8, 8, 1), encoded=True)],
        raw_features=[RawFeature(name="image", dtype="string")],
        image=shape,
        labels=[f"digit {label}" for label in range(10)],
    )
    commit_examples(root / "examples", described, Decode(), rows[:1400], rows[1400:])
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 1), name="image")
    hidden = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(keras.layers.Rescaling(1 / 255)(image))
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    model = keras.Model({"image": image}, keras.layers.Dense(10)(keras.layers.Dropout(0.2)(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss=loss)
    model.fit({"image": pixels[:1400, ..., None].astype(np.float32)}, labels[:1400], epochs=8, verbose=0)
    commit_model(root / "model", model)


class Prepare(tf.Module):
    """The transform of `table`, with the categories of a file."""

    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        self.asset = tf.saved_model.Asset(str(vocabulary))
        lines = tf.lookup.TextFileInitializer(
            self.asset.asset_path,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        self.ids = tf.lookup.StaticVocabularyTable(lines, 1)

    @tf.function(
        input_signature=[
            {
                "age": tf.TensorSpec((None,), tf.float32),
                "net worth": tf.TensorSpec((None,), tf.float32),
                "city": tf.TensorSpec((None,), tf.string),
            }
        ]
    )
    def transform_fn(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        worth = tf.where(tf.math.is_nan(raw["net worth"]), 5e5, raw["net worth"])
        return {
            "age": (raw["age"] - 40) / 12,
            "net worth": (worth - 5e5) / 2e5,
            "city": self.ids.lookup(raw["city"]),
        }


def table(root: Path) -> None:
    """Leave the committed outputs for three columns: a number, one of a far larger scale with gaps, and a category."""
    vocabulary = root / "city_vocabulary"
    vocabulary.write_text("Bern\nOslo\nRome\n")

    random = np.random.default_rng(7)
    prepare = Prepare(vocabulary)
    raw = {
        "age": random.uniform(18, 80, 2000).astype(np.float32),
        "net worth": np.where(random.random(2000) < 0.1, np.nan, random.normal(5e5, 2e5, 2000)).astype(np.float32),
        "city": random.choice([b"Bern", b"Oslo", b"Rome", b"Paris", b""], 2000),
    }
    features = {name: value.numpy() for name, value in prepare.transform_fn(raw).items()}
    labels = ((features["age"] + features["net worth"] + (features["city"] == 1)) > 0.5).astype(np.int64)
    rows = [
        {name: [values[row]] for name, values in features.items()}
        | {f"raw/{name}": [values[row]] for name, values in raw.items()}
        | {"label": [int(labels[row])], "key": [f"row {row}".encode()]}
        for row in range(2000)
    ]
    described = document(
        features=[
            Feature(name="age", dtype="float32", shape=()),
            Feature(name="net worth", dtype="float32", shape=()),
            Feature(name="city", dtype="int64", shape=(), vocabulary_size=4),
        ],
        raw_features=[
            RawFeature(name="age", dtype="float32", learned=Column(mean=40, standard_deviation=12)),
            RawFeature(
                name="net worth", dtype="float32", learned=Column(imputed=5e5, mean=5e5, standard_deviation=2e5)
            ),
            RawFeature(
                name="city",
                dtype="string",
                learned=Column(vocabulary="city_vocabulary", missing="", unknown=Unknown(buckets=1, first_id=3)),
            ),
        ],
        image=None,
        labels=["poor", "rich"],
    )
    statistics = {
        "age": {"train": {"mean": 49.5, "std": 18.0, "count": 1000, "missing": 0}},
        "city": {"train": {"top": [{"value": "Bern", "count": 200}], "count": 200, "missing": 0}},
    }
    commit_examples(root / "examples", described, prepare, rows[:1000], rows[1000:], statistics)
    keras.utils.set_random_seed(1)
    inputs = {
        feature.name: keras.Input(feature.shape, name=feature.name, dtype=feature.dtype)
        for feature in described.features
    }
    numbers = [keras.layers.Reshape((1,))(inputs[name]) for name in ("age", "net worth")]
    hidden = keras.layers.Concatenate()([*numbers, keras.layers.Embedding(4, 3)(inputs["city"])])
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8, "relu")(hidden)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit({name: values[:1000] for name, values in features.items()}, labels[:1000], epochs=5, verbose=0)
    commit_model(root / "model", model)


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def document(**fields: Any) -> Examples:
    return small_documents.examples(task="classification", **fields)


def commit_examples(
    uri: Path,
    document: Examples,
    transform: tf.Module,
    train: list[dict[str, Any]],
    rest: list[dict[str, Any]],
    statistics: dict[str, Any] | None = None,
) -> None:
    with storage.stage(str(uri), producer="trainyard.preprocess") as folder:
        (folder / "statistics.json").write_text(
            json.dumps({"examples": {}, "classes": {}, "features": statistics or {}})
        )
        (folder / "examples").mkdir()
        splits = {}
        for split, rows in (("train", train), ("eval", rest)):
            names = [f"examples/{split}-{shard:05d}-of-00002.tfrecord" for shard in range(2)]
            for shard, name in enumerate(names):
                with tf.io.TFRecordWriter(str(folder / name)) as writer:
                    for row in rows[shard::2]:
                        writer.write(example(row))
            shard_examples = [len(rows[shard::2]) for shard in range(2)]
            splits[split] = SplitFiles(
                examples=len(rows), files=names, shard_examples=shard_examples, class_counts=None
            )
        tf.saved_model.save(transform, str(folder / "transform" / "transform_fn"))
        document.model_copy(update={"splits": splits}).write(folder)


def commit_model(uri: Path, model: keras.Model) -> None:
    with storage.stage(str(uri), producer="trainyard.train") as folder:
        model.save(folder / "model.keras")


def example(row: dict[str, list[Any]]) -> bytes:
    feature = {}
    for name, values in row.items():
        if isinstance(values[0], bytes):
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(values[0], int | np.integer):
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def check_scripts(exported: Path, examples: str, model: str) -> None:
    """Run the example script of each format as it is written; each prints the answer of the trained model."""
    folder, argument = open_examples(examples), exported / "examples" / "row.json"
    if folder.document.image:
        argument = argument.with_name("photo.png")
        raw, _labels = next(iter(folder.raw_batches("eval", 1)))
        argument.write_bytes(raw["image"].numpy()[0])
    else:
        raw = {name: tf.constant([value]) for name, value in json.loads(argument.read_text()).items()}
    predict = keras_predictor(trained.load(model), folder.document)
    (expected,) = predict(load_transform(examples)(raw), raw)
    for name, entry in json.loads((exported / "signature.json").read_text())["formats"].items():
        script, printed = exported / entry["example"], io.StringIO()
        assert len(script.read_text().splitlines()) <= 20
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(sys, "argv", [str(script), str(argument)])
            patch.setattr(sys, "path", [*sys.path])
            runpy.run_path(str(script), run_name="__main__")
        sys.modules.pop("preprocess", None)
        numbers = [float(text) for text in re.findall(r"(?<![\w'.])-?\d+\.\d*(?:e[+-]?\d+)?", printed.getvalue())]
        tolerance = 1e-5 if not name.startswith("litert") or name == "litert_float32" else 0.1
        np.testing.assert_allclose(numbers, expected, rtol=tolerance, atol=tolerance, err_msg=name)
