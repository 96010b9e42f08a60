"""The same rows in each format, as several programs write it, are the same values through each reader and the graph."""

import atexit
import csv
import datetime
import functools
import math
import random
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import device_folder
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_rows import judged
from preprocess_sources import preprocess
from pyarrow import csv as pa_csv
from pyarrow import parquet
from pydantic import ValidationError
from table_writers import WORDS, by_excel, by_german_excel, by_pandas, by_spark, examples_of, texts, write_each

from trainyard.contract.statistics.drift import UnknownValues
from trainyard.contract.version import EXTRA, PRODUCER
from trainyard.data.examples import load_transform, open_examples
from trainyard.data.values import canonical_lists_tensor, canonical_tensor, days_tensor
from trainyard.errors import DataError
from trainyard.models.build import build
from trainyard.quality.source import find_source as find_table
from trainyard.quality.tables.cells import cells
from trainyard.quality.tables.tables import read_table
from trainyard.readers.rows import BadRow, RowBatch
from trainyard.readers.table_file import Dialect
from trainyard.spec.columns import input_name
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.trained_model import UnknownCounts
from trainyard.steps.export import device, signature
from trainyard.steps.export.formats import FORMATS
from trainyard.steps.export.lite import LiteConverter
from trainyard.steps.predict.inputs import items_of
from trainyard.steps.predict.prediction import Predictor
from trainyard.steps.predict.pushed_model import PushedModel, RawInput, find_model
from trainyard.steps.predict.source import InputBatch
from trainyard.steps.preprocess.readers.records import ROW_HASH, WHOLE_HASH
from trainyard.steps.preprocess.split import assign
from trainyard.steps.preprocess.statistics import Summary
from trainyard.steps.preprocess.transforming.encode import as_column, encode_examples
from trainyard.storage import storage
from trainyard.values.text import canonical, canonical_list, column_name, day
from trainyard.values.zones import time_zone

KINDS = {
    "id": "category",
    "small": "category",
    "flag": "category",
    "price": "category",
    "share": "numeric",
    "on": "numeric",
    "at": "category",
    "instant": "category",
    "day": {"type": "date", "hour": True},
    "word": "category",
    "prose": "text",
}
FEATURES = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in KINDS.items()}
RECIPE = {"format": "csv", "path": "-", "label": "y", "features": FEATURES, "split": {"by": "group", "column": "id"}}
NFD = unicodedata.normalize("NFD", "café")
TOKYO = datetime.timezone(datetime.timedelta(hours=9))
SECONDS = datetime.datetime(2024, 3, 1)

MADE_OF = st.text(st.sampled_from("0123456789.eE+-:TZtrueFALS \n\r\t\x1c\u3000é你"), max_size=24)
ZONES = [time_zone(name) for name in ("UTC", "+05:30", "Asia/Tokyo", "America/New_York", "Africa/Casablanca")]
INSTANTS = st.builds(
    lambda time, offset: f"{time.isoformat(timespec='seconds')}{offset}",
    st.one_of(st.datetimes(), st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2100, 1, 1))),
    st.sampled_from(["Z", "+09:00", "-0330"]),
)
times = st.one_of(
    st.integers(0, 10**7).map(lambda second: SECONDS + datetime.timedelta(seconds=second)),
    st.integers(0, 99).map(lambda number: SECONDS + datetime.timedelta(days=number)),
)
SIX_DIGITS = st.integers(-(10**6) + 1, 10**6 - 1)  # which a float32 keeps, so that tf.Example does
row = st.fixed_dictionaries(
    {
        "id": st.one_of(st.integers(-(2**62), 2**62), st.integers(2**53 - 3, 2**53 + 3), st.integers(0, 9)),
        "small": st.none() | st.integers(-(2**53), 2**53) | st.integers(0, 9),
        "flag": st.none() | st.booleans(),
        "price": st.none() | st.integers(-(10**6), 10**6).map(lambda cents: Decimal(cents) / 100),
        "share": st.none()
        | st.builds(lambda digits, places: float(f"{digits}e{places}"), SIX_DIGITS, st.integers(-20, 20)),
        "on": st.none() | st.booleans(),
        "at": st.none() | times,
        "instant": st.none() | times,
        "day": st.none() | times,
        "word": st.none() | texts,
        "prose": st.none() | texts,
        "y": st.booleans(),
    }
)
TYPES = {
    "id": pa.int64(),
    "small": pa.int64(),
    "flag": pa.bool_(),
    "price": pa.decimal128(12, 2),
    "share": pa.float64(),
    "on": pa.bool_(),
    "at": pa.timestamp("us"),
    "instant": pa.timestamp("us", "Asia/Tokyo"),
    "day": pa.timestamp("ns"),
    "word": pa.string(),
    "prose": pa.string(),
    "y": pa.bool_(),
}


