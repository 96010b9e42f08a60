"""Values that a recipe declares as missing: one definition for rows, columns, requests and devices."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import ConfigurationError
from trainyard.quality.inspect import inspect_recipe, statistics_of
from trainyard.quality.recipe_check import check_first
from trainyard.quality.tables import cells
from trainyard.readers.rows import RowBatch
from trainyard.serving.records import Records
from trainyard.spec.columns import indicators
from trainyard.spec.recipe import Data, Recipe, load
from trainyard.steps.export.on_device.columns import _as_read
from trainyard.steps.predict.columns import table_items
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.preprocess.readers.tables import ColumnValidator
from trainyard.values.missing import is_declared
from trainyard.values.text import UTC

FEATURES: dict[str, Any] = {
    "n": {"type": "numeric", "missing": [-999, 0.1, "unknown", "1e5"]},
    "c": {"type": "category", "missing": [-1, "un known"]},
    "d": {"type": "date", "missing": ["9999-12-31", "never"]},
}
MISSING = {
    "n": ["-999", " -999.0", "-9.99e+02", "0.1", "0.10000000001", "unknown", "100000", "NA", ""],
    "c": ["-1", "-1.0", " un\nknown", ""],
    "d": ["9999-12-31", "9999-12-31 00:00:00", "9999-12-31T23:59", "never", ""],
}
PRESENT = {"n": ["999", "-998.99", "0.11"], "c": ["unknown", "1"], "d": ["9999-12-30", "2024-02-29"]}
MODEL = PushedModel(
    folder="",
    inputs=tuple(
        RawInput.model_validate({"name": name, "dtype": "float32" if name == "n" else "string", "column": column})
        for name, column in Data(format="csv", path="-", features=FEATURES).model_dump()["features"].items()
    ),
)


def recipe(path: str = "-", **data: Any) -> Recipe:
    content = {"format": "csv", "path": path, "label": "y", "features": FEATURES} | data
    return Recipe.model_validate({"name": "some", "data": content, "model": {"name": "mlp"}})


def is_missing(value: Any) -> bool:
    return value == "" or (isinstance(value, float | np.floating) and math.isnan(value))


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [(name, text, kind is MISSING) for kind in (MISSING, PRESENT) for name in kind for text in kind[name]],
)
def test_training_prediction_server_and_device_agree_on_what_is_missing(name: str, text: str, missing: bool) -> None:
    row = {"n": "7", "c": "x", "d": "2024-03-01"} | {name: text}
    batch = RowBatch("a.csv", pa.RecordBatch.from_pylist([row | {"y": "z"}]), np.array([2]))
    judged, bad, _ = ColumnValidator(recipe().data, "classification").check(batch)
    assert not bad
    [predicted] = table_items(pa.RecordBatch.from_pylist([row]), pa.array(["1"]), MODEL, None)
    [served] = Records(MODEL).tensor_rows([(column, [value]) for column, value in row.items()])
    column = {feature.name: feature.model_dump() for feature in MODEL.inputs}[name]
    values = (
        judged[f"raw/{name}"][0].as_py(),
        predicted.inputs[name][0],
        served[[*row].index(name)],
        _as_read(text, column, UTC),
    )
    assert [is_missing(value) for value in values] == [missing] * 4


def test_a_number_of_a_tensor_or_of_parquet_is_compared_in_32_bits() -> None:
    served = Records(MODEL).tensor_rows([("n", [np.float32(0.1).item()]), ("c", ["x"]), ("d", ["2024-03-01"])])
    assert math.isnan(served[0][0])
    for kind in (pa.float32(), pa.float64(), pa.int64()):
        numbers = cells.without_declared(pa.array([-999, 3, None], kind), "numeric", ("-999",))
        assert numbers.to_pylist() == [None, 3, None]
    codes = pa.array(["x", "-1", None]).dictionary_encode()
    assert cells.without_declared(codes, "category", ("-1",)).to_pylist() == ["x", "", None]


@given(st.lists(st.sampled_from([text for kind in (MISSING, PRESENT) for texts in kind.values() for text in texts])))
def test_a_column_is_as_its_cells(texts: list[str]) -> None:
    for kind, declared in recipe().data.declared.values():
        blank = cells.without_declared(pa.array(texts, pa.string()), kind, declared).to_pylist()
        assert blank == ["" if is_declared(text, kind, declared, UTC) else text for text in texts]


def test_inspect_and_validate_read_a_table_as_its_recipe_does(tmp_path: Path) -> None:
    rows = [f"{'unknown' if index % 3 else index},-1,9999-12-31,{'ab'[index % 2]}" for index in range(90)]
    (tmp_path / "a.csv").write_text("\n".join(["n,c,d,y", *rows]))
    read = recipe(str(tmp_path / "a.csv"))
    assert check_first(read) == "the first 90 rows of a.csv"
    assert {column.name: column.statistics.missing for column in inspect_recipe(read).columns} == {
        "n": 60,
        "c": 90,
        "d": 90,
        "y": 0,
    }


def test_rows_are_compared_with_what_the_recipe_declares(tmp_path: Path) -> None:
    for name, kind in (("a.csv", PRESENT), ("b.csv", MISSING)):
        rows = [f"{kind['n'][index % 3]},x,2024-01-01,y" for index in range(60)]
        (tmp_path / name).write_text("\n".join(["n,c,d,y", *rows]))
    _, now = statistics_of(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), recipe=recipe())
    assert now.features["n"]["train"].missing == 60


@pytest.mark.parametrize(
    ("features", "derive", "fault"),
    [
        ({"n": "{type: numeric, missing: [true]}"}, "", "True is neither a number nor a text"),
        ({"n": "{type: numeric, missing: [na]}"}, "", "'na' is missing already. Leave it out"),
        ({"n": "{type: category, missing: ['']}"}, "", "'' is missing already. Leave it out"),
        ({"n": "{type: numeric, missing: [1.0e+39]}"}, "", "1e+39 does not fit into 32 bits"),
        ({"n": "{type: date, missing: [0]}"}, "", "0 is a number, and the column holds days"),
        ({"n": "{type: text, missing: [none]}"}, "", "missing"),
        ({"n": "{type: category, clip: [0, 1]}"}, "", "clip"),
        ({"n": "{type: category, indicator: true}"}, "", "indicator"),
        ({"n": "{type: date, clip: [0.9, 0.1]}"}, "", "the quantile 0.9 is not below 0.1"),
        (
            {"n": "{type: numeric, missing: [-1]}"},
            "m + 1",
            "data.features.n.missing: is for columns of the data, and a formula computes 'n'. Declare it for what that "
            "reads: m",
        ),
        (
            {"n": "{type: numeric, indicator: true}", "n_missing": "{type: numeric}"},
            "",
            "'n_missing' and a name of 'n' would both be the input 'n_missing' of the model",
        ),
    ],
)
def test_missing_clip_and_indicator_are_refused_where_they_mean_nothing(
    features: dict[str, str], derive: str, fault: str, tmp_path: Path
) -> None:
    columns = "".join(f"    {name}: {column}\n" for name, column in features.items())
    formulas = f"  derive: {{n: {derive}}}\n" if derive else ""
    text = f"name: a\ndata:\n  format: csv\n  path: /a.csv\n  features:\n{columns}{formulas}model: {{name: mlp}}\n"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        load(str(tmp_path / "a.yaml"))


def test_the_model_is_told_of_missing_values_where_train_lacks_some_unless_the_name_is_taken() -> None:
    features = {name: {"type": "numeric"} for name in ("a", "b", "b_missing", "c", "d")} | {"e": {"type": "category"}}
    features["c"] |= {"indicator": False}  # type: ignore[dict-item]
    features["d"] |= {"indicator": True}  # type: ignore[dict-item]
    data = Data.model_validate({"format": "csv", "path": "-", "features": features})
    assert indicators(data, ["a", "b", "c", "e"]) == ["a", "d"]
