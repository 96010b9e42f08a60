"""Batches of rows by column against the same rows one by one: equal to the last byte, and in order."""

import csv
import io
import itertools
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from judged_rows import judged

from trainyard.errors import DataError
from trainyard.quality.tables.cells import number_texts
from trainyard.readers import csv_rows
from trainyard.readers.csv_blocks import RowBlock
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.records import (
    ROW_HASH,
    WHOLE_HASH,
    BadRecord,
    Unselected,
    batch_schema,
    record_batch,
)
from trainyard.steps.preprocess.readers.tables import check_row

FEATURES = {
    "n": {"type": "numeric"},
    "b": {"type": "numeric"},
    "c": {"type": "category"},
    "a é": {"type": "category"},
    "d": {"type": "date"},
}
HEADER = ["y", "n", "spare", "a é", "c", "b", "d"]


def separated(text: str, delimiter: str) -> str:
    """The text with the delimiter and the comma exchanged."""
    return text.translate(str.maketrans({",": delimiter, delimiter: ","}))


def recipe(task="classification", **more) -> Recipe:
    data = {"format": "csv", "path": "rows.csv", "label": "y", "features": FEATURES, **more}
    return Recipe.model_validate({"name": "rows", "task": task, "data": data, "model": {"name": "mlp"}})


def table_file(path, recipe) -> TableFile:
    return TableFile(str(path), path.name, path.stat().st_size, Dialect.from_recipe(recipe))


def by_row(path, recipe) -> tuple[list[dict], list[BadRow], str, int]:
    """What a parser of rows and the judge of one row say; last, how many rows `data.where` leaves out."""
    records, bad, end, unselected = [], [], "", 0
    try:
        with pytest.MonkeyPatch.context() as patch:
            nothing = RowBlock(b"", np.array([], np.int64), 0, True)
            patch.setattr(csv_rows, "plain_block", lambda *_, **__: nothing)
            for item in csv_rows.read_csv(table_file(path, recipe), recipe.data.columns):
                if isinstance(item, BadRow):
                    bad.append(item)
                    continue
                for number, cells in zip(item.rows.tolist(), item.columns.to_pylist(), strict=True):
                    try:
                        record = check_row(cells, f"rows.csv:{number}", recipe.data, recipe.task)
                        records += [record] if record else []
                        unselected += record is None
                    except BadRecord as error:
                        bad.append(BadRow("rows.csv", number, error.reason, error.detail))
    except DataError as error:
        end = str(error)
    return record_batch(records, recipe.data).to_pylist(), sorted(bad, key=lambda item: item.row), end, unselected


def by_column(path, recipe) -> tuple[list[dict], list[BadRow], str, int]:
    rows, bad, end, unselected = [], [], "", 0
    try:
        for piece in csv_rows.csv_pieces(table_file(path, recipe)):
            for item in judged(path, recipe, piece):
                if isinstance(item, BadRow):
                    bad.append(item)
                elif isinstance(item, Unselected):
                    unselected += item.rows
                else:
                    item = item.drop_columns([ROW_HASH, WHOLE_HASH]) if recipe.data.hashes_rows else item
                    assert item.schema == batch_schema(recipe.data)
                    assert 0 < item.num_rows <= 4096
                    rows += item.to_pylist()
    except DataError as error:
        end = str(error)
    return rows, sorted(bad, key=lambda item: item.row), end, unselected


def assert_equal(path, recipe) -> tuple[list[dict], list[BadRow], str]:
    expected, actual = by_row(path, recipe), by_column(path, recipe)
    assert actual[2] == expected[2]
    if not actual[2]:
        assert [repr(row) for row in actual[0]] == [repr(row) for row in expected[0]]  # by repr, for NaN is not NaN
        assert (actual[1], actual[3]) == (expected[1], expected[3])
    return actual[:3]


DERIVED = {
    "derive": {
        "big": "n > 0 or column('a é') == 'name 7'",
        "half": "b / 2",
        "both": "join(c, spare, b > 0)",
        "product": "n * b",
        "counts": "n + 100",
    },
    "weight": "counts",
    "features": FEATURES | {"both": {"type": "category"}, "product": {"type": "numeric"}},
    "where": "c != 'green' and not missing(d)",
    "label": "big",
    "split": {"by": "group", "column": "half"},
}