def arrow(rows: list[dict]) -> pa.Table:
    """The rows with types; instants are told in UTC."""
    utc = datetime.UTC
    columns = {name: [row[name] for row in rows] for name in TYPES}
    columns["instant"] = [value and value.replace(tzinfo=utc) for value in columns["instant"]]
    return pa.table({name: pa.array(columns[name], kind) for name, kind in TYPES.items()})


@functools.cache
def recipe_of(format: str) -> Recipe:
    """A recipe of all columns; the format commas is CSV with decimal commas."""
    data = RECIPE | ({"delimiter": ";", "decimal": ","} if format == "commas" else {"format": format})
    return Recipe.model_validate({"name": "rows", "data": data, "model": {"name": "mlp"}})


@functools.cache
def recipe_of_one(format: str) -> Recipe:
    """A recipe that reads two columns of `FEATURES`, and splits by content."""
    data = recipe_of(format).data.model_dump(include={"format", "path", "label", "delimiter", "decimal"})
    data["features"] = {name: FEATURES[name] for name in ("share", "on")}
    return Recipe.model_validate({"name": "rows", "data": data, "model": {"name": "mlp"}})


def trained_on(path: Path, format: str) -> tuple[list[dict], list]:
    """What preprocess makes of the file: its rows, and of these splits, digests, bytes of examples and statistics."""
    recipe = recipe_of(format)
    batches = []
    for batch in judged(path, recipe):
        assert not isinstance(batch, BadRow), batch
        batches.append(batch.set_column(0, "source", pa.array([""] * len(batch))))
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    assigned, digests = assign(batch, 1, recipe.data)
    raw = {name: as_column(assigned[name]) for name in assigned.schema.names if name.startswith("raw/")}
    summary = Summary.from_rows(assigned, [], recipe.data.prose).document({})
    made = [assigned["split"].to_pylist(), digests, [*encode_examples(raw)], summary]
    batches = list(judged(path, recipe_of_one(format)))
    made += [each for name in (ROW_HASH, WHOLE_HASH) for other in batches for each in other[name].to_pylist()]
    return batch.drop_columns("source").to_pylist(), made


def raw_input(feature: tuple[str, dict]) -> RawInput:
    name, kind = feature
    dtype = "float32" if kind["type"] == "numeric" else "string"
    return RawInput.model_validate({"name": name, "dtype": dtype, "column": kind})


MODEL = PushedModel(folder="", inputs=tuple(map(raw_input, FEATURES.items())))


def asked_about(inputs: object, model: PushedModel = MODEL) -> tuple[list[str], list[dict]]:
    """The keys and inputs that `predict` makes of a file or of a table in memory."""
    keys, rows = [], []
    for batch in items_of(inputs, model, "id"):
        assert isinstance(batch, InputBatch), batch
        keys += batch.keys.to_pylist()
        columns = {f"raw/{name}": values.tolist() for name, values in batch.inputs.items()}
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return keys, rows


def inspected(path: Path) -> dict[str, list[str]]:
    """The texts that `data inspect` counts, of the categories."""
    found: dict[str, list[str]] = {name: [] for name in (*FEATURES, "y") if name not in ("share", "on", "day")}
    for batch in read_table(find_table(str(path))):
        assert isinstance(batch, RowBatch), batch
        for name, kept in found.items():
            kept += cells(batch.columns[name]).texts.to_pylist()
    return found


@dataclass(frozen=True)
class TrainedModel:
    """A pushed model, of every way to ask it."""

    labels: list[str]
    predictor: Predictor
    saved: Any
    device: Path


DEVICE_FILE = "model_float32.tflite"
SOURCES = ("pandas", "arrow", "excel", "spark", "parquet", "tfrecord", "frame")


