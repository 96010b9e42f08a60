"""Rows of Parquet files: the same as those of a CSV file, and what makes a file unusable."""

import datetime
import re
from pathlib import Path

import pyarrow as pa
import pytest
from judged_rows import judged
from pyarrow import csv, parquet

from trainyard.errors import DataError
from trainyard.quality.inspect import inspect, inspect_recipe
from trainyard.readers import parquet_rows
from trainyard.readers.parquet_rows import parquet_columns, parquet_pieces, read_parquet
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import TableFile
from trainyard.spec.recipe import Recipe

KINDS = {"i": "numeric", "f": "numeric", "s": "category", "b": "category", "t": "date"}
ROWS = 1000


def recipe(path, format="parquet", **features) -> Recipe:
    columns = {name: {"type": kind} for name, kind in (KINDS | features).items()}
    data = {"format": format, "path": str(path), "label": "y", "features": columns}
    return Recipe.model_validate({"name": "rows", "data": data, "model": {"name": "mlp"}})


def table() -> pa.Table:
    missing = [number % 7 == 0 for number in range(ROWS)]
    columns = {
        "i": pa.array([None if gap else number * 10**9 for number, gap in enumerate(missing)], pa.int64()),
        "f": pa.array([number / 3 for number in range(ROWS)], pa.float64()),
        "s": pa.array([None if gap else f"né {number % 5}" for number, gap in enumerate(missing)]).dictionary_encode(),
        "b": pa.array([number % 3 == 0 for number in range(ROWS)]),
        "t": pa.array([datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=number) for number in range(ROWS)]),
        "y": pa.array([f"{number % 2}" if number != 500 else None for number in range(ROWS)]),
    }
    return pa.table(columns)


def items(batches) -> tuple[list[dict], list[BadRow]]:
    rows, bad = [], []
    for item in batches:
        if isinstance(item, BadRow):
            bad.append(item)
        else:
            rows += item.to_pylist()
    return rows, bad


def test_the_rows_are_those_of_the_same_table_in_csv(tmp_path):
    parquet.write_table(table(), tmp_path / "a.parquet", row_group_size=300)
    text = table().set_column(2, "s", table()["s"].cast(pa.string()))
    csv.write_csv(text, tmp_path / "a.csv")
    rows, bad = items(judged(tmp_path / "a.parquet", recipe(tmp_path)))
    expected, expected_bad = items(judged(tmp_path / "a.csv", recipe(tmp_path, "csv")))
    for row in expected:
        row["source"] = f"a.parquet:{int(row['source'].split(':')[1]) - 1}"  # row 1 is no header
    assert [repr(row) for row in rows] == [repr(row) for row in expected]
    assert [(item.key, item.reason) for item in bad] == [("a.parquet:501", "missing_label")]
    assert [item.detail for item in bad] == [item.detail for item in expected_bad]


def test_a_column_that_a_file_names_twice_is_refused(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), path)
    for read in (parquet_columns, lambda file: list(read_parquet(file, ["x"]))):
        with pytest.raises(DataError, match=r"a: names column 'x' twice\. Give each column a different name;"):
            read(TableFile(path, "a"))


def test_pieces_of_row_groups_are_the_whole(tmp_path, monkeypatch):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(table(), path, row_group_size=100)
    whole = items(judged(path, recipe(path)))
    file = TableFile(path, "a", Path(path).stat().st_size)
    assert len(parquet_pieces(file)) == 1
    monkeypatch.setattr(parquet_rows, "PIECE_BYTES", 8000)
    pieces = parquet_pieces(file)
    assert 2 < len(pieces) < 10 and pieces[-1].end is None
    parts = [items(judged(path, recipe(path), piece)) for piece in pieces]
    assert repr([row for rows, _ in parts for row in rows]) == repr(whole[0])
    assert [item for _, bad in parts for item in bad] == whole[1]


def test_folders_that_name_a_value_are_columns(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(table(), path)
    name = "day=2024-03-01/shop=S%20%26%20Co/none=__HIVE_DEFAULT_PARTITION__/a.parquet"
    batch = next(read_parquet(TableFile(path, name), ["i", "day", "shop", "none"])).texts()
    assert batch.columns.to_pylist()[1] == {"i": "1000000000", "day": "2024-03-01", "shop": "S & Co", "none": ""}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("ii", "a: no column 'ii'. Did you mean 'i'? The file has: i, f, s, b, t, y."),
        ("l", "a: column 'l' is list<element: int64>. Numbers, texts, days"),
    ],
)
def test_a_column_that_cannot_be_read_is_named(tmp_path, column, expected):
    content = table()
    if column == "l":
        content = content.append_column("l", pa.array([[1]] * ROWS))
    parquet.write_table(content, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=re.escape(expected)):
        list(read_parquet(TableFile(str(tmp_path / "a.parquet"), "a"), [column], set()))


