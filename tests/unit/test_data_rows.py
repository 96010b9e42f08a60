"""Rows of CSV files: what is taken, what is quarantined, what makes a file unusable."""

import gzip
import math
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_rows import judged
from split_rows import split_rows

from trainyard.errors import DataError
from trainyard.quality.tables.hashes import row_hashes
from trainyard.readers import csv_rows
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.readers.records import BadRecord
from trainyard.steps.preprocess.readers.tables import check_row

DATA = Data.model_validate(
    {
        "format": "csv",
        "path": "rows.csv",
        "label": "y",
        "features": {"n": {"type": "numeric"}, "c": {"type": "category"}, "d": {"type": "date"}},
    }
)
RECIPE = Recipe.model_validate({"name": "rows", "data": DATA.model_dump(), "model": {"name": "mlp"}})
GOOD = {"n": "1.5", "c": "red", "d": "2024-02-29", "y": "yes"}


def items(path: Path, recipe: Recipe = RECIPE) -> list[dict | BadRow]:
    """The good rows as dictionaries and the bad ones, in the order of the rows."""
    found: list[dict | BadRow] = []
    for item in judged(path, recipe):
        found += item.to_pylist() if isinstance(item, pa.RecordBatch) else [item]
    return sorted(found, key=lambda item: int((item.key if isinstance(item, BadRow) else item["source"]).split(":")[1]))


def read(path: Path, content: bytes) -> list[dict | BadRow]:
    path.write_bytes(content)
    return items(path)


def test_a_header_of_one_cell_says_what_seems_to_separate_cells(tmp_path):
    with pytest.raises(DataError) as refused:
        read(tmp_path / "rows.csv", b"n;c;d;y\n1;red;2024-02-29;yes\n")
    assert str(refused.value) == (
        "rows.csv: row 1: the header is one cell, 'n;c;d;y'. It looks as if ';' separates the cells. Give "
        'data.delimiter: ";".'
    )
    (tmp_path / "rows.csv").write_bytes(b'n;c;d;y\n1;"red; green";2024-02-29;yes, sir\n')
    semicolons = RECIPE.model_copy(update={"data": DATA.model_copy(update={"delimiter": ";"})})
    (record,) = items(tmp_path / "rows.csv", semicolons)
    assert (record["raw/c"], record["label"]) == ("red; green", "yes, sir")


@pytest.mark.parametrize(
    ("quote", "cell", "value"),
    [('"', '"3"", red"', '3", red'), ("'", "'3\", ''red'", "3\", 'red"), ("none", '3" red', '3" red')],
)
def test_a_recipe_says_what_cells_are_quoted_in(tmp_path, quote, cell, value):
    (tmp_path / "rows.csv").write_text(f"n,c,d,y\n1,{cell},2024-02-29,yes\n")
    quoted = RECIPE.model_copy(update={"data": DATA.model_copy(update={"quote": quote})})
    (record,) = items(tmp_path / "rows.csv", quoted)
    assert record["raw/c"] == value


def test_columns_without_a_name_are_called_by_their_places_and_may_be_features(tmp_path):
    (tmp_path / "rows.csv").write_text(",n,d,y,\n7,1.5,2024-02-29,yes,\n")
    features = {"column 1": {"type": "numeric"}, "n": {"type": "numeric"}}
    data = Data.model_validate(DATA.model_dump() | {"features": features})
    (record,) = items(tmp_path / "rows.csv", RECIPE.model_copy(update={"data": data}))
    assert (record["raw/column 1"], record["raw/n"]) == (7.0, 1.5)


def test_a_quote_that_is_not_closed_names_the_key(tmp_path):
    with pytest.raises(DataError, match=r"row 2: not valid CSV .*data\.quote, which may be none"):
        read(tmp_path / "rows.csv", b'n,c,d,y\n1,"red,2024-02-29,yes\n')


def test_a_good_row_becomes_typed_features():
    record = check_row(GOOD, "rows.csv:2", DATA, "classification")
    assert record.raw == {"n": 1.5, "c": "red", "d": "2024-02-29"}
    assert record.label == "yes"


@pytest.mark.parametrize("text", ["", " ", "NA", "n/a", "NaN", "null", "None", "?"])
def test_a_missing_number_is_nan(text):
    assert math.isnan(check_row({**GOOD, "n": text}, "s", DATA, "classification").raw["n"])


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("n", "1_000", "mistyped_value"),
        ("n", "1,5", "mistyped_value"),
        ("n", "inf", "mistyped_value"),
        ("n", "1e39", "mistyped_value"),
        ("n", "one", "mistyped_value"),
        ("n", "0x10", "mistyped_value"),
        ("n", "١٢", "mistyped_value"),
        ("d", "2024-02-30", "mistyped_value"),
        ("d", "02/03/2024", "mistyped_value"),
        ("d", "20240203", "mistyped_value"),
        ("y", "", "missing_label"),
        ("y", "a\nb", "unknown_label"),
    ],
)
def test_a_bad_cell_says_why(column, text, reason):
    with pytest.raises(BadRecord) as caught:
        check_row({**GOOD, column: text}, "s", DATA, "classification")
    assert caught.value.reason == reason
    assert f"'{column}'" in caught.value.detail