def push_model(recipe: Recipe, folder: Path) -> TrainedModel:
    """Write a version of the recipe's network, with first weights, and its files for devices below `folder`."""
    examples = open_examples(preprocess(recipe, folder / "examples"))
    document = examples.document
    network = build(recipe.model, document.features, len(document.labels), seed=1)
    version, beside = folder / "models" / "1", folder / "device"
    with storage.stage(str(version), PRODUCER) as staged:
        signature.save(network, load_transform(examples.uri), document, staged, recipe.data)
        (staged / EXTRA).mkdir()
        device.write(recipe, document, examples.uri, {}, staged / EXTRA)
    beside.mkdir()
    converter = LiteConverter(network, examples, calibration_examples=0)
    (beside / DEVICE_FILE).write_bytes(converter.convert("litert_float32"))
    files = {DEVICE_FILE: FORMATS["litert_float32"].border(beside / DEVICE_FILE)}
    device.write(recipe, document, examples.uri, files, beside)
    saved = tf.saved_model.load(str(version))
    return TrainedModel(document.labels, Predictor(find_model(str(version))), saved, beside)


@functools.cache
def model_of_every_type() -> TrainedModel:
    """A model of `FEATURES` that knows the awkward values."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    table = arrow(awkward_rows())
    parquet.write_table(table, folder / "a.parquet")
    data = RECIPE | {"format": "parquet", "path": str(folder / "a.parquet")}
    document = {"name": "rows", "data": data, "model": {"name": "mlp", "hidden": [8]}}
    return push_model(Recipe.model_validate(document), folder)


def scores(model: TrainedModel, inputs: object) -> np.ndarray:
    """What `predict` answers to a file or a table in memory: (rows, classes)."""
    found = model.predictor.predict(inputs, None).table
    return np.stack([found[f"score_{label}"].to_numpy() for label in model.labels], axis=1)


def assert_one_answer(inputs: dict[str, object], rows: list[dict], times: int) -> None:
    """The model answers alike to each of `inputs`, to raw cells (`rows`, without repeats) and on a device."""
    model = model_of_every_type()
    expected = scores(model, inputs["table"])
    for name, source in inputs.items():
        # Not to the bit: the rows that are left over behind whole SIMD vectors have another rounding.
        np.testing.assert_allclose(scores(model, source), expected, atol=1e-6, err_msg=name)
    numbers = {name for name, kind in KINDS.items() if kind == "numeric"}
    cells = {name: [row[f"raw/{name}"] for row in rows] for name in KINDS}
    raw = {input_name(name): tf.constant(values) for name, values in cells.items() if name not in numbers}
    raw |= {name: tf.constant([math.nan if cell is None else cell for cell in cells[name]]) for name in numbers}
    answered = model.saved.signatures["serving_default"](**raw)["probabilities"].numpy()
    np.testing.assert_allclose(np.tile(answered, (times, 1)), expected, atol=1e-6)
    each = [dict(zip(raw, row, strict=True)) for row in zip(*(value.numpy() for value in raw.values()), strict=True)]
    each = [{name: cell.decode() if isinstance(cell, bytes) else cell for name, cell in row.items()} for row in each]
    answered = device_folder.answers(model.device, each, DEVICE_FILE)
    np.testing.assert_allclose(np.tile(answered, (times, 1)), expected, atol=1e-5)


def plain(rows: list[dict]) -> list[dict]:
    """With what a model takes alone: numbers as float32, NaN as None."""

    def value(item: object) -> object:
        return (None if math.isnan(item) else float(np.float32(item))) if isinstance(item, float) else item

    return [{name: value(item) for name, item in row.items() if name.startswith("raw/")} for row in rows]


def assert_one_meaning(rows: list[dict], folder: Path, times: int, asked_in: Collection[str]) -> None:
    """The rows, repeated, are the same values in each format, and have the same answers in those of `asked_in`."""
    table = arrow(rows * times)
    place = table.column_names.index("prose")
    files = write_each(table, folder, table.set_column(place, "prose", table["prose"].dictionary_encode()))
    expected, made = trained_on(files["parquet"], "parquet")
    assert len(expected) == len(table)
    for name in files.keys() - {"parquet"}:
        assert repr(trained_on(files[name], files[name].suffix[1:])) == repr((expected, made)), name
    keys = [row["split_by"] for row in expected]
    sources = {**files, "frame": table.to_pandas(), "table": table}
    for name, inputs in sources.items():
        asked_keys, asked = asked_about(inputs)
        assert asked_keys == keys, name
        assert plain(asked) == plain(expected), name
    ways = {name: f"{source}" if name in files else source for name, source in sources.items()}
    assert_one_answer({name: ways[name] for name in ("table", *asked_in)}, expected[: len(rows)], times)
    for name, path in files.items():
        texts = inspected(path)
        assert texts.pop("y") == [row["label"] for row in expected], name
        assert texts == {column: [row[f"raw/{column}"] for row in expected] for column in texts}, name


@pytest.mark.timeout(1800)
@settings(max_examples=40)
@given(
    rows=st.lists(row, min_size=1, max_size=12), times=st.sampled_from([1, 1, 1, 13]), asked_in=st.sampled_from(SOURCES)
)
def test_rows_mean_the_same_in_every_format_and_to_every_reader(rows, times, asked_in):
    with tempfile.TemporaryDirectory() as folder:
        assert_one_meaning(rows, Path(folder), times, [asked_in])


def awkward_rows() -> list[dict]:
    draw = random.Random(7)
    rows = []
    for number, word in enumerate(WORDS * 12):
        time = SECONDS + datetime.timedelta(hours=number % 50 * 12)
        rows.append(
            {
                "id": 2**53 + number,
                "small": None if number % 3 == 0 else 46_701_234_560 + number % 5,
                "flag": draw.choice([None, True, False]),
                "price": draw.choice([None, Decimal("1.10"), Decimal("3.00")]),
                "share": draw.choice([None, 0.1, 3.0, 1e-7, 2e10]),
                "on": number % 2 == 0,
                "at": time,
                "instant": time,
                "day": time,
                "word": word,
                "prose": f"{word} {word}",
                "y": number % 2 == 0,
            }
        )
    return rows


def test_a_table_of_every_awkward_value_means_the_same_in_every_format(tmp_path):
    assert_one_meaning(awkward_rows(), tmp_path, 1, SOURCES)
    path = tmp_path / "commas.csv"
    path.write_bytes(by_german_excel(arrow(awkward_rows())))
    point, comma = (
        tmp_path / "points.csv",
        MODEL.model_copy(update={"dialect": Dialect(None, comma_numbers=("share",))}),
    )
    point.write_bytes(by_excel(arrow(awkward_rows())))
    assert repr(trained_on(path, "commas")) == repr(trained_on(point, "csv"))
    assert repr(asked_about(path, comma)) == repr(asked_about(point))
    assert len(np.unique(scores(model_of_every_type(), arrow(awkward_rows())).round(4), axis=0)) > 100


def test_a_column_has_one_name_in_every_format_and_a_recipe_may_use_no_other(tmp_path):
    named = pa.table({" on ": [True, False], f"{NFD}\u00a0": ["a", "b"], "": [1, 2], "a.b": ["x", "y"]})
    pa_csv.write_csv(named, tmp_path / "a.csv")
    parquet.write_table(named.append_column("a", pa.array([{"b": 1}, {"b": 2}])), tmp_path / "a.parquet")
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for serialized in examples_of(named.rename_columns([" on ", NFD, "column 3 ", "a.b"])):
            writer.write(serialized)
    names = ["on", "café", "column 3", "a.b"]
    inputs = {name: {"type": "category"} for name in names}
    model = PushedModel(folder="", inputs=tuple(map(raw_input, inputs.items())))
    for source in (*(tmp_path / f"a.{name}" for name in ("csv", "parquet", "tfrecord")), named, named.to_pandas()):
        [batch] = items_of(source, model, None)
        assert isinstance(batch, InputBatch), batch
        assert [sorted(values.tolist()) for values in batch.inputs.values()] == [
            ["false", "true"],
            ["a", "b"],
            ["1", "2"],
            ["x", "y"],
        ]
        if isinstance(source, Path):
            [rows] = read_table(find_table(str(source)))
            assert isinstance(rows, RowBatch) and sorted(rows.columns.schema.names) == sorted(names)
    twice = pa.table({"on": ["1"], " on": ["2"]})
    pa_csv.write_csv(twice, tmp_path / "twice.csv")
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with tf.io.TFRecordWriter(str(tmp_path / "twice.tfrecord")) as writer:
        writer.write(examples_of(twice)[0])
    for name in ("csv", "parquet", "tfrecord"):
        with pytest.raises(DataError, match=r"column 'on' twice\. Give each column a different name"):
            list(read_table(find_table(str(tmp_path / f"twice.{name}"))))
    with pytest.raises(DataError, match="predict: names column 'on' twice"):
        list(items_of(twice, model, None))
    for name, fault in {" on": "white space around it", NFD: r"not in Unicode's composed form \(NFC\)"}.items():
        for data in ({"features": {name: {"type": "category"}}}, {"where": f"column({name!r}) == 'x'"}):
            data = {"format": "csv", "path": "a.csv", "features": FEATURES} | data
            document = {"name": "rows", "data": data, "model": {"name": "mlp"}}
            if "where" in data:
                assert column_name(name) in Recipe.model_validate(document).data.columns
            else:
                with pytest.raises(ValidationError, match=fault):
                    Recipe.model_validate(document)


@settings(max_examples=40)
@given(cells=st.lists(st.one_of(texts, MADE_OF, INSTANTS), min_size=1, max_size=20), zone=st.sampled_from(ZONES))
def test_the_graph_reads_texts_in_nfc_as_the_readers_do(cells, zone):
    cells = [unicodedata.normalize("NFC", cell) for cell in cells]
    raw = tf.constant(cells)
    assert [text.decode() for text in canonical_tensor(raw).numpy()] == [canonical(cell) for cell in cells]
    lists = canonical_lists_tensor(raw, ":")
    assert [text.decode() for text in lists.numpy()] == [canonical_list(cell, ":") for cell in cells]
    for cell, text in zip(cells, days_tensor(raw, hour=True, zone=zone).numpy(), strict=True):
        if expected := day(cell, hour=True, zone=zone):
            assert text.decode()[:13].replace(" ", "T") == expected


def test_a_served_model_answers_raw_cells_as_predict_does_in_every_format(tmp_path):
    rows = {
        "work": [" Private", " Self-emp-not-inc", " ?", " Private"],
        "merchant": ["4.6701234565e+10", "46701234566.0", "", "46701234565"],
        "class": ["True", "FALSE", "true", ""],
        "address": ["1 Main St\nOslo", "2 High St\r\nRome", "1 Main St Oslo", "3"],
        "at": ["2024-03-01T05:00+09:00", "2024-02-29 20:00:00", "2024-03-01", ""],
        "title": ["[ILUG] DEAL", "好美棒", "deal ilug", "差烂丑"],
        "tags": ["a; b", "b", " a ;;b", ""],
        "y": ["1.0", "0", "1", "0.0"],
    }
    table = pa.table({name: [f"{cell}" for cell in cells] * 60 for name, cells in rows.items()})
    table = table.append_column("image", pa.array([f"{row}" if row % 5 else "" for row in range(240)]))
    typed = {
        "id": pa.array([2**53 + row % 5 for row in range(240)]),
        "flag": pa.array([None if row % 7 == 0 else row % 2 == 0 for row in range(240)]),
        "price": pa.array([Decimal("1.25") if row % 3 else Decimal("3.00") for row in range(240)]),
        "share": pa.array([None if row % 11 == 0 else 0.5 + row % 4 for row in range(240)]),
        "instant": pa.array([SECONDS + datetime.timedelta(hours=row % 30) for row in range(240)], TYPES["instant"]),
    }
    for name, column in typed.items():
        table = table.append_column(name, column)
    pa_csv.write_csv(table, tmp_path / "a.csv")
    features = {name: {"type": "category"} for name in ("work", "merchant", "class", "address", "id", "flag", "price")}
    features |= {"share": {"type": "numeric"}, "instant": {"type": "date", "hour": True}}
    features |= {"at": {"type": "date", "hour": True}, "title": {"type": "text"}, "image": {"type": "numeric"}}
    features["tags"] = {"type": "text", "separator": ";"}
    data = {"format": "csv", "path": str(tmp_path / "a.csv"), "label": "y", "features": features}
    data["time_zone"] = "America/New_York"
    recipe = Recipe.model_validate({"name": "rows", "data": data, "model": {"name": "mlp", "hidden": [8]}})
    model = push_model(recipe, tmp_path)
    assert model.labels == ["0", "1"]
    examples = open_examples(str(tmp_path / "examples"))
    vocabularies = Path(examples.uri, "transform", "transform_fn", "assets")
    known = {path.name.split("_", 2)[2]: path.read_text().split("\n")[:-1] for path in vocabularies.iterdir()}
    assert sorted(known["merchant"]) == ["46701234565", "46701234566", "[missing]"]
    assert sorted(known["class"]) == ["[missing]", "false", "true"]
    assert sorted(known["address"]) == ["1 Main St Oslo", "2 High St Rome", "3"]
    assert sorted(known["title"]) == sorted(["deal", "ilug", *"好美棒差烂丑"])
    assert sorted(known["tags"]) == ["a", "b"]

    def answers(inputs: object) -> np.ndarray:
        found = model.predictor.predict(inputs, None)
        assert all(counts.unknown == 0 for counts in found.unknown.counts().values())
        return np.stack([found.table[f"score_{label}"].to_numpy() for label in model.labels], axis=1)

    inputs = table.drop_columns("y")
    expected = answers(str(tmp_path / "a.csv"))
    assert len(np.unique(expected.round(4), axis=0)) > 2
    parquet.write_table(inputs, tmp_path / "a.parquet")
    pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "pandas.csv", index=False)
    pd.read_csv(tmp_path / "a.csv").to_parquet(tmp_path / "pandas.parquet")
    for name, write in {"frame": by_pandas, "excel": by_excel, "spark": by_spark}.items():
        (tmp_path / f"{name}.csv").write_bytes(write(inputs))
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for serialized in examples_of(inputs):
            writer.write(serialized)
    written = ("a.parquet", "pandas.csv", "pandas.parquet", "frame.csv", "excel.csv", "spark.csv", "a.tfrecord")
    for other in (inputs, inputs.to_pandas(), *(str(tmp_path / name) for name in written)):
        np.testing.assert_array_equal(answers(other), expected)
    serve = model.saved.signatures["serving_default"]
    with (tmp_path / "a.csv").open(newline="") as file:  # a line break is one of the cell
        cells_of = list(csv.DictReader(file))
    raw = {
        input_name(name): tf.constant([row[name] for row in cells_of])
        for name in inputs.column_names
        if name not in ("image", "share")
    }
    raw["share"] = tf.constant([float(row["share"] or "nan") for row in cells_of])
    raw["image"] = tf.constant([float(cell or "nan") for cell in table["image"].to_pylist()])
    np.testing.assert_allclose(serve(**raw)["probabilities"].numpy(), expected, atol=1e-6)

    cells = [row | {"image": float(row["image"] or "nan")} for row in inputs.slice(0, 20).to_pylist()]
    np.testing.assert_allclose(device_folder.answers(model.device, cells, DEVICE_FILE), expected[:20], atol=1e-5)

    strange = inputs.set_column(0, "work", pa.array(["Never-worked"] * 239 + [""]))
    counts = model.predictor.predict(strange, None).unknown.counts()["work"]
    assert (counts.values, counts.unknown, counts.missing) == (239, 239, 1)
    assert counts.warning("work") == "239 of 239 values of 'work' are unknown to the model."
    assert counts.model_copy(update={"unknown": 3}).warning("work") is None
    absent = inputs.drop_columns("address").append_column("address", pa.array([""] * 240))
    assert model.predictor.predict(absent, None).unknown.counts()["address"].warning("address") == (
        "240 of 240 cells of 'address' are missing, and none was in training."
    )

    def unknown_values():
        judged = UnknownCounts(recipe.data, examples)
        for raw, _ in examples.raw_batches("test", 99, judged.columns):
            judged.add_raw(raw)
        return judged.counts()

    assert {counts.unknown for counts in unknown_values().values()} == {0}
    next(vocabularies.glob("*merchant")).write_text("46701234565\n")
    merchants = Counter(
        merchant.decode() for raw, _ in examples.raw_batches("test", 99) for merchant in raw["merchant"].numpy()
    )
    assert unknown_values()["merchant"] == UnknownValues(
        values=merchants["46701234565"] + merchants["46701234566"],
        unknown=merchants["46701234566"],
        missing=merchants[""],
        missing_is_unknown=True,
    )
