"""A schema says what data are expected to be, and each way in which data differ is told with its rows."""

from __future__ import annotations

import datetime
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit import report_folders

from trainyard.contract.artifacts.preprocess import ComputedFeature
from trainyard.contract.statistics.drift import Statistics, TopValue, compare
from trainyard.errors import ConfigurationError, ExitCode
from trainyard.quality.conformity import Conformity, Rows, anomalies, check_rows
from trainyard.quality.inspect import inspect, inspect_recipe, statistics_of
from trainyard.quality.schema import check_source, draft
from trainyard.quality.source import find_source
from trainyard.spec import documents, plain_yaml
from trainyard.spec import recipe as recipes
from trainyard.spec.data_schema import TableSchema, load_schema
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import Bounds
from trainyard.values.zones import time_zone
from trainyard_control.cli.main import main

ROWS = [f"{20 + i % 50},{['Oslo', 'Bergen'][i % 2]},2024-03-{1 + i % 28:02},{i / 7:.3f},{i % 2}" for i in range(100)]
HEADER = "age,city,joined,score,label"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return written(tmp_path / "a.csv", ROWS)


@pytest.fixture
def schema(table: Path) -> Path:
    file = table.parent / "schema.yaml"
    file.write_text(draft(inspect(str(table), "label"), datetime.date(2026, 1, 2)), encoding="utf-8")
    return file


def written(file: Path, rows: list[str], header: str = HEADER) -> Path:
    file.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return file


def test_a_drafted_schema_fits_what_it_was_drafted_from_with_some_room(table: Path, schema: Path) -> None:
    drafted = load_schema(schema)
    assert check_source(drafted, find_source(str(table))) == []
    assert isinstance(drafted, TableSchema)
    written_as = drafted.model_dump(exclude_none=True)["columns"]
    assert written_as["age"] == {"type": "integer", "min": 15, "max": 74, "max_missing": 0.0}
    assert written_as["city"] == {"type": "category", "values": ["Bergen", "Oslo"], "max_missing": 0.0}
    assert written_as["joined"] == {"type": "date", "min": "2024-03-01", "max_missing": 0.0}
    assert written_as["label"] == {"type": "category", "values": ["0", "1"], "max_missing": 0.0}


@pytest.mark.parametrize(
    "cells",
    [
        [f"{1_700_000_000 + second}" for second in range(900)],
        ["849999500.0"] * 3,
        ["1000.0004", "1000.0001", "1000.0002"],
        ["0.0", "NA", ":"],
        ["2024-02-29", "1923-01-01"],
        ["6589-01-01"] * 3,
    ],
)
def test_a_drafted_schema_fits_numbers_that_differ_in_a_late_digit_alone(tmp_path: Path, cells: list[str]) -> None:
    """Statistics have six digits, which round the ends of a narrow range to within it."""
    table = written(tmp_path / "late.csv", [f"{cell},x" for cell in cells], "a,b")
    (tmp_path / "late.yaml").write_text(draft(inspect(str(table)), datetime.date(2026, 1, 2)), encoding="utf-8")
    assert check_source(load_schema(tmp_path / "late.yaml"), find_source(str(table))) == []


def test_every_way_not_to_fit_is_told_with_column_row_expected_and_received(schema: Path, tmp_path: Path) -> None:
    rows = list(ROWS)
    rows[2], rows[4], rows[6] = "999,Oslo,2024-03-03,1,0", "young,Paris,2024-02-30,1,0", "1,2"
    rows[8:10] = ["20.5,,2024-03-03,1,0", ",Oslo,2023-01-01,1,0"]
    problems = check_source(load_schema(schema), find_source(str(written(tmp_path / "b.csv", rows))))
    assert [anomaly.sentence for anomaly in problems] == [
        "row: expected a row that can be read, received 2 cells, the header has 5 in 1 row, such as b.csv:8",
        "age: expected at most 74, received '999' in 1 row, such as b.csv:4 '999'",
        "age: expected a whole number, received 'young' in 2 rows, such as b.csv:6 'young'; b.csv:10 '20.5'",
        "city: expected one of 'Bergen', 'Oslo', received 'Paris' in 1 row, such as b.csv:6 'Paris'",
        "joined: expected at least 2024-03-01, received '2023-01-01' in 1 row, such as b.csv:11 '2023-01-01'",
        "joined: expected a day YYYY-MM-DD, received '2024-02-30' in 1 row, such as b.csv:6 '2024-02-30'",
        "age: expected a value in all rows but 0.00%, received 1.01% missing in 1 row",
        "city: expected a value in all rows but 0.00%, received 1.01% missing in 1 row",
    ]