def test_a_list_of_a_row_is_read_as_one_text(tmp_path):
    path = str(tmp_path / "a.parquet")
    tags = pa.array([["rock", "pop"], [], None, ["r & b", None, ""], ["rock"]])
    years = pa.array([[1999, 2001], [None], [], None, [7]], pa.large_list(pa.int32()))
    parquet.write_table(pa.table({"tags": tags, "years": years}), path, row_group_size=2)
    file = TableFile(path, "a")
    batches = [rows.texts({"tags": "|", "years": ";"}) for rows in read_parquet(file, ["tags", "years"])]
    assert [row["tags"] for rows in batches for row in rows.columns.to_pylist()] == [
        "rock|pop",
        "",
        "",
        "r & b",
        "rock",
    ]
    assert [row["years"] for rows in batches for row in rows.columns.to_pylist()] == ["1999;2001", "", "", "", "7"]
    assert next(read_parquet(file, ["tags"])).texts().columns.to_pylist()[0] == {"tags": "rock;pop"}
    assert parquet_columns(file) == ["tags", "years"]
    with pytest.raises(DataError, match=r"^a: the value 'r & b' of a list holds the separator '&'\."):
        [rows.texts({"tags": "&"}) for rows in read_parquet(file, ["tags"])]


def test_what_is_no_parquet_file_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing of the kind")
    with pytest.raises(DataError, match=r"^a: cannot be read as Parquet"):
        list(read_parquet(TableFile(str(tmp_path / "a.parquet"), "a"), ["i"]))


def test_a_text_that_is_not_utf_8_is_named_with_its_row_group_and_column(tmp_path):
    schema = pa.schema([("s", pa.string()), ("y", pa.string())])
    with parquet.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for last in (b"caf\xc3\xa9", b"caf\xe9"):
            unseen = pa.array([b"tea", last], pa.binary()).buffers()
            texts = pa.StringArray.from_buffers(2, unseen[1], unseen[2])
            writer.write_table(pa.table([texts, pa.array(["0", "1"])], schema=schema))
    with pytest.raises(DataError, match=r"^a.parquet: row group 1: column 's': is not UTF-8 or broken \("):
        list(read_parquet(TableFile(str(tmp_path / "a.parquet"), "a.parquet"), ["s", "y"]))


def test_a_row_of_a_time_that_no_text_writes_is_bad_in_every_reader_of_its_column(tmp_path):
    path, content = tmp_path / "a.parquet", table().drop_columns(["s", "t"])
    for name, row, kind in (
        ("s", 1, pa.timestamp("ms")),
        ("t", 5, pa.timestamp("us", "UTC")),
        ("beside", 7, pa.date32()),
    ):
        stored = [2**31 - 1 if name == "beside" else 2**62 if number == row else number for number in range(ROWS)]
        content = content.append_column(name, pa.array(stored, f"int{kind.bit_width}").view(kind))
    parquet.write_table(content, path)
    rows, bad = items(judged(path, recipe(path)))
    expected = "a time of the years 1 to 9999 is expected, 4611686018427387904"
    assert [(item.key, item.detail) for item in bad if item.reason == "mistyped_value"] == [
        ("a.parquet:2", f"'s': {expected} (timestamp[ms]) was found"),
        ("a.parquet:6", f"'t': {expected} (timestamp[us, tz=UTC]) was found"),
    ]
    assert len(rows) == ROWS - 3
    no_row = r"no row can be read, such as a.parquet:1 \('beside': a time of the years .* or remove the column"
    with pytest.raises(DataError, match=no_row):
        inspect(str(path), "y")
    not_utf8 = pa.array([b"\xff"] * ROWS, pa.binary()).view(pa.string())
    parquet.write_table(content.append_column("text beside", not_utf8), path)
    looked_at = inspect_recipe(recipe(path))
    assert (looked_at.rows, looked_at.ragged) == (ROWS - 2, 2)  # one of them has no label
    assert [column.statistics.count for column in looked_at.columns if "beside" in column.name] == [0, 0]
    parquet.write_table(content.drop_columns("beside"), path)
    assert inspect(str(path), "y").ragged == 2


def test_times_of_spark_beyond_the_years_of_nanoseconds_are_those_of_any_other_writer(tmp_path):
    times = [datetime.datetime(9999, 12, 31), datetime.datetime(1600, 1, 1, 5, 6, 7, 8), None]
    for is_old in (True, False):
        path = tmp_path / f"{is_old}.parquet"
        parquet.write_table(pa.table({"t": times}), path, use_deprecated_int96_timestamps=is_old)
        [batch] = read_parquet(TableFile(str(path), path.name), ["t"])
        assert batch.columns["t"].to_pylist() == times


def test_a_damaged_row_group_is_named_with_its_column(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(table(), path, row_group_size=300, compression="zstd", use_dictionary=False)
    column = parquet.read_metadata(path).row_group(2).column(1)
    content = bytearray(path.read_bytes())
    start = column.data_page_offset + 40
    content[start : start + 400] = b"\xff" * 400
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"^a: row group 2: column 'f': cannot be read as Parquet"):
        list(read_parquet(TableFile(str(path), "a"), ["i", "f"]))
