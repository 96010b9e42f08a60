"""What a device runs: one file without Trainyard, which reads values as training does."""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainyard.quality.tables.cells import cells
from trainyard.readers.rows import BadRow
from trainyard.serving.bad_request import BadRequest
from trainyard.serving.records import Records
from trainyard.spec.columns import Date
from trainyard.spec.formula import as_lists, parse
from trainyard.spec.recipe import Data
from trainyard.steps.export.on_device import bundle
from trainyard.steps.export.on_device.columns import Preprocessing, _as_read, computed
from trainyard.steps.predict.columns import table_items
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.preprocess.readers.records import BadRecord
from trainyard.steps.preprocess.readers.tables import typed_text
from trainyard.values.text import UTC, day

PREPROCESS = {"columns": bundle.COLUMNS, "images": bundle.IMAGES}


@pytest.mark.parametrize("kind", PREPROCESS)
def test_the_file_of_a_device_holds_each_name_once_and_imports_numpy_alone(kind: str) -> None:
    modules: Sequence[ModuleType] = PREPROCESS[kind]
    file = ast.parse(bundle.preprocess_file(modules), feature_version=(3, 9))
    names = [node.name for node in file.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names += [
        target.id
        for node in file.body
        if isinstance(node, ast.Assign)
        for each in node.targets
        for target in ast.walk(each)
        if isinstance(target, ast.Name)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    imported = {
        alias.name.split(".")[0] if isinstance(node, ast.Import) else str(node.module).split(".")[0]
        for node in ast.walk(file)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported - sys.stdlib_module_names == ({"numpy", "tzdata"} if kind == "columns" else {"numpy", "PIL"})
    called = {node.func.id for node in ast.walk(file) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called.isdisjoint({"eval", "exec", "compile", "__import__"})
    assert imported.isdisjoint({"pickle", "marshal", "subprocess", "os"})


def made(folder: Path, *columns: dict[str, Any], time_zone: str = "UTC") -> Preprocessing:
    content = {
        "raw_features": columns,
        "computed_features": [],
        "vocabularies": [],
        "inputs": [],
        "files": {},
        "label_separator": None,
        "time_zone": time_zone,
    }
    (folder / "preprocessing.json").write_text(json.dumps(content))
    return Preprocessing(folder)


NUMBER = {
    "name": "n",
    "dtype": "float32",
    "column": {"type": "numeric"},
    "learned": {"imputed": 7.0, "mean": 2.0, "standard_deviation": 4.0},
}
DAY = {
    "name": "d",
    "dtype": "string",
    "column": {"type": "date", "hour": True},
    "learned": {"imputed": 0.0, "mean": 0.0, "standard_deviation": 1.0},
}


@pytest.mark.parametrize(
    ("value", "feature"),
    [
        *((value, 0.25) for value in (3, 3.0, "3", " 3.0", "3e+00", "+3", np.int64(3), np.array(3))),
        *((value, 1.25) for value in (None, "", "NA", "n/a", " null ", "?", float("nan"))),
        (True, -0.25),
        ("FALSE", -0.5),
    ],
)
def test_a_number_is_read_in_each_of_its_writings(tmp_path: Path, value: Any, feature: float) -> None:
    assert made(tmp_path, NUMBER)._values({"n": value}) == {"n": feature}


def test_a_value_of_a_json_file_is_that_of_a_request_with_the_same_json(tmp_path: Path) -> None:
    column = {"name": "c", "dtype": "string", "column": {"type": "category"}}
    cells = [
        "1.10",
        "1.0",
        "1e5",
        "2.5E-7",
        "12345678901234567890.5",
        "9007199254740993",
        "true",
        '" a "',
        "null",
        "NaN",
    ]
    text = ", ".join(f'{{"c": {cell}}}' for cell in cells)
    model = PushedModel(folder="", inputs=(RawInput.model_validate(column),))
    served, _ = Records(model).tensorflow_serving_rows(f'{{"instances": [{text}]}}'.encode())
    (tmp_path / "rows.json").write_text(f"[{text}]")
    rows = made(tmp_path, column).read(f"{tmp_path / 'rows.json'}")
    assert [(_as_read(row["c"], column, UTC),) for row in rows] == served
    assert _as_read(b" caf\xc3\xa9", column, UTC) == "café"
    several = column | {"column": {"type": "text", "separator": ";"}}
    assert _as_read(np.array(["b", "a "]), several, UTC) == _as_read(["b", "a "], several, UTC) == "b;a"

    (tmp_path / "rows.json").write_text('[{"c": 1, "c": 2}]')
    with pytest.raises(ValueError, match="'c' occurs twice in one object"):
        made(tmp_path, column).read(f"{tmp_path / 'rows.json'}")


def test_an_answer_that_is_no_number_is_refused_as_predict_refuses_it(tmp_path: Path) -> None:
    preprocessing = made(tmp_path, NUMBER)
    preprocessing._content["files"] = {"model.onnx": {"outputs": {"prediction": {}}}}
    assert preprocessing.answer({"prediction": np.float32([2])}, "model.onnx") == {"prediction": 2.0}
    for number in ("nan", "inf"):
        with pytest.raises(ValueError, match="the model gives NaN or infinity"):
            preprocessing.answer({"prediction": np.float32([number])}, "model.onnx")


@pytest.mark.parametrize("value", ["old", "1,000", "inf", 1e39, float("inf"), [1, 2], np.array([3]), {}])
def test_what_is_no_number_is_refused_with_its_column(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"'n': (a number|one value) is expected"):
        made(tmp_path, NUMBER)._values({"n": value})


@pytest.mark.parametrize(
    ("text", "days", "month", "weekday", "hour"),
    [
        ("1970-01-02", 1, 1, 5, 1),
        ("1970-01-02T23:30:00", 1, 1, 5, 24),
        (" 1970-01-02T01:00+02:00 ", 0, 1, 4, 24),  # 23:00 of the day before, in UTC
        (None, 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_a_day_is_read_in_utc(tmp_path: Path, text: Any, days: int, month: int, weekday: int, hour: int) -> None:
    features = made(tmp_path, DAY)._values({"d": text})
    assert features == {"d_days": days, "d_month": month, "d_weekday": weekday, "d_hour": hour}


@pytest.mark.parametrize(
    "text",
    [
        *("soon", "NaT", "NA", "1 March 2024", "2024-3-1", "20240301", 20240301, "2024-03-01x", "٢٠٢٤-03-01"),
        *("2024-02-30", "2023-02-29T05:00", "2024-02-30T00:00Z", "0000-01-01", "2024-13-01"),
        *("2024-03-01 noon", "2024-03-01T24:00"),
    ],
)
def test_a_day_that_every_reader_refuses_is_refused_with_its_column(tmp_path: Path, text: Any) -> None:
    with pytest.raises(ValueError, match=f"'d': a day YYYY-MM-DD is expected, '{text}' was found"):
        made(tmp_path, DAY)._values({"d": text})
    assert day(f"{text}", hour=True) is None
    feature = Date(type="date", hour=True)
    with pytest.raises(BadRecord):
        typed_text(f"{text}", "d", feature, Data(format="csv", path="a", features={"d": feature}))
    raw = RawInput.model_validate({"name": "d", "dtype": "string", "column": DAY["column"]})
    model = PushedModel(folder="", inputs=(raw,))
    with pytest.raises(BadRequest, match="a day YYYY-MM-DD is expected"):
        Records(model).tensorflow_serving_rows(json.dumps({"instances": [{"d": text}]}).encode())
    [refused] = table_items(pa.record_batch({"d": pa.array([f"{text}"])}), pa.array(["a.csv:2"]), model, None)
    assert isinstance(refused, BadRow)
    if day(f"{text}") is None:  # without its hour it is no day either
        assert np.isnan(cells(pa.array([f"{text}", "2024-03-01"])).days).tolist() == [True, False]


def test_a_day_is_read_in_the_time_zone_of_the_recipe(tmp_path: Path) -> None:
    features = made(tmp_path, DAY, time_zone="Asia/Tokyo")._values({"d": "1970-01-01T16:30Z"})
    assert features == {"d_days": 1, "d_month": 1, "d_weekday": 5, "d_hour": 2}


@pytest.mark.parametrize(
    ("formula", "row", "value"),
    [
        ("a / b", {"a": 1.0, "b": 0.0}, float("nan")),
        ("missing(a / b)", {"a": 1.0, "b": 0.0}, "false"),
        ("a > 0 or b > 0", {"a": float("nan"), "b": 1.0}, "true"),
        ("a > 0 and b > 0", {"a": float("nan"), "b": 1.0}, ""),
        ("join(s, bin(a, 0.5))", {"s": "x", "a": -0.6}, "x & -2"),
        ("s in ['3.0', 'y']", {"s": "3"}, "true"),
    ],
)
def test_a_formula_is_computed_from_its_tree(formula: str, row: dict[str, Any], value: Any) -> None:
    node = json.loads(json.dumps(as_lists(parse(formula))))
    np.testing.assert_equal(computed(node, row), value)
