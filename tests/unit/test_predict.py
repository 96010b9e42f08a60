"""What `trainyard predict` takes, refuses and writes, without TensorFlow: the model's answers are made up here."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from pyarrow import parquet

from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.quality.decoding import PixelForm
from trainyard.readers import csv_rows
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import TableFile
from trainyard.steps.predict import columns, images, prediction, pushed_model, results, source
from trainyard.steps.predict.inputs import items_of
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.source import InputBatch
from trainyard.storage import storage
from trainyard.values.text import number

COLUMNS = [
    {"name": "age", "dtype": "float32", "column": {"type": "numeric", "scale": "zscore"}},
    {"name": "net worth", "dtype": "float32", "column": {"type": "numeric"}},
    {"name": "city", "dtype": "string", "column": {"type": "category"}},
    {"name": "since", "dtype": "string", "column": {"type": "date"}},
]
HEADER = "id,age,net worth,city,since\n"
GOOD = "a,41,1e3, Oslo ,2026-01-31\nb,?,,,\nc,+7.5,na,Rome,2026-02-01T10:00\n"


def version(folder: Path, image: dict[str, Any] | None = None, columns: list[dict[str, Any]] = COLUMNS) -> str:
    with storage.stage(str(folder), producer="trainyard.push") as staging:
        (staging / "assets.extra").mkdir()
        raw = [{"name": "image", "dtype": "string", "column": None}] if image else columns
        document = {"transform": "image" if image else "columns", "raw_features": raw, "image": image, "inputs": []}
        (staging / "assets.extra" / "preprocessing.json").write_text(json.dumps(document))
        (staging / "saved_model.pb").write_bytes(b"")
        (staging / "labels.txt").write_text("no\nyes, of course\n")
    return str(folder)


@pytest.fixture
def model(tmp_path: Path) -> PushedModel:
    return pushed_model.find_model(version(tmp_path / "models" / "1"))


@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_a_table_whose_only_column_is_called_image_is_no_image(tmp_path: Path, dtype: str) -> None:
    column = {"name": "image", "dtype": dtype, "column": {"type": "text" if dtype == "string" else "numeric"}}
    assert pushed_model.find_model(version(tmp_path / "1", columns=[column])).pixels is None


def rows(path: str | Path, model: PushedModel, key: str | None = None) -> tuple[dict[str, list[Any]], list[BadRow]]:
    items = list(columns.read_rows(source.find_source(str(path), images=False), model, key))
    batches = [item for item in items if isinstance(item, InputBatch)]
    joined: dict[str, list[Any]] = {"key": [key for batch in batches for key in batch.keys.to_pylist()]}
    for name in batches[0].inputs if batches else ():
        joined[name] = [value for batch in batches for value in batch.inputs[name].tolist()]
    return joined, [item for item in items if isinstance(item, BadRow)]


def test_a_row_becomes_what_the_signature_takes_as_preprocess_makes_it(tmp_path: Path, model: PushedModel) -> None:
    (tmp_path / "a.csv").write_text(HEADER + GOOD)
    got, rejected = rows(tmp_path / "a.csv", model)
    assert rejected == [] and list(got) == ["key", "age", "net_worth", "city", "since"]
    assert got["key"] == ["a.csv:2", "a.csv:3", "a.csv:4"]
    np.testing.assert_array_equal(got["age"], [41, np.nan, 7.5])
    np.testing.assert_array_equal(got["net_worth"], [1000, np.nan, np.nan])
    assert got["city"] == ["Oslo", "", "Rome"] and got["since"] == ["2026-01-31", "", "2026-02-01"]


PLAIN = [str(number / 4) for number in range(300)]
NUMBERS = ["1.5", "1.", ".5", "007", "-0", "1e5", "1E-7", "+3", "+.5e+1", "1e-400", "4.9e-324"]
NUMBERS += ["2.2250738585072011e-308", "3.4028234e38", "9007199254740993", "0.1000000000000000055511151231257827"]
NUMBERS += ["123456789012345678901234567890"]
ODD_NUMBERS = ["nan", "NaN", "-nan", "nan(1)", "inf", "infinity", "-Infinity", "1e39", "1e400", "-1e400", "1_000"]
ODD_NUMBERS += ["1,000", "0x10", "0x1p3", "1e", "-", "1d5", "1f", "", "1 2", "1.5\n", "٣", "½", "1.0.0", "--1", "-+1"]
ODD_NUMBERS += ["+-3", "true", "TRUE", "tRue", "NA", "n/a", "null", "None", "?"]


def read_among_plain(folder: Path, cell: str, model: PushedModel) -> float:
    """Return the `net worth` that the row of `cell` has, infinity if it is rejected."""
    column = [*PLAIN[:150], cell, *PLAIN[150:]]
    with (folder / "numbers.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [["age", "net worth", "city", "since"], *(["1", text, "x", ""] for text in column)]
        )
    got, rejected = rows(folder / "numbers.csv", model)
    values = got["net_worth"]
    assert values[:150] + values[-150:] == [float(text) for text in PLAIN]
    assert len(values) + len(rejected) == len(column)
    return values[150] if not rejected else np.inf


def types_among_plain(folder: Path) -> set[str]:
    """Return the Arrow types of the column that `read_among_plain` read."""
    table = TableFile(str(folder / "numbers.csv"), "", numbers={"net worth"})
    return {str(rows.columns.schema.field(0).type) for rows in csv_rows.read_csv(table, ["net worth"])}


def test_a_cell_among_plain_numbers_is_the_number_that_its_text_writes(tmp_path: Path, model: PushedModel) -> None:
    for cell in [*NUMBERS, *ODD_NUMBERS]:
        for written in (cell, f"\u00a0{cell}"):
            expected = number(written)
            value = read_among_plain(tmp_path, written, model)
            np.testing.assert_array_equal(value, np.inf if expected is None else np.float32(expected), written)
        assert types_among_plain(tmp_path) == {"string"}
        read_among_plain(tmp_path, f" {cell}\t", model)
        assert types_among_plain(tmp_path) == ({"string"} if cell in ODD_NUMBERS else {"double"}), cell


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from("0123456789.eE+-_xXnaifNAIFty "), max_size=12) | st.floats().map(repr))
def test_whatever_a_cell_among_plain_numbers_holds_it_is_read_as_alone(
    tmp_path: Path, model: PushedModel, cell: str
) -> None:
    expected = number(cell)
    value = read_among_plain(tmp_path, cell, model)
    np.testing.assert_array_equal(value, np.inf if expected is None else np.float32(expected))


def test_a_list_of_a_row_is_what_its_text_was_in_training(tmp_path: Path) -> None:
    text = pushed_model.RawInput.model_validate(
        {"name": "tags", "dtype": "string", "column": {"type": "text", "separator": ";"}}
    )
    model = PushedModel(folder="", inputs=(text,))
    parquet.write_table(pa.table({"tags": [["rock", "pop"], None, ["r & b"]]}), tmp_path / "a.parquet")
    got, rejected = rows(tmp_path / "a.parquet", model)
    assert (got["tags"], rejected) == (["rock;pop", "", "r & b"], [])
    other = PushedModel(folder="", inputs=(text.model_copy(update={"column": None}),))
    got, rejected = rows(tmp_path / "a.parquet", other)
    assert [(item.key, item.reason) for item in rejected] == [("a.parquet", "unreadable_file")]
    assert "a.parquet: column 'tags' is list<element: string>. Numbers, texts, days" in rejected[0].detail


def test_a_column_of_a_type_that_is_not_read_is_named_with_it(tmp_path: Path, model: PushedModel) -> None:
    columns = {"age": [1.0], "net worth": [1], "city": [b"Oslo"], "since": ["2026-01-31"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    got, rejected = rows(tmp_path / "a.parquet", model)
    assert got["key"] == [] and "a.parquet: column 'city' is binary." in rejected[0].detail
    span = datetime.timedelta(seconds=5)
    for city in (pa.array([b"Oslo"]), pa.array([{"a": 1}]), pa.array([span]), pa.array([[1]], pa.list_(pa.int64(), 1))):
        with pytest.raises(
            DataError, match=rf"^predict: column 'city' is {re.escape(str(city.type))}\. Numbers, texts"
        ):
            list(items_of(pa.table(columns | {"city": city}), model, None))
    with pytest.raises(DataError, match=r"^predict: the columns are no table \(Python int too large"):
        list(items_of(columns | {"city": [2**64]}, model, None))
    day, time = datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5)
    for since in ([day, time], [time, time.replace(tzinfo=datetime.UTC)]):
        mixed = {"age": [1.0, 2.0], "net worth": [1, 2], "city": ["a", "b"], "since": since}
        for inputs in (mixed, pd.DataFrame(mixed, dtype=object)):
            with pytest.raises(DataError, match=r"^predict: column 'since' mixes days, times or times with a zone"):
                list(items_of(inputs, model, None))


def test_a_day_that_python_does_not_know_is_set_aside(model: PushedModel) -> None:
    days = pa.array([2932897, -719163, 19000], pa.int32()).cast(pa.date32())
    rows = {"age": [1.0] * 3, "net worth": [1] * 3, "city": ["Oslo"] * 3, "since": days}
    early, late, batch = items_of(pa.table(rows), model, None)
    assert [item.detail for item in (early, late)] == [
        f"'since': a time of the years 1 to 9999 is expected, {stored} (date32[day]) was found"
        for stored in (2932897, -719163)
    ]
    assert batch.keys.to_pylist() == ["2"]


def test_rows_that_do_not_fit_are_set_aside_with_their_reason(tmp_path: Path, model: PushedModel) -> None:
    bad = "d,old,1,Oslo,2026-02-30\ne,1\nf,1e39,1,Oslo,\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((HEADER + GOOD + bad).encode()))
    got, rejected = rows(tmp_path / "a.csv.gz", model, key="id")
    assert got["key"] == ["a", "b", "c"]
    assert {item.key: item.reason for item in rejected} == {
        "a.csv.gz:5": "mistyped_value",
        "a.csv.gz:6": "ragged_row",
        "a.csv.gz:7": "mistyped_value",
    }
    detail = next(item.detail for item in rejected if item.key == "a.csv.gz:5")
    assert "'age': a number is expected, 'old' was found" in detail and "'since': a day YYYY-MM-DD" in detail


def test_parquet_gives_what_csv_gives(tmp_path: Path, model: PushedModel) -> None:
    table = pa.table(
        {
            "city": pa.array([" Oslo ", None, "Rome"]).dictionary_encode(),
            "age": pa.array([41, None, 7.5], pa.float64()),
            "net worth": pa.array([1000, None, None], pa.int64()),
            "since": pa.array(["2026-01-31", None, "2026-02-01"]).cast(pa.date32()),
            "other": pa.array([1, 2, 3]),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(HEADER + GOOD)
    (parquet_rows, rejected), (csv_rows, _) = rows(tmp_path / "a.parquet", model), rows(tmp_path / "a.csv", model)
    assert rejected == [] and parquet_rows.pop("key") == ["a.parquet:1", "a.parquet:2", "a.parquet:3"]
    for name, values in parquet_rows.items():
        np.testing.assert_array_equal(values, csv_rows[name])


def test_a_missing_column_is_named_with_the_nearest_and_in_a_later_file_sets_that_file_aside(
    tmp_path: Path, model: PushedModel
) -> None:
    (tmp_path / "b.csv").write_text("Age,city,since,net worth\n1,a,,2\n")
    with pytest.raises(DataError, match=r"b\.csv: no column 'age'\. Did you mean 'Age'\? It has: Age, city") as error:
        rows(tmp_path / "b.csv", model)
    assert "The model takes: age, net worth, city, since." in str(error.value)
    (tmp_path / "a.csv").write_text(HEADER + GOOD)
    got, rejected = rows(tmp_path / "*.csv", model)
    assert len(got["key"]) == 3 and [(item.key, item.reason) for item in rejected] == [("b.csv", "missing_column")]
    with pytest.raises(DataError, match="no column 'name'"):
        rows(tmp_path / "a.csv", model, key="name")


def test_a_file_that_cannot_be_read_is_set_aside_and_the_others_are_read(tmp_path: Path, model: PushedModel) -> None:
    (tmp_path / "a.csv").write_text(HEADER + GOOD)
    (tmp_path / "b.csv").write_bytes(HEADER.encode() + b"a,1,2,\xff\xfe,\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress((HEADER + GOOD).encode())[:40])
    got, rejected = rows(tmp_path / "*.csv*", model)
    assert len(got["key"]) == 3
    assert [(item.key, item.reason) for item in rejected] == [
        ("b.csv", "unreadable_file"),
        ("c.csv.gz", "unreadable_file"),
    ]


def test_what_an_input_is_shows_in_names_or_in_the_first_bytes(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "one")
    (tmp_path / "two").write_text("a,b\n1,2\n")
    Image.new("L", (2, 2)).save(tmp_path / "three", "PNG")
    kinds = {
        name: source.find_source(str(tmp_path / name), images=name == "three").kind for name in ("one", "two", "three")
    }
    assert kinds == {"one": "parquet", "two": "csv", "three": "images"}
    with pytest.raises(DataError, match="the model takes images"):
        source.find_source(str(tmp_path / "two"), images=True)
    with pytest.raises(DataError, match="no files found"):
        source.find_source(str(tmp_path / "*.nothing"), images=True)


def test_an_image_goes_as_it_came_unless_the_model_would_not_decode_it_upright(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    gray = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    gray.save(folder / "deep" / "a.png")
    gray.save(folder / "b.bmp")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (4, 2)).save(folder / "c.jpg", exif=turned)
    Image.new("RGB", (4, 2)).save(folder / "f.png", exif=turned)
    start, end, rest = (folder / "f.png").read_bytes().partition(b"\0\0\0\0IEND")
    exif = start[33 : start.index(b"IDAT") - 4]  # the one chunk before the pixels; it may also stand behind them
    (folder / "g.png").write_bytes(start.replace(exif, b"") + exif + end + rest)
    said = '<x:xmpmeta xmlns:tiff="http://ns.adobe.com/tiff/1.0/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    profile = "\nexif\n      40\n" + (b"Exif\0\0" + turned.tobytes()[6:]).hex()
    for name, key, text in (("h.png", "XML:com.adobe.xmp", said), ("i.png", "Raw profile type exif", profile)):
        chunks = PngInfo()
        chunks.add_itxt(key, text) if name == "h.png" else chunks.add_text(key, text, zip=True)
        Image.new("RGB", (4, 2)).save(folder / name, pnginfo=chunks)
    (folder / "d.jpg").write_bytes(b"")
    (folder / "e.txt").write_text("no image")
    items = list(images.read_images(source.find_source(str(folder), images=True), PixelForm(1)))
    (batch,) = [item for item in items if isinstance(item, InputBatch)]
    encoded = dict(zip(batch.keys.to_pylist(), batch.inputs["image"].tolist(), strict=True))
    assert list(encoded) == ["b.bmp", "c.jpg", "deep/a.png", "f.png", "g.png", "h.png", "i.png"]
    assert encoded["deep/a.png"] == (folder / "deep" / "a.png").read_bytes()
    assert all(content.startswith(b"\x89PNG") for content in encoded.values())
    for name in ("c.jpg", "f.png", "g.png", "h.png", "i.png"):
        with Image.open(io.BytesIO(encoded[name])) as image:
            assert image.size == (2, 4)
    assert {item.key: item.reason for item in items if isinstance(item, BadRow)} == {
        "d.jpg": "zero_bytes",
        "e.txt": "not_an_image",
    }


def gives(labels: tuple[str, ...] | None, **more: Any) -> PushedModel:
    return PushedModel(folder="", inputs=(), labels=labels, **more)


def test_results_of_several_classes_and_of_several_targets_have_a_column_for_each() -> None:
    genres = results.Table(gives(("jazz", "pop", "rock"), label_separator=";"))
    genres.add(pa.array(["a", "b"]), np.array([[0.1, 0.9, 0.6], [0.5, 0.25, 0]], np.float32))
    assert genres.table.select(["prediction", "score_pop"]).to_pylist() == [
        {"prediction": "pop;rock", "score_pop": np.float32(0.9)},
        {"prediction": "", "score_pop": 0.25},
    ]
    loads = results.Table(gives(None, targets=("heating", "cooling")))
    loads.add(pa.array(["a"]), np.array([[1.5, 2.5]], np.float32))
    assert loads.table.to_pylist() == [{"key": "a", "prediction_heating": 1.5, "prediction_cooling": 2.5}]


class Answering:
    """A model that answers the first batch when it is told to, and refuses the first row of each."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def answer(self, batch: InputBatch) -> list[Any]:
        assert self.told.wait(60)
        refused = BadRow(batch.keys[0].as_py(), None, "refused_by_the_model", "")
        return [refused, (batch.keys.slice(1), np.full((len(batch) - 1, 2), 0.5, np.float32))]


