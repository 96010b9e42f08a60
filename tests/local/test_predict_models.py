"""Predictions of pushed models, exported for real: held against a bare loop over the same file and against evaluate."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import gzip
import importlib.util
import io
import json
import os
import queue
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import browser
import export_folders as made
import grpc
import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from google.protobuf import descriptor_pool, json_format
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from object_stores import Store
from PIL import Image
from ports import free_port
from pyarrow import compute as pa_compute
from pyarrow import dataset, parquet
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

import trainyard as ty
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Interval, Verdict
from trainyard.contract.artifacts.predict import Predicted
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.pushed_versions import CANDIDATE, PushedVersion, set_alias
from trainyard.contract.statistics.drift import Statistics
from trainyard.contract.version import EXTRA, PREPROCESSING, Champion, layout, set_champion
from trainyard.data.examples import load_transform, open_examples
from trainyard.data.trained import load
from trainyard.errors import ConfigurationError, DataError
from trainyard.process import memory
from trainyard.serving import batches, transport, workers
from trainyard.serving import server as server
from trainyard.serving.options import LogOptions
from trainyard.serving.rpc import RpcServer
from trainyard.serving.service import Service
from trainyard.serving.versions import ServingVersion
from trainyard.spec import documents
from trainyard.spec import environment as environments
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import measure
from trainyard.steps.evaluate.predict import model_predictions, replicated
from trainyard.steps.export import device, signature
from trainyard.steps.predict import run as step
from trainyard.steps.predict.prediction import PredictionSummary, predict
from trainyard.steps.predict.pushed_model import PushedModel, find_model
from trainyard.steps.predict.served import ServedModel
from trainyard.steps.push import versions
from trainyard.storage import storage
from trainyard.storage.buckets import stores
from trainyard_control.api.model import Predictions
from trainyard_control.cli.main import app
from trainyard_control.targets import mlflow, vertex

SERVE_PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
DIGITS = "name: digits\ndata: {format: image_folder, bundled: digits, channels: 1}\nmodel: {name: cnn_small}\n"
TABLE = """
name: table
evaluate: {slices: [city, age, label], bootstrap: 50}
data: {format: csv, path: x.csv, features: {age: {type: numeric}, net worth: {type: numeric}, city: {type: category}}}
model: {name: mlp}
"""


def pushed(root: Path, recipe: str, thresholds: dict[str, float]) -> str:
    """Push the model of `root` as `export` and `push` do, the SavedModel alone; return the version's folder."""
    examples = open_examples(str(root / "examples"))
    with storage.stage(str(root / "exported"), producer="trainyard.export") as staging:
        transform = load_transform(examples.uri)
        parsed = documents.parse(recipe, Recipe, name="recipe.yaml")
        network, document = load(str(root / "model")), examples.document
        signature.save(network, transform, document, staging / "saved_model", parsed.data, thresholds)
        device.write(parsed, document, examples.uri, [], staging, thresholds)
        (staging / Statistics.file).write_text("{}")
        Exports(exports=[], gate=Verdict(verdict="blessed", thresholds=[])).write(staging)
    exported = str(root / "exported")
    manifest, kept = (
        storage.require(exported),
        VersionRecord(
            recipe=parsed.model_dump(mode="json"),
            metrics={"accuracy": 0.5},
            intervals={"accuracy": Interval(low=0.4, high=0.6)},
        ),
    )
    versions.publish(exported, layout(manifest), manifest, str(root / "models"), 1, kept)
    return str(root / "models" / "1")


def part_answers(folder: Path) -> dict[str, list]:
    """Return the columns of all parts of a prediction's folder, in their order."""
    parts = [parquet.read_table(folder / name) for name in Predicted.read(str(folder)).parts]
    return pa.concat_tables(parts).to_pydict()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("digits")
    made.digits(root)
    pushed(root, DIGITS, {"digit 3": 0.0078125})
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    made.table(root)
    pushed(root, TABLE, {"rich": 0.25})
    return root


def quietly(done: int, total: int, unit: str) -> None:
    assert done >= 0 and unit in ("rows", "images")


def run(root: Path, source: Path, out: Path, key: str | None = None) -> tuple[PredictionSummary, dict[str, list]]:
    summary = predict(find_model(str(root / "models" / "1")), str(source), out, key, quietly)
    return summary, parquet.read_table(out).to_pydict()


def scores(columns: dict[str, list], labels: list[str]) -> np.ndarray:
    return np.array([columns[f"score_{label}"] for label in labels], np.float32).T


def evaluated(root: Path, size: int) -> dict[str, np.ndarray]:
    """Return the probabilities that evaluate measures on the eval split, by the examples' keys."""
    examples = open_examples(str(root / "examples"))
    predictions, keys = model_predictions(
        replicated(str(root / "model"), examples),
        "model",
        examples,
        "eval",
        examples.batches("eval", size),
        lambda _: None,
    )
    return dict(zip([key.decode() for key in keys], predictions.outputs, strict=True))