def odd_number(draw: random.Random) -> str:
    return draw.choice(
        ["", "NA", " 1.5 ", "+2", "1_000", "1e39", "inf", "nan", "-nan", ".5", "5.", "٣", "\u00a07", "1e", "x"]
    )


def odd_text(draw: random.Random) -> str:
    odd = [
        'say "hi"',
        "two\nlines",
        "two\r\nlines",
        "a\rb",
        " blanks ",
        "it's",
        "back\\slash",
        "dzień",
        "\u2028",
        "🦊",
        ",",
    ]
    return draw.choice(odd)


def row(draw: random.Random, odd: float) -> list[str]:
    def cell(plain: str, other: str) -> str:
        return other if draw.random() < odd else plain

    day = f"{draw.randint(1900, 2100)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    return [
        cell(draw.choice(["yes", "no"]), draw.choice(["", " yes", "a\nb"])),
        cell(repr(draw.gauss(0, 10 ** draw.randint(-9, 20))), odd_number(draw)),
        cell(draw.choice(["", "spare"]), odd_text(draw)),
        cell(f"name {draw.randint(0, 5000)}", odd_text(draw)),
        cell(draw.choice(["red", "green", ""]), odd_text(draw)),
        cell(str(draw.randint(-99, 99)), odd_number(draw)),
        cell(day, draw.choice(["", f"{day}T12:00", f" {day}", "2023-02-30", "30.2.2023", "0000-01-01"])),
    ]


def test_mixed_rows_are_what_they_are_one_by_one(tmp_path):
    draw = random.Random(13)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADER)
    for number in range(16_000):
        stretch = number // 2000 % 4  # plain, some odd cells, many, and then what only goes row by row
        cells = row(draw, (0, 0.001, 0.05, 0.001)[stretch])
        if draw.random() < 0.0005 * stretch:
            cells = cells[: draw.randint(1, 6)] + ["more"] * draw.randint(0, 9)
        writer.writerow(cells)
        if stretch == 3 and draw.random() < 0.002:
            text.write(draw.choice(["\n", "\r\n\r\n", 'yes,1,5" pipe,a,b,2,\r\n', "no,1,,a,b,2,2024-01-01\r"]))
    path = tmp_path / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    rows, bad, end = assert_equal(path, recipe())
    assert (len(rows) > 12_800, len(bad) > 160, end) == (True, True, "")
    assert {item.reason for item in bad} == {"ragged_row", "mistyped_value", "missing_label", "unknown_label"}


def test_derived_rows_are_what_they_are_one_by_one(tmp_path):
    draw = random.Random(4)
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *(row(draw, 0.2 * (number % 2)) for number in range(800))])
    rows, bad, end = assert_equal(path, recipe(**DERIVED))
    assert end == "" and 120 < len(rows) < 400
    assert {item.reason for item in bad} == {"mistyped_value", "missing_label", "missing_split", "bad_weight"}
    assert {record["label"] for record in rows} == {"true", "false"} and all(
        record["raw/c"] != "green" for record in rows
    )


def test_most_rows_of_a_plain_table_are_parsed_in_blocks(tmp_path, monkeypatch):
    draw = random.Random(1)
    lines = [",".join(row(draw, 0)) for _ in range(10_000)]
    lines[5000] = 'yes,1,5" pipe,a,b,2,'
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([",".join(HEADER), *lines]))
    single = []
    monkeypatch.setattr(csv_rows, "_check_text", lambda row, *_: single.append(row))
    assert sum(batch.num_rows for batch in judged(path, recipe())) == 10_000
    assert 0 < len(single) < 300