@pytest.mark.parametrize(("size", "read"), [(1, 50), (3 << 20, 6)])
def test_batches_of_16_mib_are_read_ahead_and_rejections_keep_the_order_of_the_input(size: int, read: int) -> None:
    model, table, got = Answering(), results.Table(gives(("no", "yes"))), []

    def items() -> Iterator[InputBatch | BadRow]:
        for index in range(50):
            got.append(index)
            if len(got) == read:
                model.told.set()
            yield BadRow(f"bad {index}", None, "mistyped_value", "")
            yield InputBatch(pa.array([f"{index} a", f"{index} b"]), {"x": np.zeros((2, size // 2), np.int8)})

    prediction.answer_all(items(), model, table, lambda _: None)  # type: ignore[arg-type]
    assert got == [*range(50)]
    assert [item.key for item in table.rejected] == [
        key for index in range(50) for key in (f"bad {index}", f"{index} a")
    ]


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_results_have_the_class_its_score_and_one_score_a_class(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"p.{ending}"
    with results.Results(out, gives(("no", "yes, of course"))) as written:
        written.add(pa.array(["a", "b"]), np.array([[0.25, 0.75], [1, 0]], np.float32))
        written.reject(BadRow("c", None, "why", 'a "reason", and more'))
        assert not out.exists()
        written.publish()
    if ending == "parquet":
        got = parquet.read_table(out).to_pylist()
    elif ending == "jsonl":
        got = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        with out.open(newline="") as stream:
            read = list(csv.DictReader(stream))
        got = [{name: float(text) if "score" in name else text for name, text in row.items()} for row in read]
    assert got == [
        {"key": "a", "prediction": "yes, of course", "score": 0.75, "score_no": 0.25, "score_yes, of course": 0.75},
        {"key": "b", "prediction": "no", "score": 1.0, "score_no": 1.0, "score_yes, of course": 0.0},
    ]
    with results.rejected_file(out).open(newline="") as stream:
        assert list(csv.reader(stream)) == [["key", "reason", "detail"], ["c", "why", 'a "reason", and more']]
    assert written.classes == {"no": 1, "yes, of course": 1} and len(list(tmp_path.iterdir())) == 2


def test_of_many_classes_the_best_five_are_written_and_of_a_regression_the_number(tmp_path: Path) -> None:
    labels = tuple(f"class {number}" for number in range(results.MOST_CLASSES + 1))
    scores = np.zeros((1, len(labels)), np.float32)
    scores[0, [7, 3, 9]] = 0.5, 0.25, 0.125
    for out, names, outputs in (
        (tmp_path / "many.parquet", labels, scores),
        (tmp_path / "one.parquet", None, scores[0, 7:8]),
    ):
        with results.Results(out, gives(names)) as written:
            written.add(pa.array(["a"]), outputs)
            written.publish()
    (row,) = parquet.read_table(tmp_path / "many.parquet").to_pylist()
    assert len(row) == 3 + 2 * 4
    assert [row["prediction"], row["prediction_2"], row["prediction_3"]] == ["class 7", "class 3", "class 9"]
    assert [row["score"], row["score_2"], row["score_3"]] == [0.5, 0.25, 0.125]
    decided = results.OutputSchema(gives(labels).model_copy(update={"thresholds": ((9, 0.1),)}))
    (row,) = decided.batch(pa.array(["a"]), scores).to_pylist()
    assert [row["prediction"], row["prediction_2"], row["prediction_3"]] == ["class 9", "class 7", "class 3"]
    assert [row["score"], row["score_2"], row["score_3"]] == [0.125, 0.5, 0.25]
    assert parquet.read_table(tmp_path / "one.parquet").to_pylist() == [{"key": "a", "prediction": 0.5}]


def test_an_error_leaves_nothing_and_a_new_prediction_removes_the_old_rejections(tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    with pytest.raises(DataError), results.Results(out, gives(None)) as written:
        written.add(pa.array(["a"]), np.ones(1, np.float32))
        raise DataError("stop")
    assert list(tmp_path.iterdir()) == []
    results.rejected_file(out).write_text("old")
    with results.Results(out, gives(None)) as written:
        written.add(pa.array(["a"]), np.ones(1, np.float32))
        written.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_full_disk_is_named_by_the_file_and_leaves_nothing(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"p{ending}"
    keys, limits = [f"{number * 7919:09}" for number in range(400)], resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(InfrastructureError, match=f"^{out}: the disk takes no larger file"):
        try:
            with results.Results(out, gives(None)) as written:
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
                written.add(pa.array(keys), np.ones(len(keys), np.float32))
                written.publish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    assert results.require_writable(str(out), force=False) == out
    out.write_text("")
    with pytest.raises(ConfigurationError, match="already exists"):
        results.require_writable(str(out), force=False)
    assert results.require_writable(str(out), force=True) == out
    for wrong in ("p.txt", "gs://bucket/p.csv", "nowhere/p.csv"):
        with pytest.raises(ConfigurationError, match="--out"):
            results.require_writable(wrong, force=False)


def test_a_model_is_a_version_or_a_folder_of_versions_and_nothing_else(tmp_path: Path) -> None:
    folder = version(tmp_path / "models" / "1", image={"height": 8, "width": 8, "channels": 1})
    served_model = pushed_model.find_model(folder)
    assert served_model.pixels == PixelForm(1) and served_model.labels == ("no", "yes, of course")
    with pytest.raises(DataError, match="no model"):
        pushed_model.find_model(str(tmp_path / "models"))
    pointer = {"version": 1, "path": "1", "digest": "d", "metrics": {}}
    (tmp_path / "models" / "champion.json").write_text(json.dumps(pointer))
    assert pushed_model.find_model(str(tmp_path / "models")).folder == folder
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "saved_model.pb").write_bytes(b"")
    with pytest.raises(DataError, match=r"no manifest, so Trainyard did not push it, or it was copied in part\. Copy"):
        pushed_model.find_model(str(tmp_path / "foreign"))
    with storage.stage(str(tmp_path / "other"), "trainyard.push") as staging:
        (staging / "saved_model.pb").touch()
    with pytest.raises(DataError, match=r"no assets\.extra/preprocessing\.json, so Trainyard did not push it"):
        pushed_model.find_model(str(tmp_path / "other"))