def raw_examples(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the raw features of the eval split by the examples' keys."""
    examples = {}
    for record in tf.data.TFRecordDataset(open_examples(str(root / "examples")).files("eval")):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        raw = {name[4:]: features[name] for name in features if name.startswith("raw/")}
        examples[features["key"].bytes_list.value[0].decode()] = {
            name: (value.bytes_list.value or value.float_list.value)[0] for name, value in raw.items()
        }
    return examples


def test_images_get_the_probabilities_of_the_file_and_of_evaluate_and_bad_ones_cost_themselves(
    digits: Path, tmp_path: Path
) -> None:
    folder, labels = tmp_path / "images", [f"digit {label}" for label in range(10)]
    raw = {key: values["image"] for key, values in raw_examples(digits).items()}
    for key, encoded in raw.items():
        path = folder / str(int(key) % 7) / f"{key}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded)
    broken = next(iter(raw.values()))
    (folder / "3" / "cut.png").write_bytes(broken[:60])
    (folder / "nothing.png").write_bytes(b"")
    last = next(reversed(raw))  # without its IEND, which training takes and TensorFlow refuses
    next(folder.rglob(f"{last}.png")).write_bytes(raw[last][:-12])
    summary, got = run(digits, folder, tmp_path / "p.parquet")
    assert summary.predicted == len(raw) == 397
    assert summary.reasons == {"zero_bytes": 1, "truncated_image": 1}
    assert "3/cut.png,truncated_image,image file is truncated" in (tmp_path / "p.parquet.rejected.csv").read_text()

    serve = tf.saved_model.load(str(digits / "models" / "1"))
    measured = evaluated(digits, 397)
    keys = [Path(key).stem for key in got["key"]]
    bare = serve.signatures["serving_default"](image=tf.constant([raw[key] for key in keys]))
    np.testing.assert_allclose(scores(got, labels), bare["probabilities"].numpy(), atol=1e-6)
    np.testing.assert_allclose(scores(got, labels), [measured[key] for key in keys], atol=1e-5)
    assert got["prediction"] == [label.decode() for label in bare["label"].numpy()]
    probabilities = scores(got, labels)
    ids = np.where(probabilities[:, 3] > 0.0078125, 3, np.argmax(np.delete(probabilities, 3, axis=1), axis=1))
    ids = np.where((probabilities[:, 3] <= 0.0078125) & (ids >= 3), ids + 1, ids)
    assert bare["label_id"].numpy().tolist() == ids.tolist() != probabilities.argmax(axis=1).tolist()
    np.testing.assert_array_equal(got["score"], probabilities[np.arange(397), ids])


def test_images_of_a_tfrecord_file_get_the_answers_of_the_files(digits: Path, tmp_path: Path) -> None:
    raw = list(raw_examples(digits).items())[:20]
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for index, (_, values) in enumerate(raw):
            writer.write(made.example({"image/encoded" if index % 2 else "image": [values["image"]]}))
        writer.write(made.example({"other": [1]}))
    summary, got = run(digits, tmp_path / "a.tfrecord", tmp_path / "p.parquet")
    assert summary.reasons == {"not_an_image": 1}
    assert got["key"] == [f"a.tfrecord:{number}" for number in range(1, 21)]
    measured = evaluated(digits, 397)
    labels = [f"digit {label}" for label in range(10)]
    np.testing.assert_allclose(scores(got, labels), [measured[key] for key, _ in raw], atol=1e-5)


@pytest.mark.parametrize("ending", ["csv", "parquet", "tfrecord"])
def test_rows_get_the_probabilities_of_the_file_and_of_evaluate(table: Path, tmp_path: Path, ending: str) -> None:
    raw, path = raw_examples(table), tmp_path / f"a.{ending}"
    if ending == "csv":
        lines = [f"{row['city'].decode()},{row['net worth']!r},{row['age']!r}" for row in raw.values()]
        path.write_text("\n".join(["city,net worth,age", *lines]))
    elif ending == "parquet":
        columns = {name: [row[name] for row in raw.values()] for name in ("city", "net worth", "age")}
        columns |= {
            "city": [city.decode() for city in columns["city"]],
            "id": [46701234563.0 + row for row in range(1000)],
        }
        parquet.write_table(pa.table(columns), path)
    else:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in raw.values():
                present = {name: [value] for name, value in row.items() if value not in (b"",) and value == value}
                writer.write(made.example(present))
    key = "id" if ending == "parquet" else None
    summary, got = run(table, path, tmp_path / "p.parquet", key)
    assert summary.predicted == len(raw) == 1000 and summary.rejected == 0
    assert key is None or got["key"] == [str(46701234563 + row) for row in range(1000)]
    serve = tf.saved_model.load(str(table / "models" / "1"))
    bare = serve.signatures["serving_default"](
        age=tf.constant([row["age"] for row in raw.values()]),
        net_worth=tf.constant([row["net worth"] for row in raw.values()]),
        city=tf.constant([row["city"] for row in raw.values()]),
    )
    measured = evaluated(table, 1000)
    np.testing.assert_allclose(scores(got, ["poor", "rich"]), bare["probabilities"].numpy(), atol=1e-6)
    np.testing.assert_allclose(scores(got, ["poor", "rich"]), [measured[key] for key in raw], atol=1e-5)
    assert got["prediction"] == [label.decode() for label in bare["label"].numpy()]
    assert got["prediction"] == ["rich" if score > 0.25 else "poor" for score in got["score_rich"]]
    assert any(0.25 < score <= 0.5 for score in got["score_rich"]), "the threshold makes a difference"


def labelled(root: Path) -> tuple[SplitPredictions, dict[str, str]]:
    """Return the predictions that evaluate measures on the eval split, and the class of each example by its key."""
    examples = open_examples(str(root / "examples"))
    replicas = replicated(str(root / "model"), examples)
    answers, keys = model_predictions(
        replicas, "model", examples, "eval", examples.batches("eval", 397), lambda _: None
    )
    names = [examples.document.labels[label] for label in answers.labels]
    answers = dataclasses.replace(answers, thresholds=dict(find_model(str(root / "models" / "1")).thresholds))
    return answers, dict(zip([key.decode() for key in keys], names, strict=True))


def test_evaluate_measures_a_labelled_table_as_the_step_does_and_leaves_unknown_labels_out(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers, classes = labelled(table)
    rows = [(row, classes[key]) for key, row in raw_examples(table).items()]
    lines = [f"{row['city'].decode()},{row['net worth']!r},{row['age']!r},{label}" for row, label in rows]
    Path("a.csv").write_text(
        "\n".join(["city,net worth,age,label", "Bern,1,1,odd", "Bern,1,1,", "Rome,1,old,poor", *lines])
    )
    model = str(table / "models" / "1")
    got = ty.evaluate(model, "a.csv")
    assert got.metrics == pytest.approx(measure("classification", answers), abs=1e-6) and got.examples == 1000
    assert got.left_out == {"mistyped_value": 1, "unknown class 'odd'": 1, "without a label": 1}
    assert all(got.intervals[name].low <= got.metrics[name] <= got.intervals[name].high for name in ("accuracy",))
    cities = {part.name: part.examples for part in got.slices if part.name.startswith("city=")}
    assert cities == Counter(f"city={row['city'].decode() or 'missing'}" for row, _ in rows)
    assert {part.name for part in got.slices if part.name.startswith("label=")} == {"label=poor", "label=rich"}
    losses = sorted(answers.losses[~answers.right].tolist(), reverse=True)[: len(got.worst)]
    assert [item.loss for item in got.worst] == pytest.approx(losses, abs=1e-4) and got.worst[0].key.startswith(
        "a.csv:"
    )
    assert losses and all(item.label != item.predicted for item in got.worst)
    done = CliRunner().invoke(app, ["evaluate", model, "a.csv", "--html", "page.html", "-o", "json"])
    again = CliRunner().invoke(app, ["evaluate", model, "a.csv", "--html", "page.html"])
    assert "wrote page.html" in done.stderr and "replaced page.html" in again.stderr
    document = json.loads(done.stdout)
    assert document["metrics"] == got.metrics and document["test"]["metrics"] == {"accuracy": 0.5}
    assert got.worst[0].key in Path("page.html").read_text()
    text = CliRunner().invoke(app, ["evaluate", model, "a.csv"]).stdout
    assert f"{got.metrics['accuracy']:.4f} ({got.metrics['accuracy'] - 0.5:+.4f}) *" in text and "odd" in text
    Path("b.csv").write_text("city,net worth,age,klass\nBern,1,1,odd\n")
    for label, sentence in (
        ("", "b.csv: no column 'label'.* The label's column may be named by --label"),
        (
            "klass",
            "b.csv: no label in 'klass' that the model knows, the first are 'odd'. It knows the classes poor, rich",
        ),
        ("age", "no label in 'age' that the model knows, the first are '1'"),
    ):
        with pytest.raises(DataError, match=sentence):
            ty.evaluate(model, "b.csv", label=label)


def test_evaluate_takes_the_class_of_an_image_from_its_folder(digits: Path, tmp_path: Path) -> None:
    answers, classes = labelled(digits)
    for key, values in raw_examples(digits).items():
        path = tmp_path / "images" / classes[key] / f"{key}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(values["image"])
    (tmp_path / "images" / "alone.png").write_bytes(values["image"])
    got = ty.evaluate(digits / "models" / "1", tmp_path / "images")
    assert got.metrics == pytest.approx(measure("classification", answers), abs=1e-6)
    assert (got.examples, got.left_out) == (397, {"without a label": 1})
    with pytest.raises(DataError, match=r"the first are '', ''.* Name a folder with a folder of images"):
        ty.evaluate(digits / "models" / "1", tmp_path / "images" / "digit 3")


def test_a_damaged_record_ends_its_file_and_an_odd_one_costs_itself(table: Path, tmp_path: Path) -> None:
    good = made.example({"age": [40.0], "net worth": [1000], "city": [b"Bern"]})  # whole numbers too
    for name in ("a", "b"):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
            for record in (good, b"\xff\xff no example", made.example({"age": [1.0, 2.0]}), good):
                writer.write(record)
    content = bytearray((tmp_path / "a.tfrecord").read_bytes())
    content[-5] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(content)
    summary, got = run(table, tmp_path / "*.tfrecord", tmp_path / "p.parquet")
    assert got["key"] == ["a.tfrecord:1", "b.tfrecord:1", "b.tfrecord:4"]
    assert summary.reasons == {"not_an_example": 2, "mistyped_value": 2, "unreadable_file": 1}
    assert np.ptp(got["score"]) < 1e-6  # rounding depends on the place in a batch


def test_the_command_says_what_it_did_and_ends_with_10_where_nothing_could_be_read(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id,city,net worth,age\nx,Bern,1,2\ny,Oslo,many,3\n")
    models = str(table / "models" / "1")
    done = CliRunner().invoke(app, ["predict", models, "a.csv", "--key", "id", "--out", "p.jsonl", "-o", "json"])
    assert done.exit_code == 0, done.exception
    document = json.loads(done.stdout)
    assert (document["predicted"], document["rejected"], document["reasons"]) == (1, 1, {"mistyped_value": 1})
    (row,) = map(json.loads, Path("p.jsonl").read_text().splitlines())
    assert row["key"] == "x" and row["prediction"] in ("poor", "rich")
    assert Path(document["rejected_file"]).read_text().splitlines()[1].startswith("a.csv:3,mistyped_value,")
    Path("b.csv").write_text("city,net worth,age\nOslo,many,3\n")
    refused = CliRunner().invoke(app, ["predict", models, "b.csv", "--out", "q.csv"])
    assert isinstance(refused.exception, DataError) and "none of 1 inputs could be read" in str(refused.exception)
    assert not Path("q.csv").exists() and Path("q.csv.rejected.csv").exists()


def by_the_verb(root: Path, source: str, out: Path) -> pa.Table:
    done = CliRunner().invoke(app, ["predict", str(root / "models" / "1"), source, "--out", str(out)])
    assert done.exit_code == 0, done.exception
    table = parquet.read_table(out)
    assert " ".join(done.stdout.split()).endswith(f"written {table.num_rows:,} answers in {out}")
    return table


def test_mlflow_loads_and_serves_a_version_that_answers_as_predict(table: Path, digits: Path, tmp_path: Path) -> None:
    import uvicorn
    from mlflow import pyfunc
    from mlflow.pyfunc import scoring_server

    rows = list(raw_examples(table).values())[:300]
    columns = {name: [row[name] for row in rows] for name in ("age", "net worth", "city")}
    columns["city"] = [city.decode() for city in columns["city"]]
    models: list[Any] = []
    for root in (table, digits):
        shutil.copytree(root / "models" / "1", tmp_path / root.name)
        (tmp_path / root.name / "MLmodel").write_text(mlflow.model_file())
        models.append(pyfunc.load_model(str(tmp_path / root.name)))
        shutil.rmtree(tmp_path / root.name)  # it is loaded
    expected = ty.load(table / "models" / "1").predict(columns).table.drop_columns(["key"])
    frame = pd.DataFrame(columns)
    assert models[0].predict(frame).to_dict("list") == expected.to_pydict()
    images = [values["image"] for values in list(raw_examples(digits).values())[:20]]
    texts = [base64.b64encode(image).decode() for image in images]
    answers = ty.load(digits / "models" / "1").predict(images)["prediction"]
    for values in (images, texts):
        assert models[1].predict(pd.DataFrame({"image": values}))["prediction"].tolist() == answers
    for model, inputs, said in (
        (models[0], frame.assign(age="old"), "none of 300 inputs could be read"),
        (models[0], frame.assign(age=["old", *map(str, columns["age"][1:])]), "has no answer .mistyped_value"),
        (models[1], pd.DataFrame({"picture": images}), "image: a column of encoded images is expected"),
    ):
        with pytest.raises(DataError, match=said):
            model.predict(inputs)
    port = free_port()
    own = uvicorn.Server(uvicorn.Config(scoring_server.init(models[0]), port=port, log_level="error"))
    thread = threading.Thread(target=own.run)
    thread.start()
    try:
        while not own.started:
            time.sleep(0.01)
        url, content = f"http://127.0.0.1:{port}/invocations", {"Content-Type": "application/json"}
        split = json.loads(frame.to_json(orient="split", index=False))
        status, served = ask(url, {"dataframe_split": split}, **content)
        assert (
            status == 200 and [row["prediction"] for row in served["predictions"]] == expected["prediction"].to_pylist()
        )
        assert ask(url, {"dataframe_records": [{"age": "old"}]}, **content)[0] == 400
    finally:
        own.should_exit = True
        thread.join()


def equal_but_for_keys(answers: Predictions, table: pa.Table, keys: list[str]) -> bool:
    return answers["key"] == keys and answers.table.drop_columns(["key"]).equals(table.drop_columns(["key"]))


def test_python_gives_what_the_command_writes_for_every_form_of_a_table(table: Path, tmp_path: Path) -> None:
    rows = list(raw_examples(table).values())[:300]
    columns = {name: [row[name] for row in rows] for name in ("age", "net worth", "city")}
    columns["city"] = [city.decode() for city in columns["city"]]
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table(columns), path)
    verb, model = by_the_verb(table, path, tmp_path / "p.parquet"), ty.load(table / "models" / "1")
    counted = [str(row) for row in range(300)]
    arrays = {name: np.array(values) for name, values in columns.items()}
    chunked = pa.concat_tables([pa.table(columns).slice(0, 7), pa.table(columns).slice(7)])
    named = pd.DataFrame(columns, index=[f"row {row}" for row in range(300)])
    assert model.predict(path).table.equals(verb) and model.predict([path]).table.equals(verb)
    for inputs in (columns, arrays, chunked, pd.DataFrame(columns)):
        assert equal_but_for_keys(model.predict(inputs), verb, counted)
    assert equal_but_for_keys(model.predict(named), verb, list(named.index))
    assert model.predict(named, key="city")["key"] == columns["city"]


def test_python_sets_a_bad_row_aside_and_refuses_what_is_no_table(table: Path) -> None:
    model = ty.load(table / "models" / "1")
    got = model.predict({"age": ["1", "old", " 3 "], "net worth": [1, 2, 3], "city": ["Bern", "Oslo", "Rome"]})
    assert got["key"] == ["0", "2"] and [(item.key, item.reason) for item in got.rejected] == [("1", "mistyped_value")]
    wrong = {
        "no column 'age'": {"net worth": [1], "city": ["Bern"]},
        "the columns are no table": {"age": [1, 2], "net worth": [1], "city": ["Bern"]},
        "the model takes rows, a ndarray (2, 3) was given": np.ones((2, 3)),
        "holds no rows": pd.DataFrame({"age": [], "net worth": [], "city": []}),
        "none of 1 inputs could be read": {"age": ["old"], "net worth": [1], "city": ["Bern"]},
    }
    for message, inputs in wrong.items():
        with pytest.raises(ty.TrainyardError) as error:
            model.predict(inputs)
        assert isinstance(error.value, DataError) and message in str(error.value) and "\n" not in str(error.value)


def test_python_gives_what_the_command_writes_for_every_form_of_an_image(digits: Path, tmp_path: Path) -> None:
    encoded = [values["image"] for values in list(raw_examples(digits).values())[:20]]
    paths = [tmp_path / "images" / f"{number:02}.png" for number in range(20)]
    paths[0].parent.mkdir()
    for path, image in zip(paths, encoded, strict=True):
        path.write_bytes(image)
    verb = by_the_verb(digits, str(tmp_path / "images"), tmp_path / "p.parquet")
    model, counted = ty.load(str(digits / "models" / "1")), [str(number) for number in range(20)]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in encoded])
    assert pixels.shape == (20, 8, 8) and model.predict(tmp_path / "images").table.equals(verb)
    for inputs in (pixels, pixels[..., None], list(pixels), encoded):
        assert equal_but_for_keys(model.predict(inputs), verb, counted)
    assert equal_but_for_keys(model.predict(paths), verb, [str(path) for path in paths])
    colors = model.predict(np.repeat(pixels[..., None], 3, axis=3))
    assert colors["prediction"] == verb.column("prediction").to_pylist()
    refused: dict[str, object] = {"image 0 is float64": pixels / 255, "takes images, a dict": {"image": encoded}}
    one = np.repeat(pixels[0, ..., None], 3, axis=2)
    assert len(model.predict([one])) == 1
    for message, inputs in (refused | {r"of shape \(8, 8, 3\) looks like one image": one}).items():
        with pytest.raises(DataError, match=message):
            model.predict(inputs)