def test_a_target_must_be_a_number():
    for text, reason in [("high", "mistyped_value"), ("nan", "missing_label")]:
        with pytest.raises(BadRecord) as caught:
            check_row({**GOOD, "y": text}, "s", DATA, "regression")
        assert caught.value.reason == reason


def test_the_same_number_written_otherwise_is_the_same_content():
    first = check_row(GOOD, "a", DATA, "classification")
    second = check_row({**GOOD, "n": "+1.50", "y": "no"}, "b", DATA, "classification")
    assert first.content == second.content
    assert first.content != check_row({**GOOD, "c": ""}, "c", DATA, "classification").content
    zero, negative = (check_row({**GOOD, "n": text}, "d", DATA, "classification") for text in ("0", "-0.0"))
    assert zero.content == negative.content


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_a_reason(text):
    try:
        record = check_row({**GOOD, "n": text}, "s", DATA, "classification")
    except BadRecord as error:
        assert error.reason == "mistyped_value"
    else:
        assert math.isnan(record.raw["n"]) or math.isfinite(record.raw["n"])


def test_rfc_4180_quotes_crlf_byte_order_mark_and_spare_columns_are_read(tmp_path):
    content = b'\xef\xbb\xbfy,n,extra,c,d\r\nyes,1,x,"red, ""dark""\nand more",2024-01-01\r\n\r\nno,2,x,blue,\r\n'
    first, second = read(tmp_path / "rows.csv", content)
    assert first["raw/c"] == 'red, "dark" and more'
    assert (second["label"], second["raw/d"]) == ("no", "")


def test_the_line_in_which_excel_names_the_delimiter_is_no_row(tmp_path):
    semicolons = RECIPE.model_copy(update={"data": DATA.model_copy(update={"delimiter": ";"})})
    for start in (b"sep=;\r\n", b'\xef\xbb\xbf"sep=;"\n'):
        (tmp_path / "rows.csv").write_bytes(start + b"n;c;d;y\n1;a, b;;yes\n2;b;;no\n")
        first, second = items(tmp_path / "rows.csv", semicolons)
        assert (first["source"], first["raw/c"], second["raw/n"]) == ("rows.csv:3", "a, b", 2.0)
        file = TableFile(str(tmp_path / "rows.csv"), "rows.csv", dialect=Dialect(None))
        assert csv_rows.csv_columns(file) == ["n", "c", "d", "y"] and csv_rows.count_csv(file) == 2


def test_gzip_is_read_and_a_cut_one_is_an_error(tmp_path):
    content = gzip.compress(b"n,c,d,y\n" + b"1,red,2024-01-01,yes\n" * 5000)
    assert len(read(tmp_path / "rows.csv.gz", content)) == 5000
    with pytest.raises(DataError, match=r"^cut\.csv\.gz: cannot be read"):
        read(tmp_path / "cut.csv.gz", content[:-20])


def test_ragged_and_mistyped_rows_are_quarantined_with_their_row(tmp_path):
    found = read(tmp_path / "rows.csv", b"n,c,d,y\n1,a,,yes\n1,a,yes\n1,a,,yes,more\nx,a,,yes\n1,a,,\n2,b,,no\n")
    bad = [item for item in found if isinstance(item, BadRow)]
    assert [item.key for item in bad] == [f"rows.csv:{row}" for row in range(3, 7)]
    assert [item["source"] for item in found if isinstance(item, dict)] == ["rows.csv:2", "rows.csv:7"]
    assert [item.reason for item in bad] == ["ragged_row", "ragged_row", "mistyped_value", "missing_label"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("n,c,d,y\n1,a,,yes\n".encode("utf-16"), "rows.csv: row 1: is UTF-16"),
        ("n,c,d,y\n1,a,,yes\n1,caf\xe9,,no\n".encode("latin-1"), "rows.csv: row 3: column 2 'c': is not UTF-8"),
        (b"n,c,d,y\n1,a\0,,yes\n", "rows.csv: row 2: column 2 'c': holds a NUL byte"),
        (b"n,c,d,y,c\n1,a,,yes,b\n", "row 1: the header names column 'c' twice"),
        (b"n,c,d,label\n1,a,,yes\n", "row 1: no column 'y'"),
        (b"m,c,d,y\n1,a,,yes\n", "row 1: no column 'n'"),
        (b'n,c,d,y\n1,"a,,yes\n1,b,,no\n', "row 2: not valid CSV"),
        (b"", "row 1: is empty. A header line"),
        (b"PK\x03\x04" + bytes(40), "rows.csv: is a ZIP archive. CSV is read plain or as .csv.gz. Unpack it."),
        (b"sep=;\nn;c;d;y\n", "row 1: says that ';' separates the cells, data.delimiter is ','."),
        (
            b"sep=|\nn|c|d|y\n",
            "row 1: says that '|' separates the cells, data.delimiter is ','. Allowed: ',', ';', '\\t'.",
        ),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused_with_row_and_column(tmp_path, content, sentence):
    with pytest.raises(DataError, match=r"rows\.csv") as caught:
        read(tmp_path / "rows.csv", content)
    assert sentence in str(caught.value)


def test_a_row_that_never_ends_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "_MAX_ROW", 1 << 18)
    monkeypatch.setattr(csv_rows, "_MOST_BYTES", 1 << 18)
    good = b"n,c,d,y\n1,a,,yes\n"
    for name, endless in (("line", b"a" * 1000), ("cells", b"a," * 500), ("quoted", b'"\n",' * 250)):
        path = tmp_path / f"{name}.csv.gz"
        with gzip.open(path, "wb", compresslevel=1) as stream:
            stream.write(good)
            for _ in range(12_500):
                stream.write(endless)
        tracemalloc.start()
        try:
            with pytest.raises(
                DataError, match=rf"^{name}\.csv\.gz: row 3: not valid CSV \(longer than 262,144 characters\)"
            ):
                list(judged(path, RECIPE))
            assert tracemalloc.get_traced_memory()[1] < 10 << 20, name
        finally:
            tracemalloc.stop()


