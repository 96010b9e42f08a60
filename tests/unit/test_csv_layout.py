"""CSV files in other encodings, with lines that are no rows, compressed by content, or without columns of others."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.inspect import inspect
from trainyard.quality.recipe_check import check_first
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.quality.source import find_source
from trainyard.quality.tables.tables import read_table
from trainyard.readers import formats
from trainyard.readers.csv_layout import likely_dialect
from trainyard.readers.rows import BadRow, RowBatch
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.readers.tf_examples import masked
from trainyard.spec import documents
from trainyard.spec.columns import input_name
from trainyard.spec.recipe import Recipe, load
from trainyard.steps.predict.columns import read_rows
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.source import find_source as find_input
from trainyard.steps.preprocess.readers.tables import judged_rows
from trainyard.storage.listing import is_gzip, open_file

PLAIN = "city,height,kept\n" + "".join(f"Köln {row},{row}.5,{'yes' if row % 2 else 'no'}\n" for row in range(60))


def rows(path: Path, dialect: Dialect, columns: list[str], may_lack: tuple[str, ...] = ()) -> list[dict[str, object]]:
    file = TableFile(str(path), path.name, path.stat().st_size, dialect, may_lack=may_lack)
    batches = [item for item in formats.read("csv", file, columns) if isinstance(item, RowBatch)]
    return [
        {**row, "row": int(number)}
        for each in batches
        for row, number in zip(each.columns.to_pylist(), each.rows, strict=True)
    ]


def recipe(folder: Path, text: str) -> Recipe:
    (folder / "drafted.yaml").write_text(text)
    return load(str(folder / "drafted.yaml"))


def drafted(path: Path, label: str = "kept") -> tuple[Recipe, list[str]]:
    text, guesses = draft_recipe("drafted", path.name, inspect(str(path), label))
    return recipe(path.parent, text), guesses


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16"])
def test_an_encoding_is_drafted_and_read_alike_by_every_reader(encoding, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(PLAIN.encode(encoding))
    made, guesses = drafted(path)
    assert made.data.encoding == ("cp1252" if encoding == "latin-1" else encoding)
    assert any(guess.startswith(f"encoding {made.data.encoding}: the first file is not UTF-8") for guess in guesses)
    dialect = Dialect.from_recipe(made)
    plain = tmp_path / "plain.csv"
    plain.write_text(PLAIN, encoding="utf-8")
    expected = rows(plain, Dialect(), ["city", "height"])
    assert rows(path, dialect, ["city", "height"]) == expected and expected[-1]["city"] == "Köln 59"
    assert check_first(made).startswith("the first 60 rows")
    train = [item for item in judged_rows(TableFile(str(path), "t.csv", dialect=dialect), made)]
    assert sum(len(item) for item in train) == 60
    text = RawInput.model_validate({"name": "city", "dtype": "string", "column": {"type": "category"}})
    model = PushedModel(folder="", inputs=(text,), dialect=Dialect(None, encoding=encoding))
    (batch,) = read_rows(find_input(str(path), images=False), model, None)
    assert batch.inputs["city"].tolist()[-1] == "Köln 59"


def test_bytes_of_another_encoding_are_refused_with_the_key_that_helps(tmp_path):
    for name, content in {"l": PLAIN.encode("latin-1"), "u": PLAIN.encode(), "w": PLAIN.encode("utf-16")}.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
    for name, encoding, sentence in [
        ("l", "utf-8", r"l\.csv: row 2: column 1 'city': is not UTF-8.*Set data\.encoding, such as cp1252"),
        ("w", "utf-8", r"w\.csv: row 1: is UTF-16\. UTF-8 is expected\..*or set data\.encoding: utf-16"),
        ("u", "cp1252", r"u\.csv: is UTF-8, and data\.encoding is cp1252\. Set data\.encoding to utf-8"),
        ("u", "latin-1", r"u\.csv: is UTF-8, and data\.encoding is latin-1"),
        ("w", "cp1252", r"w\.csv: is UTF-16, and data\.encoding is cp1252\. Set data\.encoding to utf-16"),
        ("l", "utf-16", r"l\.csv: begins with no byte-order mark of UTF-16, and data\.encoding is utf-16"),
    ]:
        with pytest.raises(DataError, match=sentence):
            rows(tmp_path / f"{name}.csv", Dialect(encoding=encoding), ["city"])
    (tmp_path / "bad.csv").write_bytes(b"city\nK\x81ln\n")
    with pytest.raises(DataError, match=r"bad\.csv: has the bytes b'\\x81', which are no cp1252"):
        rows(tmp_path / "bad.csv", Dialect(encoding="cp1252"), ["city"])


def test_letters_of_another_script_are_not_taken_for_western_ones(tmp_path):
    (tmp_path / "t.csv").write_bytes("город,kept\nМосква,1\nТула,2\n".encode("cp1251"))
    with pytest.raises(DataError, match=r"is not UTF-8.*Set data\.encoding"):
        inspect(str(tmp_path / "t.csv"))


def test_a_title_comments_and_units_are_drafted_as_no_rows_and_row_numbers_stay(tmp_path):
    head = "Sales of May\n\nexported 2024-06-01; by Anna\n"
    units = "city,height,kept\n,cm,\n"
    path = tmp_path / "t.csv"
    path.write_text(head + units + PLAIN.partition("\n")[2])
    made, guesses = drafted(path)
    assert made.data.skip_rows == [1, 3, 5]
    assert "skip_rows: a title, notes or units, and no rows, are in line 1, 3, 5 of the first file" in guesses
    assert made.data.features["height"].type == "numeric"
    read = rows(path, Dialect.from_recipe(made), ["height"])
    assert (read[0], read[-1]) == ({"height": "0.5", "row": 6}, {"height": "59.5", "row": 65})
    path.write_text("# made by a logger\n# unit: cm\n" + PLAIN + "# end\n")
    made, _ = drafted(path)
    assert (made.data.comment, made.data.skip_rows) == ("#", 0)
    assert len(rows(path, Dialect.from_recipe(made), ["height"])) == 60


GERMAN = "Fläche;Größe;Zimmer;Datum;Brutto;Preis\r\n" + "".join(
    f"{row},5;{'1,5' if row % 2 else 'groß'};{row % 7};31.12.2025;{row}.000,00;{row * 37 % 101},25\r\n"
    for row in range(1, 200)
)


@pytest.mark.parametrize("start", ["", "sep=;\r\n"])
def test_decimal_commas_are_drafted_and_read_alike_by_every_reader(start: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((start + GERMAN).encode("latin-1"))
    made, guesses = drafted(path, "Preis")
    assert (made.data.decimal, made.data.delimiter, made.task) == (",", ";", "regression")
    assert {name: each.type for name, each in made.data.features.items()} == {
        "Fläche": "numeric",
        "Größe": "category",
        "Zimmer": "numeric",
    }
    assert any("left out: Brutto (numbers with a comma" in guess for guess in guesses)
    assert made.comma_numbers == ("Fläche", "Zimmer", "Preis")
    without = made.model_copy(update={"data": made.data.model_copy(update={"decimal": "."})})
    with pytest.raises(DataError, match=r"Fläche: is numeric, but 199 of 199.*correct the data: set data.decimal: ','"):
        check_first(without)
    read = rows(path, Dialect.from_recipe(made), ["Fläche", "Größe", "Brutto", "Preis"])
    assert [*read[0].values()][:4] == ["1.5", "1,5", "1.000,00", "37.25"]
    assert check_first(made).startswith("the first 199 rows")
    [train] = judged_rows(TableFile(str(path), "t.csv", dialect=Dialect.from_recipe(made)), made)
    assert train["raw/Fläche"].to_pylist() == [row + 0.5 for row in range(1, 200)]
    assert train["label"].to_pylist()[0] == "37.25" and train["raw/Größe"].to_pylist()[0] == "1,5"
    area = RawInput.model_validate({"name": "Fläche", "dtype": "float32", "column": {"type": "numeric"}})
    model = PushedModel(folder="", inputs=(area,), dialect=replace(Dialect.from_recipe(made), delimiter=None))
    (batch,) = read_rows(find_input(str(path), images=False), model, None)
    assert batch.inputs[input_name("Fläche")].tolist() == [row + 0.5 for row in range(1, 200)]


def test_a_number_with_a_point_among_decimal_commas_is_refused_and_a_category_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    cells = ["1.234", "1.234,5", "1,234", "1,234,567", " -0,5e1 ", "7", "", "2.", "1 234,5", ",5", "1,"]
    expected = [
        "1.234 (a point, not a comma)",
        "1.234,5",
        "1.234",
        "1,234,567",
        "-0.5e1",
        "7",
        "",
        "2. (a point, not a comma)",
    ]
    expected += ["1 234,5", ".5", "1,"]
    for plain in (0, 300):  # read row by row, and by Arrow
        path.write_text("a;b\n" + "".join(f"{cell};{cell}\n" for cell in ["0,25"] * plain + cells))
        read = rows(path, Dialect(";", comma_numbers=("a",)), ["a", "b"])[plain:]
        assert [(row["a"], row["b"]) for row in read] == list(zip(expected, cells, strict=True))
    data = {
        "format": "csv",
        "path": "-",
        "label": "b",
        "decimal": ",",
        "delimiter": ";",
        "features": {"a": {"type": "numeric"}},
    }
    made = Recipe.model_validate({"name": "t", "data": data, "model": {"name": "mlp"}})
    assert made.comma_numbers == ("a",), "not the label of classes"
    bad = [
        item
        for item in judged_rows(TableFile(str(path), "t.csv", dialect=Dialect.from_recipe(made)), made)
        if isinstance(item, BadRow)
    ]
    assert [item.detail for item in bad if item.row == 302] == [
        "'a': a number is expected, '1.234 (a point, not a comma)' was found"
    ]
    numbers = {item.row - 302 for item in bad if item.reason == "mistyped_value"}
    assert numbers == {0, 1, 3, 7, 8, 10}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("a;b\n1,234;x\n2,345;y\n", ()),  # thousands?
        ("a;b\n0,234;1\n2,345;2\n", ("a", "b")),
        ("a;b\n1,5;1.5\n2,5;2.5\n", ()),
        ("a;b\n1,5;1.500,0\n2,5;2,5\n", ("a",)),
        ('a,b\n"1,5",1\n"2,5",2\n', ()),
        ("a\tb\n1,5\tNA\n2,5\t\n", ("a", "b")),
    ],
)
def test_decimal_commas_are_recognized_only_if_they_are_sure(
    text: str, numbers: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    file = TableFile(str(tmp_path / "t.csv"), "t.csv", dialect=Dialect(None))
    assert likely_dialect(file).comma_numbers == numbers


def test_two_classes_with_a_comma_keep_their_names(tmp_path: Path) -> None:
    lines = "".join(f"{row},5;{'1,5' if row % 3 else '2,5'}\n" for row in range(300))
    (tmp_path / "t.csv").write_text(f"a;b\n{lines}")
    made, _ = drafted(tmp_path / "t.csv", "b")
    assert (made.task, made.comma_numbers) == ("classification", ("a",))
    assert inspect(str(tmp_path / "t.csv"), "b").classes == {"1,5": 200, "2,5": 100}


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "#id,kept\n1,a\n2,b\n3,a\n4,b\n",
        "a,kept\nx,1\ny,2\nz,1\nw,2\nv,1\n",
        "a,b\ntwelve,x\n1,y\n2,x\n3,y\n4,x\n",
        "a,b\nNA,x\n1,y\n2,x\n3,y\n4,x\n",
        "note\nfirst\nsecond\nthird\nfourth\n",
        "sep=;\na;b\n1;2\n3;4\n5;6\n7;8\n",
    ],
)
def test_a_plain_table_is_taken_as_it_is(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    assert likely_dialect(TableFile(str(tmp_path / "t.csv"), "t.csv", dialect=Dialect(None))) == Dialect(None)


def test_a_line_inside_a_quoted_cell_is_no_comment(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('# a\na,b\n1,"x\n# y"\n# z\n2,"#w"\n')
    assert [row["b"] for row in rows(path, Dialect(comment="#"), ["a", "b"])] == ["x\n# y", "#w"]


def test_chunks_cut_nowhere_that_matters(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_bytes(("# é\r\n" + PLAIN.replace("\n", "\r\n")).encode("utf-16"))
    expected = rows(path, Dialect(encoding="utf-16", comment="#"), ["city", "height"])
    for size in (2, 3, 7, 64):
        monkeypatch.setattr("trainyard.readers.csv_text._CHUNK", size)
        assert rows(path, Dialect(encoding="utf-16", comment="#"), ["city", "height"]) == expected
    assert len(expected) == 60


def test_compressed_files_are_known_by_their_first_bytes(tmp_path):
    (tmp_path / "t.csv").write_bytes(gzip.compress(PLAIN.encode()))
    (tmp_path / "twice.csv.gz").write_bytes(gzip.compress(gzip.compress(PLAIN.encode())))
    for name in ("t.csv", "twice.csv.gz"):
        assert is_gzip(str(tmp_path / name))
        with open_file(str(tmp_path / name)) as stream:
            assert stream.read().decode() == PLAIN
        assert inspect(str(tmp_path / name), "kept").rows == 60
    (tmp_path / "t.parquet").write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(DataError, match=r"t\.parquet: is compressed with gzip as a whole, and Parquet is read where"):
        inspect(str(tmp_path / "t.parquet"))


def test_no_record_of_tfrecord_begins_as_gzip(tmp_path):
    for fourth in range(0x20):
        length = bytes([0x1F, 0x8B, 0x08, fourth, 0, 0, 0, 0])
        header = length + masked(google_crc32c.value(length)).to_bytes(4, "little")
        (tmp_path / "a.tfrecord").write_bytes(header)
        assert not is_gzip(str(tmp_path / "a.tfrecord"))


def test_files_that_lack_a_column_are_drafted_and_read_with_missing_values(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    lines = PLAIN.splitlines()
    (folder / "a.csv").write_text("\n".join([lines[0], *lines[1:31]]) + "\n")
    (folder / "b.csv").write_text(
        "\n".join([f"{lines[0]},size", *(f"{line},{len(line)}.25" for line in lines[31:])]) + "\n"
    )
    made, guesses = drafted(folder)
    assert made.data.absent_columns == "missing" and "size" in made.data.features
    assert "absent_columns: columns that some of the 2 files lack are missing there: size in 1" in guesses
    assert made.data.may_lack == [name for name in made.data.columns if name != "kept"]
    assert check_first(made).startswith("the first")
    files = [TableFile(str(folder / name), name, may_lack=made.data.may_lack) for name in ("a.csv", "b.csv")]
    train = [item for file in files for item in judged_rows(file, made)]
    sizes = [value for batch in train for value in batch["raw/size"].to_pylist()]
    assert len(sizes) == 60 and all(value != value for value in sizes[:30]) and sizes[30] == len(lines[31]) + 0.25
    refused = made.model_copy(update={"data": made.data.model_copy(update={"absent_columns": "refused"})})
    with pytest.raises(DataError, match=r"a\.csv: row 1: no column 'size'\..*data\.absent_columns: missing"):
        list(judged_rows(TableFile(str(folder / "a.csv"), "a.csv"), refused))
    with pytest.raises(DataError, match=r"b\.csv: row 1: no column 'kept'"):
        (folder / "b.csv").write_text("city,height,size\nx,1,2\n")
        list(judged_rows(files[1], made))
    number = RawInput.model_validate({"name": "size", "dtype": "float32", "column": {"type": "numeric"}})
    city = RawInput.model_validate({"name": "city", "dtype": "string", "column": {"type": "category"}})
    model = PushedModel(folder="", inputs=(number, city), may_lack=True)
    (batch,) = read_rows(find_input(str(folder / "a.csv"), images=False), model, None)
    assert batch.inputs["size"].tolist() == pytest.approx([float("nan")] * 30, nan_ok=True)
    with pytest.raises(DataError, match="no column 'size'"):
        list(
            read_rows(
                find_input(str(folder / "a.csv"), images=False), model.model_copy(update={"may_lack": False}), None
            )
        )


def test_files_that_share_few_columns_are_still_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("c,d\n1,2\n")
    with pytest.raises(DataError, match=r"b\.csv: row 1: the header lacks a, b and has c, d besides"):
        inspect(str(tmp_path))
    with pytest.raises(DataError, match=r"the header lacks a, b"):
        list(read_table(find_source(str(tmp_path))))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("format: parquet, path: x, encoding: cp1252", "data.encoding: is for csv, not for parquet: Parquet and TFRec"),
        ("format: parquet, path: x, skip_rows: 2", "data.skip_rows: is for csv, not for parquet"),
        ("format: image_folder, path: x, comment: '#'", "data.comment: is for csv, not for image_folder"),
        (
            "format: tfrecord, path: x, absent_columns: missing",
            "data.absent_columns: is for csv and parquet, not for tf",
        ),
        ("format: csv, path: x, comment: ',a'", "data.comment: ',a' begins with data.delimiter or data.quote"),
        ("format: csv, path: x, encoding: latin1", "data.encoding"),
        ("format: csv, path: x, skip_rows: -1", "data.skip_rows"),
        ("format: csv, path: x, skip_rows: [0]", "data.skip_rows"),
    ],
)
def test_settings_of_text_are_refused_where_they_mean_nothing(data, sentence):
    text = f"name: t\ndata: {{{data}, features: {{a: {{type: numeric}}}}}}\nmodel: {{name: mlp}}"
    text = text.replace(", features: {a: {type: numeric}}", "").replace("mlp", "cnn_small") if "image" in data else text
    with pytest.raises(ConfigurationError, match=sentence):
        documents.parse(text, Recipe, name="x", overrides=[])
