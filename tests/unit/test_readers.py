"""The registry of table formats: one entry a format, and one place that knows it."""

import re
from pathlib import Path
from typing import get_args

import pyarrow as pa
from pyarrow import csv, parquet

from trainyard.quality.inspect import inspect
from trainyard.readers.formats import FORMATS
from trainyard.readers.table_file import TableFile
from trainyard.spec.columns import ENDINGS, TableName, table_of
from trainyard.spec.recipe import Data

CODE = [Path(__file__).parents[2] / folder for folder in ("components", "pipelines")]


def test_every_table_format_has_a_reader_endings_and_a_value_of_data_format():
    names = set(get_args(TableName))
    assert FORMATS.keys() == ENDINGS.keys() == names
    assert names < set(Data.model_json_schema()["properties"]["format"]["enum"])
    for name, endings in ENDINGS.items():
        assert {table_of(f"a{ending}", in_folder=False) for ending in endings} == {name}


def test_only_its_reader_and_the_registries_know_a_format():
    """Parquet is the one that nothing else is said of: a pushed model has a prediction's default and first bytes."""
    spoken = {
        path for folder in CODE for path in folder.rglob("*.py") if re.search("[\"']parquet[\"']", path.read_text())
    }
    registries = {
        "contract/answer_log.py",
        "quality/source.py",
        "readers/formats.py",
        "predict/source.py",
        "spec/columns.py",
    }
    assert {"/".join(path.parts[-2:]) for path in spoken} <= registries


def test_each_format_counts_the_rows_that_it_reads(tmp_path):
    table = pa.table({"a": [1, 2, 3], "label": ["x", "y", "x"]})
    csv.write_csv(table, tmp_path / "a.csv")
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("csv", "parquet"):
        path = tmp_path / f"a.{name}"
        file = TableFile(str(path), path.name, path.stat().st_size)
        assert FORMATS[name].count(file) == inspect(str(path)).rows == 3
        assert FORMATS[name].columns(file) == ["a", "label"]