def test_a_column_that_is_gone_and_one_that_is_refused_are_told(schema: Path, tmp_path: Path) -> None:
    expected = load_schema(schema).model_copy(update={"other_columns": "refused"})
    file = written(tmp_path / "b.csv", ROWS, HEADER.replace("city", "town"))
    assert [(anomaly.column, anomaly.reason) for anomaly in check_source(expected, find_source(str(file)))] == [
        ("city", "absent"),
        ("town", "unknown_column"),
    ]


def test_what_batches_say_adds_up_in_any_order(schema: Path) -> None:
    expected = load_schema(schema)
    ages = [str(i) for i in range(200)]

    def part(start: int, size: int) -> Conformity:
        columns = {"age": pa.array(ages[start : start + size])}
        return check_rows(expected, Rows(size, columns, lambda index: f"a.csv:{start + index + 2}"))

    def together(parts: list[Conformity]) -> list[str]:
        conformity = Conformity()
        for batch in parts:
            conformity.merge(batch)
        return [anomaly.sentence for anomaly in anomalies(expected, conformity)]

    parts = [part(start, 20) for start in range(0, 200, 20)]
    random.Random(1).shuffle(parts)
    whole = together([part(0, 200)])
    assert together(parts) == whole
    assert "age: expected at most 74, received '75' in 125 rows, such as a.csv:77 '75'; a.csv:78 '76'" in whole[4]