@pytest.mark.parametrize("content", [b"garbage", b"", b"\x08\x01" * 50])
def test_a_version_whose_saved_model_cannot_be_loaded_is_named(content: bytes, tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "1"), "trainyard.push") as folder:
        (folder / "saved_model.pb").write_bytes(content)
        (folder / "variables").mkdir()
        (folder / "variables" / "variables.index").write_bytes(content)
    model = PushedModel(folder=str(tmp_path / "1"), inputs=(), labels=("a", "b"), pixels=None)
    with pytest.raises(DataError, match=rf"{tmp_path}/1: its SavedModel cannot be loaded \(.+\)\. Push"):
        ServedModel(model, tmp_path / "1")


@pytest.fixture
def lake(table: Path, tmp_path: Path) -> Path:
    """Five files of rows: one with a bad cell, one without a column, one that is no CSV."""
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(5):
        rows = [f"{age},{age * number},{'abc'[age % 3]}" for age in range(20 + number)]
        (folder / f"{number}.csv").write_text("\n".join(["age,net worth,city", *rows]) + "\n")
    (folder / "1.csv").write_text("age,net worth,city\n30,1,a\nold,2,b\n")
    (folder / "3.csv").write_text("age,city\n30,a\n")
    (folder / "4.csv").write_bytes(b"age,net worth,city\n\xff,1,a\n")
    return folder


@pytest.mark.parametrize(
    "beam_options", ["", "--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_processing"]
)
def test_the_parts_of_a_folder_hold_the_answers_of_the_one_file(
    table: Path, lake: Path, tmp_path: Path, beam_options: str
) -> None:
    summary, whole = run(table, lake, tmp_path / "whole.parquet")
    step.run(str(table / "models" / "1"), str(lake), str(tmp_path / "out"), "", beam_options)
    predicted = Predicted.read(str(tmp_path / "out"))
    assert [name.rpartition("-")[0] for name in predicted.parts] == [
        f"part-{number:05}-of-00005" for number in range(3)
    ]
    assert (predicted.predicted, predicted.reasons, predicted.classes) == (
        summary.predicted, summary.reasons, summary.classes,
    )  # fmt: skip
    assert part_answers(tmp_path / "out") == whole
    rejected = (tmp_path / "out" / "rejected.csv").read_text().splitlines()
    assert sorted(rejected) == sorted((tmp_path / "whole.parquet.rejected.csv").read_text().splitlines())
    assert rejected[0] == "key,reason,detail" and len(rejected) == 4