def test_thirty_thousand_columns_are_a_table_and_one_too_many_cells_a_ragged_row(tmp_path):
    spare = ",".join(f"s{number}" for number in range(30_000))
    header, row = f"n,c,d,y,{spare}\n", "1,a,,yes," + "," * 29_999 + "\n"
    found = read(tmp_path / "wide.csv", (header + row + row.replace("yes", "yes,")).encode())
    assert [getattr(item, "reason", "good") for item in found] == ["good", "ragged_row"]
    with pytest.raises(DataError, match="no column 'y'"):
        read(tmp_path / "wide.csv", header.replace(",y,", ",z,").encode())


def hashes(**columns: object) -> list[int]:
    return row_hashes(pa.record_batch(columns))[:, 1].tolist()


def test_equal_rows_have_one_hash_in_every_type_and_order_of_columns():
    texts = {"n": ["1", "2.50", "", "+1e3"], "t": ["TRUE", "a; b", "e\u0301", "NA"]}
    expected = hashes(**{name: pa.array(cells) for name, cells in texts.items()})
    assert len(set(expected)) == 4
    texts_first = {"t": pa.array(["1", "a,b", " \u00e9 ", None]), "n": pa.array(["1.0", "2.5", "na", "1000"])}
    assert hashes(**texts_first, added=pa.nulls(4), **{"column 3": pa.array([1, 2, 3, 4])}) == expected
    typed = {"n": pa.array([1, 2.5, None, 1000], pa.float32()), "t": texts_first["t"].dictionary_encode()}
    assert hashes(**typed) == expected
    [listed] = hashes(n=pa.array([2.5], pa.float64()), t=pa.array([["a", "b"]]))
    assert listed == expected[1]


@pytest.mark.parametrize("number", [16777217, 3000000256.0, 1e20, 0.1, -2.5e-7, float("inf"), 2**53 + 1])
def test_a_number_has_one_hash_as_text_and_in_each_type_that_holds_it(number):
    kinds = [pa.int64()] if isinstance(number, int) else [pa.float32(), pa.float64()]
    for kind in kinds:
        column = pa.array([number], kind)
        assert hashes(n=column) == hashes(n=pa.array([str(column.cast(pa.string())[0])]))


def test_a_row_is_drawn_alike_whichever_columns_the_recipe_reads(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n,c,d,y,id\n" + "".join(f"{row},red,2024-02-29,{row % 2},{row}\n" for row in range(300)))

    def drawn(*names: str, **settings: object) -> dict[str, int]:
        features = {name: DATA.features[name] for name in names}
        data = Data.model_validate(DATA.model_dump() | {"features": features} | settings)
        [batch] = judged(path, RECIPE.model_copy(update={"data": data}))
        rows = split_rows([batch], RECIPE.model_copy(update={"data": data}), tmp_path)
        return dict(zip(rows["source"].to_pylist(), rows["split"].to_pylist(), strict=True))

    whole = drawn("n", "c", "d")
    assert 200 < sum(split == 0 for split in whole.values()) < 280  # 300 rows of 0.8: five deviations of 7
    assert drawn("n") == drawn("c") == whole
    assert drawn("n", fraction=0.5) == drawn("c", fraction=0.5) != whole
    by_group = {"split": {"by": "group", "column": "id"}}
    assert drawn("n", **by_group, fraction=0.5) == drawn("c", **by_group, fraction=0.5)