def test_a_file_that_is_no_schema_of_these_data_is_refused(schema: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    for text, expected in (
        ("name: digits\n", "schema_of: no such key, but name. Allowed: table, images"),
        ("schema_of: table\ncolumns:\n  age: {type: integer, min: 9, max: 1}\n", "min 9 is greater than max 1"),
        ("schema_of: table\ncolumns:\n  age: {type: integer, mim: 9}\n", "other.yaml:3: .*Did you mean 'min'"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=expected):
            load_schema(file)
    file.write_text("schema_of: images\nclasses: [cat]\n")
    with pytest.raises(ConfigurationError, match=r"a.csv is a table, and the schema that of images"):
        check_source(load_schema(file), find_source(str(tmp_path / "a.csv")))


def test_a_recipe_carries_the_schema_that_it_names(schema: Path) -> None:
    file = schema.parent / "mine.yaml"
    file.write_text(
        "name: mine\nmodel: {name: mlp}\ndata:\n  format: csv\n  path: a.csv\n  schema: schema.yaml\n"
        "  features: {age: {type: numeric}}\n"
    )
    loaded = recipes.load(str(file))
    assert loaded.data.expected == load_schema(schema)
    text = plain_yaml.dump(loaded.model_dump(mode="json"))
    assert documents.parse(text, Recipe, name="recipe") == loaded
    schema.unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be read .*Name a YAML file"):
        recipes.load(str(file))


def test_the_verbs_answer_with_their_exit_codes(
    table: Path, schema: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["trainyard", "data", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    assert call("inspect", str(table), "--html", str(table.parent / "a.html")) == ExitCode.DONE
    assert "100 rows × 5 columns" in capsys.readouterr().out and (table.parent / "a.html").is_file()
    assert call("inspect", str(table), "-o", "json") == ExitCode.DONE
    statistics = table.parent / "before.json"
    statistics.write_text(capsys.readouterr().out)
    assert call("schema", str(table), "--check", str(schema)) == ExitCode.DONE
    moved = written(table.parent / "b.csv", [row.replace("Bergen", "Paris") for row in ROWS])
    assert call("schema", str(moved), "--check", str(schema)) == ExitCode.DATA
    assert "city: expected one of 'Bergen', 'Oslo', received 'Paris' in 50 rows" in capsys.readouterr().err
    assert call("compare", str(statistics), str(table)) == ExitCode.DONE
    capsys.readouterr()
    assert call("compare", str(statistics), str(moved), "-o", "json") == ExitCode.DATA
    answer = capsys.readouterr()
    distances = {row["feature"]: row["distance"] for row in json.loads(answer.out)}
    assert distances["city"]["l_infinity"] == 0.5 and distances["age"]["psi"] == 0
    assert "city: 'Bergen' 50.0% → 0.0%, 'Paris' 0.0% → 50.0%" in answer.err


def test_the_statistics_of_training_are_compared_with_raw_rows_by_the_types_of_the_recipe(tmp_path: Path) -> None:
    rows = [f"{row % 3},2024-03-{1 + row % 9:02}T23:30:00Z,{row % 2},free{row}" for row in range(200)]
    table = written(tmp_path / "now.csv", rows, "shop,at,paid,note")
    top = [{"value": f"{shop}", "count": 200 // 3 + (shop < 2)} for shop in range(3)]
    shops = {"count": 200, "missing": 0, "distinct": 3, "top": top}
    top = [{"value": f"2024-03-{2 + day:02}", "count": 22 + (day < 2)} for day in range(9)]
    days = {"count": 200, "missing": 0, "distinct": 9, "top": top}
    trained = Statistics.model_validate(
        {
            "examples": {"train": 200, "eval": 0, "test": 0},
            "classes": {"0": {"train": 100}, "1": {"train": 100}},
            "features": {"shop": {"train": shops}, "at": {"train": days}},
            "time_zone": "Asia/Tokyo",
        }
    )
    trained.write(tmp_path)
    movements = compare(*statistics_of(f"{tmp_path / Statistics.file}", f"{table}", "paid"), Bounds())
    assert [(movement.feature, movement.sentences) for movement in movements] == [
        ("at", []),
        ("shop", []),
        ("label", []),
    ]
    assert [movement.distance.l_infinity for movement in movements] == [0, 0, 0]
    served = written(tmp_path / "served.csv", [row.rpartition(",")[0].rpartition(",")[0] for row in rows], "shop,at")
    features = compare(*statistics_of(f"{tmp_path / Statistics.file}", f"{served}"), Bounds())
    assert [(movement.feature, movement.sentences) for movement in features] == [("at", []), ("shop", [])]
    written(table, [f"7{row[1:]}" for row in rows], "shop,at,paid,note")
    moved = compare(*statistics_of(f"{tmp_path / Statistics.file}", f"{table}", "paid"), Bounds())
    assert moved[1].unknown == 1 and "'0' 33.5% → 0.0%" in moved[1].sentences[0]
    later = written(tmp_path / "later.csv", [row.replace("-03-", "-04-") for row in rows], "shop,at,paid,note")
    for before in (f"{tmp_path / Statistics.file}", f"{written(tmp_path / 'b.csv', rows, 'shop,at,paid,note')}"):
        at = next(each for each in compare(*statistics_of(before, f"{later}"), Bounds()) if each.feature == "at")
        assert (at.unknown, at.shift) == (1, None) and re.fullmatch(
            r"at: '2024-03-0.' 11\S+% → .* and 15 more", at.sentences[0]
        )
    as_text = trained.model_copy(update={"features": {"at": trained.features["shop"]}})
    as_text.write(tmp_path)
    _, now = statistics_of(f"{tmp_path / Statistics.file}", f"{later}", "paid")
    assert now.features["at"]["train"].top[0] == TopValue(value="2024-04-01 23:30:00+00:00", count=23)


def test_a_number_that_training_reads_as_a_category_has_na_among_its_values(tmp_path: Path) -> None:
    cells = ["NA" if row % 4 == 0 else f"{row % 4}" for row in range(100)]
    table = written(tmp_path / "now.csv", [f"{cell},{cell}" for cell in cells], "cyl,y")
    top = [{"value": value, "count": 25} for value in ("1", "2", "3", "NA")]
    classes = {entry["value"]: {"train": 25} for entry in top}
    trained = {"examples": {"train": 100, "eval": 0, "test": 0}, "classes": classes}
    trained["features"] = {"cyl": {"train": {"count": 100, "missing": 0, "distinct": 4, "top": top}}}
    Statistics.model_validate(trained).write(tmp_path)
    _, now = statistics_of(f"{tmp_path / Statistics.file}", f"{table}", "y")
    assert now.features["cyl"]["train"].model_dump(exclude_none=True) == trained["features"]["cyl"]["train"]
    assert now.classes == classes
    data = {"format": "csv", "path": f"{table}", "label": "y", "features": {"cyl": {"type": "category"}}}
    recipe = Recipe.model_validate({"name": "cars", "data": data, "model": {"name": "mlp"}})
    assert inspect_recipe(recipe).classes == {entry["value"]: 25 for entry in top}
    (tmp_path / "cars.schema.yaml").write_text(draft(inspect(f"{table}", "y"), datetime.date(2026, 1, 1)))
    assert check_source(load_schema(tmp_path / "cars.schema.yaml"), find_source(f"{table}")) == []


def test_classes_of_one_cell_are_compared_each_and_computed_features_only_with_such(tmp_path: Path) -> None:
    cells = ["red;blue", "blue", "red", "green; red"] * 25
    before = written(tmp_path / "before.csv", [f"{row},{cell}" for row, cell in enumerate(cells)], "n,colors")
    now = written(tmp_path / "now.csv", [f"{row},{cell}" for row, cell in enumerate(cells)][::-1] * 2, "n,colors")
    first, second = statistics_of(f"{before}", f"{now}", "colors")
    assert {name: counts["train"] for name, counts in first.classes.items()} == {"red": 75, "blue": 50, "green": 25}
    assert {name: counts["train"] for name, counts in second.classes.items()} == {"red": 150, "blue": 100, "green": 50}
    number = {"count": 100, "missing": 0, "mean": 49.5, "std": 28.9, "min": 0, "max": 99}
    trained = first.model_copy(update={"features": {}}).model_dump(mode="json") | {
        "features": {"n": {"train": number}, "half": {"train": number}}
    }
    Statistics.model_validate(trained).write(tmp_path)
    derive = {"half": "n / 2"}
    features = {"n": {"type": "numeric"}, "half": {"type": "numeric"}}
    content = {"format": "csv", "path": "t.csv", "label": "colors", "label_separator": ";", "features": features}
    document = {"name": "t", "task": "multi_label", "data": {**content, "derive": derive}, "model": {"name": "mlp"}}
    made = Recipe.model_validate(document)
    given = (f"{tmp_path / Statistics.file}", f"{before}", "colors")
    assert [each.sentences for each in compare(*statistics_of(*given), Bounds())] == [["half: is gone"], [], []]
    assert [each.feature for each in compare(*statistics_of(*given, made), Bounds())] == ["n", "label"]
    assert [each.feature for each in compare(*statistics_of(*given[:2], recipe=made), Bounds())] == ["n", "label"]
    computed = report_folders.examples("seven").model_copy(
        update={"computed_features": [ComputedFeature(name="half", formula="n / 2")]}
    )
    (tmp_path / "examples.json").write_text(computed.model_dump_json())
    assert [each.feature for each in compare(*statistics_of(*given), Bounds())] == ["n", "label"]


def test_days_of_a_schema_are_those_in_the_recipes_zone(tmp_path: Path) -> None:
    source = find_source(f"{written(tmp_path / 'a.csv', ['2024-03-01T23:30:00Z,1'], 'at,y')}")
    schema = TableSchema.model_validate(
        {"schema_of": "table", "columns": {"at": {"type": "date", "max": "2024-03-01"}}}
    )
    assert check_source(schema, source) == []
    assert [fault.reason for fault in check_source(schema, source, time_zone("Asia/Tokyo"))] == ["max"]


@pytest.mark.parametrize("label", ["paid", "age"])
def test_rows_without_the_label_that_a_server_was_asked_about_are_compared_by_their_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], label: str
) -> None:
    rows = [f"{20 + row % 50},{'xyz'[row % 3]},{'yn'[row % 2]}" for row in range(200)]
    (tmp_path / "before.csv").write_text("\n".join(["age,city,paid", *rows]) + "\n")
    kept = [("age", 0), ("city", 1), ("paid", 2)]
    kept = [(name, place) for name, place in kept if name != label]
    lines = [",".join(row.split(",")[place] for _, place in kept) for row in rows]
    (tmp_path / "served.csv").write_text("\n".join([",".join(name for name, _ in kept), *lines]) + "\n")
    command = ["trainyard", "data", "compare", str(tmp_path / "before.csv"), str(tmp_path / "served.csv")]
    monkeypatch.setattr("sys.argv", [*command, "--label", label, "-o", "json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    assert [row["feature"] for row in json.loads(capsys.readouterr().out)] == [name for name, _ in kept]