def test_a_prediction_that_is_there_is_used_again_and_never_taken_for_another(
    table: Path, lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, out = str(table / "models" / "1"), str(tmp_path / "out")
    step.run(model, f"{lake}/[02].csv", out)
    assert not (tmp_path / "out" / "rejected.csv").exists()
    step.run(model, f"{lake}/[02].csv", out)
    assert "reused" in capfd.readouterr().err
    with pytest.raises(ConfigurationError, match=rf"holds predictions of inputs '{lake}/\[02\].csv'. Name another"):
        step.run(model, str(lake), out)
    with pytest.raises(ConfigurationError, match="holds predictions of key ''"):
        step.run(model, f"{lake}/[02].csv", out, "age")
    (lake / "2.csv").write_text("age,net worth,city\n1,2,a\n")
    with pytest.raises(ConfigurationError, match="of files that have changed since"):
        step.run(model, f"{lake}/[02].csv", out)


@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_a_folder_of_answers_in_a_bucket_holds_plain_files_as_on_a_disk(
    table: Path, lake: Path, tmp_path: Path, store: Store
) -> None:
    model, out = str(table / "models" / "1"), f"{store.uri}/{secrets.token_hex(4)}"
    storage.write_text(f"{out}/.attempts/killed", json.dumps(["part-00000-of-00009-00000000.parquet"]))
    storage.write_text(f"{out}/part-00000-of-00009-00000000.parquet", "half of another prediction")
    step.run(model, f"{lake}/[023].csv", out)
    step.run(model, f"{lake}/[023].csv", str(tmp_path / "here"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert {name.partition("-")[0] for name in files} == {"part", "predicted.json", "rejected.csv", "manifest.json"}
    assert set(storage.sizes(out)) == set(files)  # no other prediction's parts, and nothing hidden
    parts = [name for name in sorted(files) if name.startswith("part-")]
    assert [stores.locate(f"{out}/{name}")[0].read(stores.locate(f"{out}/{name}")[1])[0] for name in parts] == [
        files[name] for name in parts
    ]
    assert Predicted.read(out).parts == parts
    here = dataset.dataset([str(tmp_path / "here" / name) for name in parts]).count_rows()
    assert here == Predicted.read(out).predicted == 42
    storage.write_text(f"{out}-other/table.csv", "theirs")
    with pytest.raises(
        ConfigurationError, match=r"-other: holds other files, such as table\.csv\. Name another folder"
    ):
        step.run(model, f"{lake}/0.csv", f"{out}-other")


def test_a_prediction_without_any_answer_leaves_nothing(table: Path, lake: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"3\.csv: no column 'net worth'"):
        step.run(str(table / "models" / "1"), str(lake / "3.csv"), str(out))
    with pytest.raises(DataError, match=r"none of 1 inputs could be read \(unreadable_file 1\), the first is 4\.csv"):
        step.run(str(table / "models" / "1"), str(lake / "4.csv"), str(out))
    assert not out.exists()


def test_the_pipeline_predicts_as_a_task_of_kfp(digits: Path, tmp_path: Path) -> None:
    from kfp import local

    from trainyard.contract.keys import code_digest
    from trainyard_control.catalog.predict import predict_pipeline

    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8), np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"), raise_on_error=True)
    places = {"model": str(digits / "models" / "1"), "inputs": str(photos), "predictions": str(tmp_path / "out")}
    predict_pipeline(**places, code=code_digest())
    assert part_answers(tmp_path / "out")["key"] == ["0.png", "1.png", "2.png"]
    with pytest.raises(RuntimeError):
        predict_pipeline(**places, code="0" * 64)
    record = json.loads((tmp_path / "out.failure.json").read_text())
    assert record["message"].startswith("predict: the pipeline was compiled by code 000000000000")


@contextmanager
def asked(
    folder: Path, request_bytes: int = 1 << 20, reload_seconds: float = 60.0, **others: Any
) -> Iterator[server.Addresses]:
    """Serve the models in `folder` as `m` while the block runs, which gets the addresses. others: of the options."""
    options = server.Options(
        folder=str(folder), name="m", reload_seconds=reload_seconds, request_bytes=request_bytes, grpc_port=0, **others
    )
    loop, started, ended = asyncio.new_event_loop(), queue.Queue(), asyncio.Event()

    async def listen() -> None:
        serving = ServingVersion(options.folder, reload_seconds)
        async with server.listening(options, serving, server.load_shadow(options, serving)) as addresses:
            started.put(addresses)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[listen()])
    thread.start()
    try:
        yield started.get(timeout=300)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Return status and JSON of the answer to a GET, or to a POST of `body`."""
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def tensor(name: str, datatype: str, values: list[Any]) -> triton.InferInput:
    """A column of raw contents; None is NaN, or an empty text."""
    made = triton.InferInput(name, [len(values)], datatype)
    floats = np.array(values, np.float32) if datatype == "FP32" else None
    texts = [value if isinstance(value, bytes) else (value or "").encode() for value in values if floats is None]
    return made.set_data_from_numpy(np.array(texts, object) if floats is None else floats)


def test_a_server_gives_the_answers_of_predict_by_all_protocols_however_requests_are_batched(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "age": float(row["age"]),
            "net worth": None if row["net worth"] != row["net worth"] else float(row["net worth"]),
        }
        | {"city": row["city"].decode()}
        for row in list(raw_examples(table).values())[:200]
        for worth in [float(row["net worth"])]
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    expected = ty.load(table / "models" / "1").predict(columns)
    probabilities = scores(expected.table.to_pydict(), ["poor", "rich"])
    port = free_port()
    with asked(table / "models" / "1", host="0.0.0.0", port=port) as addresses:
        url = f"http://{'[::1]' if socket.has_dualstack_ipv6() else '127.0.0.1'}:{port}"
        status, answer = ask(f"{url}/v1/models/m:predict", {"instances": rows})
        assert status == 200 and set(answer["predictions"][0]) == {"probabilities", "label", "label_id"}
        np.testing.assert_array_equal(
            np.array([one["probabilities"] for one in answer["predictions"]], np.float32), probabilities
        )
        assert [one["label"] for one in answer["predictions"]] == expected["prediction"]
        assert ask(f"{url}/v1/models/m/versions/1:predict", {"inputs": columns})[1]["outputs"] == {
            name: [one[name] for one in answer["predictions"]] for name in answer["predictions"][0]
        }
        tensors = [
            {"name": name, "shape": [200], "datatype": "BYTES" if name == "city" else "FP32", "data": values}
            for name, values in columns.items()
        ]
        outputs = {
            output["name"]: output for output in ask(f"{url}/v2/models/m/infer", {"inputs": tensors})[1]["outputs"]
        }
        rest = triton_http.InferenceServerClient(url.removeprefix("http://"))
        for kind in (True, False):  # raw tensors behind the JSON, or values in it
            sent = [triton_http.InferInput(each["name"], [200], each["datatype"]) for each in tensors]
            for one in sent:
                is_text = one.datatype() == "BYTES"
                values = np.array(columns[one.name()], object if is_text else np.float32)
                one.set_data_from_numpy(values, binary_data=kind)
            asked_for = [
                triton_http.InferRequestedOutput(name, binary_data=kind) for name in ("label", "probabilities")
            ]
            reply = rest.infer("m", sent, outputs=asked_for)
            np.testing.assert_array_equal(reply.as_numpy("probabilities").astype(np.float32), probabilities)
            texts = [text.decode() if kind else text for text in reply.as_numpy("label").tolist()]
            assert texts == expected["prediction"]
        assert outputs["probabilities"]["shape"] == [200, 2]
        np.testing.assert_array_equal(
            np.array(outputs["probabilities"]["data"], np.float32).reshape(200, 2), probabilities
        )
        client = triton.InferenceServerClient(addresses.rpc)

        def raw(start: int, end: int) -> list[triton.InferInput]:
            kinds = [(name, "BYTES" if name == "city" else "FP32") for name in columns]
            return [tensor(name, kind, columns[name][start:end]) for name, kind in kinds]

        reply = client.infer("m", raw(0, 200), request_id="7", compression_algorithm="gzip")
        np.testing.assert_array_equal(reply.as_numpy("probabilities"), probabilities)
        assert [text.decode() for text in reply.as_numpy("label")] == expected["prediction"]
        assert reply.as_numpy("label_id").tolist() == outputs["label_id"]["data"] and reply.get_response().id == "7"
        only = client.infer("m", raw(0, 200), "1", outputs=[triton.InferRequestedOutput("label")]).get_response()
        assert [(output.name, output.shape) for output in only.outputs] == [("label", [200])]
        with ThreadPoolExecutor(16) as clients:  # one row a request, and a bad one among them
            rows[50] |= {"age": 1e308}
            answers = list(clients.map(lambda row: ask(f"{url}/v1/models/m:predict", {"instances": [row]}), rows))
            replies = list(clients.map(lambda at: client.infer("m", raw(at, at + 1)), range(10)))
        assert answers.pop(50)[0] == 400
        one_by_one = np.array([answer["predictions"][0]["probabilities"] for _, answer in answers], np.float32)
        np.testing.assert_allclose(one_by_one, np.delete(probabilities, 50, axis=0), atol=1e-6)
        one_by_one = np.concatenate([reply.as_numpy("probabilities") for reply in replies])
        np.testing.assert_allclose(one_by_one, probabilities[:10], atol=1e-6)
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        (program,) = re.findall(r"```python\n(.*?)```", SERVE_PAGE, re.DOTALL)
        exec(program.replace("127.0.0.1:9000", addresses.rpc).replace('"churn"', '"m"'), {})
        assert re.search(r"\[b'(rich|poor)' b'(rich|poor)'\]\n$", capsys.readouterr().out)
        assert 'trainyard_requests_total{code="OK",route="ModelInfer"} 12.0' in metrics
        assert 'trainyard_requests_total{code="400",route="predict"} 1.0' in metrics
        assert f"trainyard_batch_rows_sum {200 * 7 + 199 + 10}.0" in metrics
        status, about = ask(f"{url}/")
        assert (status, about["status"]) == (200, "alive") and "POST /v1/models/{name}:predict" in about["requests"]
        browser = urllib.request.Request(f"{url}/", headers={"Accept": "text/html,*/*;q=0.8"})
        page = urllib.request.urlopen(browser).read().decode()
        assert "net worth" in page and "Classes: poor, rich" in page and "connect-src 'self'" in page


def candidate_of(version: Path, models: Path, number: int, threshold: float) -> Path:
    """Push a copy of `version` with another threshold, which waits for approval in `models`; return its folder."""
    folder, files = models / CANDIDATE / str(number), storage.require(str(version))
    with storage.stage(str(folder), "trainyard.push", origin=files.origin | {"number": number}) as staging:
        for name in files.files:
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(version / name, staging / name)
        file = staging / EXTRA / PREPROCESSING
        file.write_text(json.dumps(json.loads(file.read_text()) | {"thresholds": {"rich": threshold}}))
    champion_of(models / CANDIDATE, number)
    return folder


def test_a_shadow_answers_into_the_log_what_the_champion_was_asked_by_rest_and_grpc(
    table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models, log = tmp_path / "models", tmp_path / "log"
    shutil.copytree(table / "models" / "1", models / "1")
    champion_of(models, 1)
    candidate = candidate_of(models / "1", models, 1, 0.999)  # a candidate may have the number of another version
    rows = [{"age": float(age), "net worth": 1e5 * age, "city": "Bern"} for age in range(20, 60)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    options = {"log": LogOptions(str(log), 1.0), "shadow": f"{models}@candidate", "reload_seconds": 0.1}
    with asked(models, **options) as addresses:
        assert addresses.shadow == f"{models}/candidate/1" and addresses.version == 1
        url = f"{addresses.url}/v1/models/m:predict"
        expected = [one["label"] for one in ask(url, {"instances": rows}, **{"X-Request-Id": "a"})[1]["predictions"]]
        assert expected == ty.load(models / "1").predict(columns)["prediction"] and "rich" in expected
        client = triton.InferenceServerClient(addresses.rpc)
        sent = [tensor(name, "BYTES" if name == "city" else "FP32", values) for name, values in columns.items()]
        assert client.infer("m", sent, headers={"x-request-id": "b"}).get_response().outputs
        assert ask(url, {"instances": [{"age": "old"}]})[0] == 400

        def metrics() -> str:
            return urllib.request.urlopen(f"{addresses.url}/metrics").read().decode()

        while 'trainyard_shadow_rows_total{result="answered"} 80.0' not in metrics():
            time.sleep(0.01)
        candidate_of(models / "1", models, 2, 0.998)  # another candidate
        while '"shadow", "version": 2' not in capfd.readouterr().err:
            time.sleep(0.05)
        ask(url, {"instances": rows[:1]}, **{"X-Request-Id": "c"})
    logged = parquet.read_table(log).to_pylist()
    found = Counter((row["id"].partition("/")[0], row["version"], row["shadow"]) for row in logged)
    assert found == {
        **{(request, 1, is_shadow): 40 for request in "ab" for is_shadow in (False, True)},
        ("c", 1, False): 1,
        ("c", 2, True): 1,
    }
    by_shadow = {row["id"]: row["prediction"] for row in logged if row["shadow"]}
    assert [by_shadow[f"a/{row}"] for row in range(40)] == ty.load(candidate).predict(columns)["prediction"] != expected


def test_workers_share_ports_and_metrics_and_one_that_is_killed_is_started_again(table: Path, tmp_path: Path) -> None:
    models, port = str(table / "models" / "1"), free_port()
    shadow, log = candidate_of(Path(models), tmp_path, 7, 0.999), tmp_path / "log"
    command = [sys.executable, "-m", "trainyard_control.cli.main", "serve", models, "--model-name", "m"]
    command += ["--port", str(port), "--grpc-port", "0", "--workers", "2", "--shadow", str(shadow), "--log", str(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert f"serves at http://127.0.0.1:{port}, gRPC at 127.0.0.1:" in first, first
        assert first.endswith(f", with the shadow {shadow}\n"), first
        url, rpc = f"http://127.0.0.1:{port}", re.findall("gRPC at (.*), with", first)[0]
        row = {"age": 1, "net worth": 2, "city": "Bern"}
        answers = [ask(f"{url}/v1/models/m:predict", {"instances": [row]}) for _ in range(20)]
        assert answers[0][0] == 200 and answers == answers[:1] * 20
        assert triton.InferenceServerClient(rpc).is_server_ready()
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        assert 'trainyard_requests_total{code="200",route="predict"} 20.0' in metrics
        assert "trainyard_model_version 1.0" in metrics
        with pytest.raises(
            ConfigurationError, match=rf"127.0.0.1:{port}: cannot be listened on .* another --host or --port"
        ):
            workers.serve(server.Options(folder=models, port=port, workers=2), print)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        served = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        assert len(served) == 2
        os.kill(int(served[0]), signal.SIGKILL)
        warning = json.loads(process.stderr.readline())["message"]
        assert re.fullmatch(r"Worker [01] ended \(exit code -9\). It is started again.", warning)
        assert ask(f"{url}/v1/models/m:predict", {"instances": [row]}) == answers[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert all(not Path(f"/proc/{child}").exists() for child in served)
    versions = Counter(parquet.read_table(log)["version"].to_pylist())
    assert versions[1] >= versions[7] > 0, "of the worker that was not killed"


def test_the_client_of_tensorflow_serving_gets_the_answers_of_predict(table: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(table / "models" / "1", models / "3")
    set_alias(str(models), "canary", 3)
    set_alias(str(models), "old", 2)
    columns = {"age": [41.0, 28.5], "net worth": [9e5, float("nan")], "city": ["Bern", "Oslo"]}
    expected = ty.load(models / "3").predict(columns)
    probabilities = scores(expected.table.to_pydict(), ["poor", "rich"])
    with asked(models / "3") as addresses, grpc.insecure_channel(addresses.rpc) as channel:
        client, url = PredictionServiceStub(channel), f"{addresses.url}/v1/models/m"

        def request(**tensors: Any) -> Any:
            made = predict_pb2.PredictRequest()
            made.model_spec.name = "m"
            for name, value in tensors.items():
                made.inputs[name].CopyFrom(value if isinstance(value, TensorProto) else proto(value))
            return made

        def proto(values: Any, **options: Any) -> Any:
            return tf.make_tensor_proto(values, **options)

        def refused(method: Any, message: Any) -> str:
            with pytest.raises(grpc.RpcError) as error:
                method(message)
            return f"{error.value.code().name} {error.value.details()}"

        good = {"age": proto(columns["age"], dtype=tf.float32), "city": columns["city"]}
        good["net worth"] = proto(columns["net worth"], dtype=tf.float32, shape=[2, 1])
        asked_for = request(**good)
        asked_for.model_spec.version_label, asked_for.model_spec.signature_name = "canary", "serving_default"
        answer = client.Predict(asked_for)
        assert (answer.model_spec.name, answer.model_spec.version.value) == ("m", 3)
        np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["probabilities"]), probabilities)
        labels = tf.make_ndarray(answer.outputs["label"]).tolist()
        assert [label.decode() for label in labels] == expected["prediction"]
        asked_for.output_filter.append("label")
        assert list(client.Predict(asked_for).outputs) == ["label"]
        repeated = request(age=proto(41.0, shape=[2]), net_worth=proto(9e5, shape=[2]), city=["Bern", "Bern"])
        answered = tf.make_ndarray(client.Predict(repeated).outputs["probabilities"])
        np.testing.assert_allclose(answered, probabilities[[0, 0]], atol=1e-6)

        said = refused(client.Predict, request(age=proto(1.0, shape=[1 << 40])))
        assert said.startswith("INVALID_ARGUMENT inputs.age: at most 1,048,576 values are allowed, 1,099,511,627,776")
        assert "a tensor [n] or [n, 1] is expected, [] was found" in refused(client.Predict, request(age=1.0))
        broken = proto([1.0, 2.0])
        broken.tensor_content = b"abc"
        assert "inputs.age: its values are not those of its dtype" in refused(client.Predict, request(age=broken))
        assert "numbers or texts are expected, complex128 was" in refused(client.Predict, request(age=[1 + 2j]))
        asked_for.model_spec.version_label = "old"
        said = refused(client.Predict, asked_for)
        assert said == "NOT_FOUND m: label 'old' does not name version 3, which serves. Its labels: canary."

        examples = classification_pb2.ClassificationRequest()
        examples.model_spec.name = "m"
        for age, worth, city in zip(*columns.values(), strict=True):
            example = examples.input.example_list.examples.add().features.feature
            example["age"].float_list.value.append(age)
            example["city"].bytes_list.value.append(city.encode())
            if worth == worth:  # an absent feature is a missing value
                example["net worth"].float_list.value.append(worth)
        classified = client.Classify(examples).result.classifications
        assert [[found.label for found in row.classes] for row in classified] == [["poor", "rich"]] * 2
        by_class = np.array([[found.score for found in row.classes] for row in classified], np.float32)
        np.testing.assert_allclose(by_class, probabilities, atol=1e-6)
        body = {"context": {"city": ["Bern"]}, "examples": [{"age": 41, "net worth": [9e5]}]}
        status, found = ask(f"{url}/labels/canary:classify", body)
        assert status == 200 and [label for label, _ in found["results"][0]] == ["poor", "rich"]
        np.testing.assert_allclose([score for _, score in found["results"][0]], probabilities[0], atol=1e-6)
        assert ask(f"{url}:regress", body) == (
            400,
            {"error": "regress: the model predicts classes. Send the request to classify."},
        )
        body["examples"][0]["city"] = "Oslo"
        assert ask(f"{url}:classify", body)[1]["error"].startswith("examples[0].city: is in the context as well.")
        assert ask(f"{url}/labels/canary/metadata")[1]["model_spec"]["version"] == "3"
        assert ask(f"{url}/labels/old:predict", {})[0] == 404

        about = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        about.model_spec.name = "m"
        signatures = get_model_metadata_pb2.SignatureDefMap()
        client.GetModelMetadata(about).metadata["signature_def"].Unpack(signatures)
        told = ask(f"{url}/metadata")[1]["metadata"]["signature_def"]
        assert signatures == json_format.ParseDict(told, get_model_metadata_pb2.SignatureDefMap())
        del about.metadata_field[:]
        assert "signature_def is expected, 'none' was found" in refused(client.GetModelMetadata, about)
        status_request = get_model_status_pb2.GetModelStatusRequest()
        status_request.model_spec.name = "m"
        (state,) = ModelServiceStub(channel).GetModelStatus(status_request).model_version_status
        assert (state.version, state.State.Name(state.state)) == (3, "AVAILABLE")
        status_request.model_spec.name = "n"
        assert refused(ModelServiceStub(channel).GetModelStatus, status_request).startswith("NOT_FOUND n: no such")


def test_the_client_of_tensorflow_serving_gets_numbers_where_the_model_predicts_one(
    table: Path, tmp_path: Path
) -> None:
    with storage.stage(str(tmp_path / "examples"), producer="trainyard.preprocess") as staging:
        shutil.copytree(table / "examples", staging, dirs_exist_ok=True, ignore=lambda *_: ["manifest.json"])
        document = open_examples(str(table / "examples")).document
        document.model_copy(update={"task": "regression", "labels": None}).write(staging)
    classifier = load(str(table / "model"))
    number = keras.layers.Dense(1)(classifier.layers[-2].output)
    made.commit_model(tmp_path / "model", keras.Model(classifier.input, number))
    folder = pushed(tmp_path, f"{TABLE}task: regression\n", {})
    rows = [{"age": 41.0, "net worth": 9e5, "city": "Bern"}, {"age": 28.5, "city": "Oslo"}]
    expected = np.array(ty.load(folder).predict(pa.Table.from_pylist(rows))["prediction"], np.float32)
    assert expected.shape == (2,) and expected[0] != expected[1]
    asked_for = regression_pb2.RegressionRequest()
    asked_for.model_spec.name = "m"
    for row in rows:
        example = asked_for.input.example_list.examples.add().features.feature
        for name, value in row.items():
            if isinstance(value, str):
                example[name].bytes_list.value.append(value.encode())
            else:
                example[name].float_list.value.append(value)
    with asked(Path(folder)) as addresses, grpc.insecure_channel(addresses.rpc) as channel:
        url = f"{addresses.url}/v1/models/m"
        told = [regression.value for regression in PredictionServiceStub(channel).Regress(asked_for).result.regressions]
        np.testing.assert_allclose(told, expected, rtol=1e-6)
        status, answer = ask(f"{url}:regress", {"examples": rows})
        assert status == 200
        np.testing.assert_allclose(answer["results"], expected, rtol=1e-6)
        said = "classify: the model predicts one number. Send the request to regress."
        assert ask(f"{url}:classify", {"examples": rows}) == (400, {"error": said})


def without_init(patch: pytest.MonkeyPatch, *packages: str) -> None:
    """Have modules of `packages` imported without what their packages import: seconds of CPU for other parts."""
    for name in packages:
        package, spec = ModuleType(name), importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        package.__path__ = list(spec.submodule_search_locations)
        patch.setitem(sys.modules, name, package)


def test_kserves_clients_get_the_answers_of_predict_by_rest_and_grpc(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_init(monkeypatch, "kserve")
    own = descriptor_pool.DescriptorPool()
    with monkeypatch.context() as patch:  # its messages have the names of Triton's, which are in the default pool
        patch.setattr(descriptor_pool, "Default", lambda: own)
        from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig
        from kserve.protocol.infer_type import InferInput, InferRequest

    columns = {"age": [41.0, 28.5], "net worth": [9e5, 1.0], "city": ["Bern", "Oslo"]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    expected = ty.load(table / "models" / "1").predict(columns)
    probabilities = scores(expected.table.to_pydict(), ["poor", "rich"])

    def request(*, raw: bool, **changed: Any) -> Any:
        inputs = []
        for name, values in (columns | changed).items():
            kind = "BYTES" if isinstance(values[0], str) else "FP32"
            inputs.append(InferInput(name, [2], kind, values if kind == "FP32" else [text.encode() for text in values]))
            if raw or kind == "BYTES":
                array = np.array(values, np.float32 if kind == "FP32" else object)
                inputs[-1].set_data_from_numpy(array, binary_data=raw)
        return InferRequest("m", inputs, request_id="7", parameters={"binary_data_output": True} if raw else None)

    def check(answer: Any) -> None:
        assert (answer.model_name, answer.id) == ("m", "7")
        answered = answer.get_output_by_name("probabilities").as_numpy()
        np.testing.assert_array_equal(answered.astype(np.float32).reshape(2, 2), probabilities)
        labels = answer.get_output_by_name("label").as_numpy().tolist()
        assert [text if isinstance(text, str) else text.decode() for text in labels] == expected["prediction"]

    async def ask_all(addresses: server.Addresses) -> None:
        url = addresses.url
        async with InferenceRESTClient(RESTConfig(protocol="v1")) as first:
            assert await first.is_server_live(url) and await first.is_model_ready(url, "m")
            answer = await first.infer(url, {"instances": rows}, "m")
            assert [one["label"] for one in answer["predictions"]] == expected["prediction"]
            with pytest.raises(Exception, match=r"instances\[0\].age: a number is expected, 'x' was found., '400 "):
                await first.infer(url, {"instances": [rows[0] | {"age": "x"}]}, "m")
        async with InferenceRESTClient(RESTConfig(protocol="v2")) as second:
            assert await second.is_server_live(url) and await second.is_server_ready(url)
            assert await second.is_model_ready(url, "m") and not await second.is_model_ready(url, "n")
            for raw in (True, False):
                check(await second.infer(url, request(raw=raw), "m"))
            with pytest.raises(Exception, match=r"inputs\[0\].age: a number is expected, 'x' was found., '400 "):
                await second.infer(url, request(raw=True, age=["x", "y"]), "m")
        async with InferenceGRPCClient(addresses.rpc) as third:
            assert await third.is_server_live() and await third.is_server_ready() and await third.is_model_ready("m")
            for raw in (True, False):
                check(await third.infer(request(raw=raw)))
            with pytest.raises(grpc.RpcError, match=r"inputs\[0\].age: a number is expected, 'x' was found."):
                await third.infer(request(raw=True, age=["x", "y"]))

    with asked(table / "models" / "1") as addresses:
        asyncio.run(ask_all(addresses))


def test_the_container_of_a_publication_answers_the_local_endpoint_of_vertex(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK starts what is published; the command runs here instead of in Docker's container."""
    google = "google.cloud.aiplatform"
    without_init(monkeypatch, google, f"{google}.utils", f"{google}.prediction")
    docker, without_project = MagicMock(), SimpleNamespace(global_config=SimpleNamespace(project=None))
    monkeypatch.setitem(sys.modules, "docker", docker)
    monkeypatch.setitem(sys.modules, f"{google}.initializer", without_project)
    monkeypatch.setitem(sys.modules, f"{google}.compat.types", MagicMock())
    from google.cloud.aiplatform.docker_utils.run import DEFAULT_MOUNTED_MODEL_DIRECTORY as MOUNTED
    from google.cloud.aiplatform.prediction.local_endpoint import LocalEndpoint

    port, model, commands = free_port(), table / "models" / "1", queue.Queue[tuple[list[str], dict[str, str]]]()
    serves = threading.Event()

    def start(image: str, command: list[str], ports: dict[int, None], environment: dict[str, Any], **_: Any) -> Any:
        assert (image, list(ports)) == (environments.load("vertex").images["cpu"], [8080])
        words = [{MOUNTED: str(model), "8080": str(port)}.get(word, word) for word in command]
        commands.put((words, {name: str(value) for name, value in environment.items()}))
        serves.set()
        return MagicMock(status="running", ports={"8080/tcp": [{"HostPort": port}]}, stop=stop)

    def stop() -> None:
        if serves.is_set():
            serves.clear()
            os.kill(os.getpid(), signal.SIGTERM)

    docker.from_env().containers.run = start
    version = PushedVersion(1, "gs://bucket/out/models/1", True, (), VersionRecord())
    project = environments.Vertex(project="example", location="europe-west4")
    container = vertex.upload_request(version, environments.load("vertex"), project, "churn")["model"]["containerSpec"]
    columns = {"age": [41.0, 28.5], "net worth": [9e5, 1.0], "city": ["Bern", "Oslo"]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    endpoint = LocalEndpoint(
        serving_container_image_uri=container["imageUri"],
        artifact_uri=str(model),
        serving_container_predict_route=container["predictRoute"],
        serving_container_health_route=container["healthRoute"],
        serving_container_args=container["args"],
        serving_container_ports=[each["containerPort"] for each in container["ports"]],
        container_ready_timeout=60,
        container_ready_check_interval=0.1,
    )

    def use() -> list[Any]:
        with endpoint:
            requests = [{"instances": rows, "parameters": parameters} for parameters in ({}, {"top": 3})]
            answers = [endpoint.predict(json.dumps(request)) for request in requests]
            return [answer.json() for answer in (endpoint.run_health_check(), *answers)]

    with ThreadPoolExecutor(1) as thread:
        used = thread.submit(use)
        command, variables = commands.get(timeout=60)
        done = CliRunner().invoke(app, command, env=variables)
        serves.clear()
        ready, answer, refused = used.result()
    assert done.exit_code == 0 and ready == {"ready": True}
    assert [one["label"] for one in answer["predictions"]] == ty.load(model).predict(columns)["prediction"]
    assert refused == {"error": "parameters: the model takes none, top was found. Leave them out, or send {}."}


def test_a_server_says_what_it_serves_and_refuses_everything_else(
    table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(table / "models" / "1", request_bytes=2000) as addresses:
        url = addresses.url
        assert ask(f"{url}/healthz")[0] == ask(f"{url}/v2/health/live")[0] == ask(f"{url}/v2/health/ready")[0] == 200
        assert ask(f"{url}/v1/models/m")[1]["model_version_status"][0]["state"] == "AVAILABLE"
        described = ask(f"{url}/v1/models/m/versions/1/metadata")[1]["metadata"]["signature_def"]["signature_def"]
        told = json_format.ParseDict(described["serving_default"], SignatureDef())
        bare = tf.saved_model.load(str(table / "models" / "1")).signatures["serving_default"]
        for infos, specs in (
            (told.inputs, bare.structured_input_signature[1]),
            (told.outputs, bare.structured_outputs),
        ):
            read = {name: (info.dtype, [size.size for size in info.tensor_shape.dim]) for name, info in infos.items()}
            assert read == {
                name: (spec.dtype.as_datatype_enum, [size or -1 for size in spec.shape.as_list()])
                for name, spec in specs.items()
            }
        about = ask(f"{url}/v2/models/m")[1]
        assert about["inputs"][1] == {"name": "net worth", "datatype": "FP32", "shape": [-1]}
        assert about["outputs"][0] == {"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]}
        assert ask(f"{url}/v1/models/n:predict", {})[0] == ask(f"{url}/v2/models/m/versions/2")[0] == 404
        assert ask(f"{url}/v1/models/m:explain", {}) == (
            404,
            {"error": "POST /v1/models/m:explain: Not Found. GET / lists the requests."},
        )
        assert ask(f"{url}/v1/models/m:predict", b" " * 2001)[0] == 413
        status, answer = ask(f"{url}/v1/models/m:predict", {"instances": [{"age": "x", "net_worth": 1, "city": ""}]})
        assert (status, answer["error"]) == (400, "instances[0].age: a number is expected, 'x' was found.")
        assert ask(f"{url}/v1/models/m/versions/{'9' * 5000}")[0] == 404
        status, answer = ask(f"{url}/v1/models/m:predict", b"{}", **{"Content-Encoding": "gzip"})
        assert status == 400 and answer["error"].startswith("the request: cannot be decoded")
        host, _, port = url.removeprefix("http://").partition(":")
        for content in (b"Content-Length: 9\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nz\r\n"):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(b"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\n" + content)
                time.sleep(0.2)
        with grpc.insecure_channel(addresses.rpc) as channel:
            healthy = health_pb2_grpc.HealthStub(channel)
            for name in ("", "inference.GRPCInferenceService"):
                assert healthy.Check(HealthCheckRequest(service=name)).status == HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                healthy.Check(HealthCheckRequest(service="other"))
        client = triton.InferenceServerClient(addresses.rpc)
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m", "1")
        assert client.get_server_metadata().name == "trainyard"
        assert client.get_model_metadata("m", as_json=True)["inputs"][1] == {
            "name": "net worth",
            "datatype": "FP32",
            "shape": ["-1"],
        }
        row = {"age": ("FP32", [1]), "net_worth": ("FP32", [None]), "city": ("BYTES", ["Bern"])}

        def refused(model: str = "m", version: str = "", outputs: Any = None, **changed: Any) -> str:
            inputs = [tensor(name, *value) for name, value in (row | changed).items()]
            with pytest.raises(InferenceServerException) as error:
                client.infer(model, inputs, version, outputs=outputs)
            return f"{error.value.status()} {error.value.message()}"

        assert refused("n") == "StatusCode.NOT_FOUND n: no such model. This server has 'm'."
        assert refused(version="2") == "StatusCode.NOT_FOUND m: version 2 is not loaded. 1 serves."
        wrong = "StatusCode.INVALID_ARGUMENT inputs"
        assert refused(age=("BYTES", ["x"])) == f"{wrong}[0].age: a number is expected, 'x' was found."
        said = f"{wrong}[0].ages: the model has no such input. Did you mean 'age'?"
        assert refused(ages=("FP32", [1])).startswith(said)
        assert refused(age=("FP32", [1, 2])).startswith(f"{wrong}: all columns must have as many values, age 2")
        said = refused(outputs=[triton.InferRequestedOutput("logits")])
        assert said.endswith("outputs: the model has no output 'logits'. It has: probabilities, label, label_id.")
        assert refused(city=("BYTES", ["x" * 2000])).startswith("StatusCode.RESOURCE_EXHAUSTED ")
        assert refused("語" * 600).startswith("StatusCode.NOT_FOUND 語")
        infer = grpc.insecure_channel(addresses.rpc).unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for content, code, options in (
            (b"\xff\xff", "INVALID_ARGUMENT", {}),
            (b"\0" * (1 << 26), "RESOURCE_EXHAUSTED", {"compression": grpc.Compression.Gzip}),
        ):
            with pytest.raises(grpc.RpcError) as broken:
                infer(content, **options)
            assert broken.value.code().name == code
        port = int(addresses.rpc.rpartition(":")[2])

        async def listen_too() -> None:
            service = Service("m", ServingVersion(str(table / "models" / "1"), 60.0))
            await RpcServer(service, server.Options()).start("127.0.0.1", port)

        with pytest.raises(ConfigurationError, match=r"cannot be listened on for gRPC\. Give another --host"):
            asyncio.run(listen_too())
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: m\r\n\r\n")
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        assert 'trainyard_requests_total{code="NOT_FOUND",route="ModelInfer"} 3.0' in metrics
        monkeypatch.setattr(batches, "_MOST_WAITING", 0)
        assert refused() == "StatusCode.UNAVAILABLE Too many requests wait. Try again later."
        assert ask(f"{url}/v1/models/m:predict", {"instances": [{"age": 1, "net_worth": 1, "city": ""}]})[0] == 503
        assert "Traceback" not in (log := capfd.readouterr().err) and "fault of Trainyard" not in log


def test_a_server_answers_images_as_predict_does_and_knows_the_version_of_a_copy(digits: Path, tmp_path: Path) -> None:
    copy = tmp_path / "mounted"
    shutil.copytree(digits / "models" / "1", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["origin"]["number"] == 1
    manifest["origin"]["number"] = 7
    (copy / "manifest.json").write_text(json.dumps(manifest))
    images = [values["image"] for values in list(raw_examples(digits).values())[:20]]
    expected = ty.load(digits / "models" / "1").predict(images)
    instances = [{"image": {"b64": base64.b64encode(image).decode()}} for image in images]
    with asked(copy) as addresses:
        url = addresses.url
        assert ask(f"{url}/v1/models/m")[1]["model_version_status"][0]["version"] == "7"
        status, answer = ask(f"{url}/v1/models/m:predict", {"instances": instances})
        assert [one["label"] for one in answer["predictions"]] == expected["prediction"]
        (tmp_path / "seven.png").write_bytes(images[0])
        (command,) = re.findall(r"^curl (.*)$", SERVE_PAGE, re.MULTILINE)
        command = command.replace("localhost:8080", url.removeprefix("http://")).replace("/digits:", "/m:")
        printed = subprocess.run(["bash", "-c", f"curl -s {command}"], cwd=tmp_path, capture_output=True, check=True)
        assert json.loads(printed.stdout)["predictions"][0]["label"] == expected["prediction"][0]
        client = triton.InferenceServerClient(addresses.rpc)
        reply = client.infer("m", [tensor("image", "BYTES", images)]).as_numpy("label")
        assert [text.decode() for text in reply] == expected["prediction"]
        instances[7]["image"]["b64"] = base64.b64encode(images[7][:60]).decode()  # its header is whole
        status, answer = ask(f"{url}/v1/models/m:predict", {"instances": instances})
        assert status == 400 and answer["error"].startswith("instances[7]: the model cannot answer (truncated_image: ")
        images[7] = images[7][:60]
        with pytest.raises(InferenceServerException, match=r"inputs\[7\]: the model cannot answer \(truncated_image: "):
            client.infer("m", [tensor("image", "BYTES", images)])


def test_a_server_answers_other_origins_compresses_logs_requests_and_ends_slow_clients(
    table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_BODY_SECONDS", 0.5)
    monkeypatch.setattr(transport, "_HEAD_SECONDS", 1.0)
    record = {"age": 41, "net worth": 9e5, "city": "Bern"}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    options = {"cors": ("https://a.example",), "access_log": True, "log": LogOptions(str(tmp_path / "log"), 1.0)}
    with asked(table / "models" / "1", request_bytes=8 << 20, **options) as addresses:
        url = f"{addresses.url}/v1/models/m:predict"

        def send(method: str, body: bytes | None = None, **headers: str) -> Any:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return urllib.request.urlopen(urllib.request.Request(url, body, named, method=method), timeout=60)

        body = json.dumps({"instances": [record] * 100}).encode()
        asked_for = {"Origin": "https://a.example", "Access_Control_Request_Method": "POST"}
        preflight = send("OPTIONS", **asked_for, Access_Control_Request_Headers="content-type")
        assert (preflight.status, preflight.headers["Access-Control-Allow-Headers"]) == (204, "content-type")
        packed = gzip.compress(body)
        answer = send("POST", packed, Origin="https://a.example", Content_Encoding="gzip", Accept_Encoding="gzip")
        assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
        assert answer.headers["Access-Control-Allow-Credentials"] == "true"
        assert len(json.loads(gzip.decompress(answer.read()))["predictions"]) == 100
        other = send(
            "POST", body, Origin="https://b.example", Accept_Encoding="gzip;q=0", X_Request_Id="my-7", traceparent=trace
        )
        assert "Access-Control-Allow-Origin" not in other.headers and "Content-Encoding" not in other.headers
        assert other.headers.get_all("Vary") == ["Origin", "Accept-Encoding"]
        assert len(json.loads(other.read())["predictions"]) == 100 and other.headers["X-Request-Id"] == "my-7"
        bomb = gzip.compress(b" " * (1 << 26), 1)
        before = memory.peak_mib(os.getpid())
        assert ask(url, bomb, **{"Content-Encoding": "gzip"})[0] == 413
        assert memory.peak_mib(os.getpid()) - before < 32
        large = send("POST", json.dumps({"instances": [record] * 2000}).encode(), Accept_Encoding="br, gzip")
        assert len(json.loads(gzip.decompress(large.read()))["predictions"]) == 2000

        host, _, port = addresses.url.removeprefix("http://").partition(":")

        def connection() -> socket.socket:
            return socket.create_connection((host, int(port)), timeout=30)

        head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\n"
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as opened:
            opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, files)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(files[1], 4096), files[1]))
            idle = [opened.enter_context(connection()) for _ in range(1000)]
            assert send("POST", body).status == 200
            slow = opened.enter_context(connection())
            slow.sendall(head + b"Content-Length: 9\r\n\r\n{")
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
            late = opened.enter_context(connection())
            late.sendall(head)
            for each in (idle[0], idle[-1], late):
                assert each.recv(1 << 16).startswith(b"HTTP/1.1 408 ") and each.recv(1) == b""
        with connection() as piped:
            one = b"GET /healthz HTTP/1.1\r\nHost: m\r\n\r\n"
            piped.sendall(one * 2 + head + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            answers = b"".join(iter(lambda: piped.recv(1 << 16), b""))
            assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200"] * 3 and b"predictions" in answers
        with connection() as greedy:
            greedy.sendall(head + b"X: " + b"x" * 9000 + b"\r\n\r\n")
            assert b" 400 Bad Request" in greedy.recv(1 << 16)
        client = triton.InferenceServerClient(addresses.rpc)
        client.is_server_live(headers={"traceparent": trace, "x-request-id": "rpc"})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"request"' in line]
    (mine,) = [line for line in lines if line["request_id"] == "my-7"]
    about = {"method": "POST", "path": "/v1/models/m:predict", "status": "200", "traceparent": trace}
    assert about.items() <= mine.items() and mine["seconds"] > 0 and mine["client"] == "127.0.0.1"
    (rpc,) = [line for line in lines if line["request_id"] == "rpc"]
    assert {"path": "ServerLive", "status": "OK", "traceparent": trace}.items() <= rpc.items()
    assert [line["status"] for line in lines].count("408") == 1
    logged = parquet.read_table(tmp_path / "log")
    assert logged.num_rows == 100 * 4 + 2000 and set(logged["version"].to_pylist()) == {1}
    (row,) = logged.filter(pa_compute.equal(logged["id"], "my-7/99")).to_pylist()
    (sent,) = ty.load(table / "models" / "1").predict({name: [value] for name, value in record.items()})["prediction"]
    assert {**record, "prediction": sent}.items() <= row.items() and len(row["probabilities"]) == 2


@browser.needs_chromium
def test_the_page_of_a_server_answers_in_a_browser_as_predict(table: Path, digits: Path, tmp_path: Path) -> None:
    image = next(iter(raw_examples(digits).values()))["image"]
    (tmp_path / "seven.png").write_bytes(image)
    texts = {"age": "70", "net worth": "", "city": "Oslo"}
    row = {"age": [70.0], "net worth": [float("nan")], "city": ["Oslo"]}
    with browser.chromium() as page:
        for root, inputs in ((table, row), (digits, [image])):
            [expected] = ty.load(root / "models" / "1").predict(inputs)["prediction"]
            with asked(root / "models" / "1") as addresses:
                page.open(f"{addresses.url}/")
                if root is digits:
                    page.choose("input", tmp_path / "seven.png")
                else:
                    for name, text in texts.items():
                        page.run(f"document.forms[0].elements['{name}'].value = '{text}'")
                page.run("document.querySelector('button').click()")
                page.wait("document.querySelector('#answer pre')")
                assert json.loads(page.text("answer"))["label"] == expected
                if root is table:
                    page.run("document.forms[0].elements.age.value = 'old', document.forms[0].requestSubmit()")
                    page.wait("document.querySelector('#answer .fail')")
                    assert page.text("answer") == "instances[0].age: a number is expected, 'old' was found."
                assert [each for each in page.complaints if "status of 400" not in each] == []


def champion_of(models: Path, number: int) -> None:
    digest = storage.require(str(models / str(number))).digest
    set_champion(str(models), Champion(version=number, path="", digest=digest, metrics={}))


def test_a_server_follows_the_champion_keeps_on_after_a_damaged_one_and_ends_when_it_has_answered(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    for number in (1, 2):
        shutil.copytree(table / "models" / "1", models / str(number))
    champion_of(models, 1)
    command = [
        sys.executable,
        "-m",
        "trainyard_control.cli.main",
        "serve",
        str(models),
        "--port",
        "0",
        "--model-name",
        "m",
        "--grpc-port",
        "0",
    ]
    with subprocess.Popen([*command, "--reload-seconds", "0.1"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith(f"✓ version 1 of {models}/1 serves at http://127.0.0.1:"), first
        url, _, rpc = first.partition("serves at ")[2].strip().partition(", gRPC at ")
        client = triton.InferenceServerClient(rpc)
        changed = models / "2" / "variables" / "variables.data-00000-of-00001"
        content = changed.read_bytes()
        changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        champion_of(models, 2)
        warning = json.loads(process.stderr.readline())
        assert warning["event"] == "warning" and "Version 1 serves on: " in warning["message"]
        assert ask(f"{url}/v1/models/m")[1]["model_version_status"][0]["version"] == "1"
        changed.write_bytes(content)
        shutil.copytree(models / "2", models / "3")
        champion_of(models, 3)
        assert json.loads(process.stderr.readline())["version"] == 3
        assert ask(f"{url}/v1/models/m")[1]["model_version_status"][0]["version"] == "3"
        assert client.get_model_metadata("m").versions == ["3"]
        values = {"age": [1.0] * 100_000, "net_worth": [2.0] * 100_000, "city": ["Bern"] * 100_000}
        slow = [tensor(name, "BYTES" if name == "city" else "FP32", value) for name, value in values.items()]
        answers: queue.Queue[Any] = queue.Queue()
        host, _, port = url.removeprefix("http://").partition(":")
        body = json.dumps({"instances": [{"age": 1, "net_worth": 2, "city": "Bern"}]}).encode()
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:10])
            client.async_infer("m", slow, lambda result, error: answers.put(error or result))
            while b"trainyard_requests_running 3.0" not in urllib.request.urlopen(f"{url}/metrics").read():
                time.sleep(0.01)  # until it has taken both requests; that for the metrics is the third
            with grpc.insecure_channel(rpc) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(HealthCheckRequest())
                states = [next(watch).status]
                process.send_signal(signal.SIGTERM)
                states.append(next(watch).status)
            assert states == [HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING]
            time.sleep(0.2)
            connection.sendall(body[10:])
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        answer = answers.get(timeout=30)
        assert isinstance(answer, triton.InferResult), f"{answer}"
        assert answer.as_numpy("label_id").shape == (100_000,)
        assert process.wait(30) == 0
    changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setitem(sys.modules, "trainyard.steps.predict.served", None)  # it imports TensorFlow, for seconds
    with pytest.raises(DataError, match=r"variables.data-00000-of-00001.* checksum"):
        ServingVersion(str(models / "2"), 60.0)