def test_a_large_file_is_cut_into_pieces_up_to_its_first_odd_row(tmp_path, monkeypatch):
    draw = random.Random(5)
    lines = [",".join(row(draw, 0)) for _ in range(10_000)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([",".join(HEADER), *lines]))
    monkeypatch.setattr(csv_rows, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(csv_rows, "_MOST_BYTES", 25_000)
    pieces = csv_rows.csv_pieces(table_file(path, recipe()))
    assert len(pieces) == path.stat().st_size // 100_000
    assert (pieces[0].start, pieces[-1].end) == (0, None)
    assert all(one.end == other.start and one.row < other.row for one, other in itertools.pairwise(pieces))
    assert_equal(path, recipe())
    lines[5000] = 'yes,1,5" pipe,a,b,2,'
    path.write_text("\n".join([",".join(HEADER), *lines]))
    cut = csv_rows.csv_pieces(table_file(path, recipe()))
    assert 1 < len(cut) < len(pieces) and cut[-1].row < 5002
    assert_equal(path, recipe())


def test_the_last_rows_of_a_wide_table_come_in_one_batch(tmp_path, monkeypatch):
    header, rows = [f"c{number}" for number in range(500)], [["0.123"] * 500 for _ in range(150)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(",".join(cells) for cells in [header, *rows]))
    monkeypatch.setattr(csv_rows, "_MOST_BYTES", 100 * len(",".join(rows[0]) + "\n"))
    batches = [*csv_rows.read_csv(TableFile(str(path), "rows.csv"), header)]
    assert [len(batch.columns) for batch in batches] == [100, 50]  # not one by one, as few rows of other tables


PLAIN = ["", "1", "-0", "007", "1.50", "1e5", "yes", "red", "2024-02-29", "2024-02-30", " x ", "NA", "é", "\u00a0"]
QUOTED = ['"a"', '"a""b"', '"a,b"', '"a\nb"', '"a\r\nb"', '""', '""""', '"', 'a"b', '"a"b', ' "a"', "\0", "\udcff"]
CELLS = st.sampled_from([*PLAIN, "\ufeff", *QUOTED])
ENDS = st.sampled_from(["\n"] * 6 + ["\r\n"] * 4 + ["\r", "\n\n", "\r\n\r\n", "\r\r\n", " \n", ""])
ROWS = st.lists(st.tuples(st.lists(CELLS, min_size=6, max_size=8) | st.lists(CELLS, min_size=7, max_size=7), ENDS))


@settings(max_examples=150, deadline=None)
@given(
    ROWS,
    st.sampled_from([16, 64, 1 << 16]),
    st.sampled_from([1, 100, 1 << 16]),
    st.sampled_from(["classification", "regression"]),
    st.booleans(),
)
@example([(["yes", "1", "", '"a', 'b"', "2", ""], "\n")], 16, 1, "classification", True)
def test_whatever_a_small_file_holds_it_is_what_it_is_row_by_row(tmp_path_factory, rows, block, piece, task, mark):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    text = ",".join(HEADER) + "\n" + "".join(",".join(cells) + end for cells, end in rows)
    path.write_bytes(b"\xef\xbb\xbf" * mark + text.encode("utf-8", "surrogateescape"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_FIRST_BYTES", block), ("_ODD_BYTES", 1), ("_FEW_ROWS", 1), ("PIECE_BYTES", piece)):
            patch.setattr(csv_rows, name, value)
        patch.setattr(csv_rows, "_MOST_BYTES", 64)
        assert_equal(path, recipe(task))
        assert_equal(path, recipe(**DERIVED))
        path.write_bytes(b"\xef\xbb\xbf" * mark + separated(text, ";").encode("utf-8", "surrogateescape"))
        assert_equal(path, recipe(task, delimiter=";"))
        path.write_bytes(b"\xef\xbb\xbf" * mark + text.encode("utf-8", "surrogateescape"))
        assert_equal(path, recipe(task, quote="none"))
        path.write_bytes(b"\xef\xbb\xbf" * mark + text.replace('"', "'").encode("utf-8", "surrogateescape"))
        assert_equal(path, recipe(task, quote="'"))


@given(st.lists(st.floats(allow_subnormal=True) | st.integers(-(10**17), 10**17).map(float), min_size=1))
def test_a_column_of_numbers_is_written_as_python_writes_each(values):
    assert number_texts(np.array(values)).to_pylist() == [repr(value) for value in values]
