"""A source is inspected before training, and each fault is named in a sentence."""

from __future__ import annotations

import base64
import datetime
import gzip
import io
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from trainyard.errors import DataError, TrainyardError
from trainyard.quality import figures
from trainyard.quality.figures import page, spark
from trainyard.quality.images import hash_gray, near_duplicates
from trainyard.quality.inspect import inspect, inspect_recipe
from trainyard.quality.recipe_check import check_first
from trainyard.quality.tables import hashes, samples, tables
from trainyard.quality.tables.columns import counted, merged
from trainyard.readers import csv_rows
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import find_files
from trainyard_control.planning import data

TABLE = """\
id,age,city,joined,kept,label
a1,20,Oslo,2024-01-01,yes,1
a2,30,Oslo,2024-01-02,yes,1
a3,,Bergen,2024-01-03,yes,0
a4,40,"Oslo, east",2024-02-29,yes,0
a4,40,"Oslo, east",2024-02-29,yes,0
"""


def written(folder: Path, text: str, name: str = "a.csv") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_columns_of_a_table_have_their_types_and_statistics(tmp_path: Path) -> None:
    profile = inspect(written(tmp_path, TABLE), "label")
    types = {column.name: column.type for column in profile.columns}
    assert types == {
        "id": "category",
        "age": "integer",
        "city": "category",
        "joined": "date",
        "kept": "category",
        "label": "integer",
    }
    age = profile.columns[1]
    assert (age.statistics.count, age.statistics.missing, age.statistics.mean, age.distinct) == (4, 1, 32.5, 3)
    assert (age.statistics.min, age.statistics.max, age.quantiles["0.5"]) == (20, 40, 30)
    assert [(entry.value, entry.count) for entry in profile.columns[2].top] == [
        ("Oslo", 2),
        ("Oslo, east", 2),
        ("Bergen", 1),
    ]
    assert profile.classes == {"0": 3, "1": 2}
    assert profile.first[1] == ["a1", "20", "Oslo", "2024-01-01", "yes", "1"]
    assert profile.repeated.repeats == 1 and profile.repeated.such_as == [["a.csv:5", "2 times"]]


def test_a_day_before_the_first_year_is_none_as_preprocess_has_it(tmp_path: Path) -> None:
    days = ["0000-01-01", *(f"2024-02-{day:02}" for day in range(1, 30))]
    profile = inspect(written(tmp_path, "\n".join(["joined,label", *(f"{day},x" for day in days)])))
    assert (profile.columns[0].type, profile.columns[0].mistyped) == ("date", 1)
    assert "2024-02-01" in page(profile)


def test_the_last_day_of_all_is_shown_as_it_is(tmp_path: Path) -> None:
    at = inspect(written(tmp_path, "at,label\n" + "9999-12-31,x\n" * 30)).columns[0]
    shown = (at.statistics.min, at.quantiles["0.5"], at.statistics.max)
    assert [figures.format_value(value, at.type) for value in shown if value] == ["9999-12-31"] * 3


@pytest.mark.parametrize("positive", [60, 6000])
def test_the_median_of_a_column_that_is_mostly_0_is_0(tmp_path: Path, positive: int) -> None:
    amounts = [0] * (16 * positive) + [1.5 + 7.25 * number for number in range(positive)]
    lines = "".join(f"{amount},{'xy'[index % 2]}\n" for index, amount in enumerate(amounts))
    amount = inspect(written(tmp_path, f"amount,label\n{lines}")).columns[0]
    assert [amount.quantiles[share] for share in ("0.01", "0.5", "0.75")] == [0, 0, 0]
    exact = float(np.quantile(amounts, 0.99, method="inverted_cdf"))
    assert amount.quantiles["0.99"] == pytest.approx(exact, rel=0.01)


def test_a_value_that_holds_a_quantile_is_it(tmp_path: Path) -> None:
    amounts = [number / 7 for number in range(3000)] + [200.5] * 2000
    lines = "".join(f"{amount},{'xy'[index % 2]}\n" for index, amount in enumerate(amounts))
    amount = inspect(written(tmp_path, f"amount,label\n{lines}")).columns[0]
    for share in (0.05, 0.25, 0.5, 0.75):
        exact = float(np.quantile(amounts, share, method="inverted_cdf"))
        assert amount.quantiles[f"{share:g}"] == pytest.approx(exact, rel=0.01)
    assert amount.quantiles["0.5"] == 200.5


def test_a_row_keeps_its_number_behind_ragged_and_empty_ones(tmp_path: Path) -> None:
    lines = ["a,b", "1,x", "2", "3,y,z", "", "4,x", "oops,x", *["5,y"] * 20]
    profile = inspect(written(tmp_path, "\n".join(lines) + "\n"))
    assert profile.ragged_such_as == ["a.csv:3 (1 cells, the header has 2)", "a.csv:4 (3 cells, the header has 2)"]
    assert profile.columns[0].mistyped_such_as == ["a.csv:7 'oops'"]
    assert profile.rows == 23


def test_a_row_keeps_its_number_behind_those_that_a_recipe_leaves_out(tmp_path: Path) -> None:
    rows = [f"{number},{number % 5},{'xy'[number % 2]}" for number in range(200)]
    rows[151] = rows[161] = "1,1,x"
    written(tmp_path, "\n".join(["a,b,label", *rows]))
    data = {"format": "csv", "path": str(tmp_path / "a.csv"), "where": "b != 3", "features": {"a": {"type": "numeric"}}}
    recipe = Recipe.model_validate({"name": "some", "data": data, "model": {"name": "mlp"}})
    assert inspect_recipe(recipe).repeated.such_as == [["a.csv:153", "2 times"]]


def test_times_of_a_zone_are_counted_in_every_format(tmp_path: Path) -> None:
    texts = ["2024-03-01 00:30:00+09:00", "2024-03-02T00:00Z", "2024-03-03 00:00:00", "", "x+00:00"]
    profile = inspect(written(tmp_path, "\n".join(["at,label", *(f"{text},a" for text in texts * 9)])), "label")
    assert profile.columns[0].zoned == 18 and "'at': 18 of 36 times have a zone" in " ".join(profile.findings)
    at = pa.array([datetime.datetime(2024, 3, day) for day in range(1, 10)]).cast(pa.timestamp("us", "Asia/Tokyo"))
    parquet.write_table(pa.table({"at": at, "label": ["a"] * 9}), tmp_path / "b.parquet")
    assert inspect(str(tmp_path / "b.parquet"), "label").columns[0].zoned == 9
    features = {"at": {"type": "date"}}
    data = {"format": "parquet", "path": str(tmp_path / "b.parquet"), "label": "label", "features": features}
    for zone, day in (("UTC", 0), ("-01:00", -1)):
        named = {"name": "some", "data": data | {"time_zone": zone}, "model": {"name": "mlp"}}
        profile = inspect_recipe(recipe := Recipe.model_validate(named))
        assert profile.columns[0].statistics.max == (datetime.date(2024, 3, 9 + day) - datetime.date(1970, 1, 1)).days
        said = "'at': 9 of 9 times have a zone, and their days, hours and weekdays are counted in UTC; data.time_zone"
        assert [said in " ".join(profile.findings), said in check_first(recipe)] == [zone == "UTC"] * 2


@pytest.mark.parametrize("blocks", [1, 4])
def test_what_stands_for_a_missing_number_does_not_depend_on_where_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    rows = [f"{'NA' if number < 400 else number},{'NA' if number % 2 else 'DE'}" for number in range(600)]
    text = "\n".join(["late,country", *rows])
    monkeypatch.setattr(csv_rows, "_FIRST_BYTES", len(text) // blocks + 1)
    monkeypatch.setattr(tables, "_BATCH_ROWS", 1)
    late, country = inspect(written(tmp_path, text)).columns
    assert (late.type, late.statistics.count, late.statistics.missing, late.mistyped) == ("integer", 200, 400, 0)
    assert (late.distinct, late.top[0].value, late.top[0].count) == (200, "400", 1)
    assert (country.type, country.statistics.count, country.distinct) == ("category", 600, 2)


def test_what_is_suspicious_is_said(tmp_path: Path) -> None:
    rows = [f"c{i},{i % 2},{'left' if i % 3 else 'stays'},x,{0 if i % 3 else 1}" for i in range(1500)]
    text = "\n".join(["customer,coin,state,unit,churned", *rows, "c9,1,left,x,7", "c10,0,left,x,1"])
    sentence = " ".join(inspect(written(tmp_path, text), "churned").findings)
    assert "'state' alone predicts the label" in sentence and "'coin'" not in sentence
    assert "1 class has one example: 7." in sentence
    assert "'unit' is constant: 'x'" in sentence
    assert "1 row is equal to another one in all but the label 'churned'" in sentence
    assert "'customer' looks like an id" not in sentence  # two repeat
    assert "'customer' looks like an id" in " ".join(
        inspect(written(tmp_path, "\n".join(["customer,churned", *(f"c{i},{i % 2}" for i in range(50))]))).findings
    )


def test_rows_with_another_ones_label_are_named_and_labels_at_random_are_not(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    classes = draw.integers(3, size=6000)
    wrong = draw.random(6000) < 0.02
    labels = np.where(wrong, (classes + draw.integers(1, 3, 6000)) % 3, classes)
    columns = [draw.normal(classes, 0.25), draw.normal(-classes, 0.3), np.where(draw.random(6000) < 0.9, classes, 1)]
    rows = [f"{a:.3f},{b:.3f},k{c},{'xyz'[label]}" for a, b, c, label in zip(*columns, labels, strict=True)]
    text = "\n".join(["a,b,c,kind", *rows])
    profile = inspect(written(tmp_path, text), "kind")
    named = {int(name.partition(":")[2]) - 2: (label, likely) for name, label, likely in profile.label_errors}
    flipped = set(np.flatnonzero(wrong).tolist())
    assert len(named.keys() & flipped) > 0.8 * len(flipped) and len(named.keys() - flipped) < 0.05 * len(named)
    assert all(named[row] == ("xyz"[labels[row]], "xyz"[classes[row]]) for row in named.keys() & flipped)
    assert f"{len(named)} rows look mislabeled or rare" in " ".join(profile.findings)
    draw.shuffle(rows)
    at_random = [f"{row.rpartition(',')[0]},{'xyz'[draw.integers(3)]}" for row in rows]
    assert inspect(written(tmp_path, "\n".join(["a,b,c,kind", *at_random])), "kind").label_errors == []


def test_a_rare_class_that_no_column_tells_is_not_called_mislabelled_as_a_whole(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    rows = [f"{random.integers(9)},{random.integers(9)},{'yes' if row % 100 == 0 else 'no'}" for row in range(3000)]
    assert inspect(written(tmp_path, "\n".join(["a,b,fraud", *rows])), "fraud").label_errors == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "a.csv: row 1: is empty"),
        (b"a,b\n", "there are no rows"),
        (b"1,2\n3,4\n", "row 1: holds numbers alone (1, 2), so the file has no header"),
        (b"a,a\n1,2\n", "the header names column 'a' twice"),
        ("a,b\n1,2\n".encode("utf-32"), "is UTF-32"),
        (b"\0\0\xfe\xff" + "a,b\n1,2\n".encode("utf-32-be"), "is UTF-32"),
        ("a,b\n1,Тула\n".encode("cp1251"), "a.csv: row 2: column 2 'b': is not UTF-8"),
        (b'a,b\n1,"' + b"x\n" * (6 << 20), "a.csv: row 2: not valid CSV"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_a_sentence(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(TrainyardError, match=expected.replace("(", r"\(").replace(")", r"\)")):
        inspect(str(tmp_path / "a.csv"))


def test_a_source_that_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match="no files found"):
        inspect(str(tmp_path / "nothing"))
    with pytest.raises(TrainyardError, match=r"no such column\. Did you mean 'label'"):
        inspect(written(tmp_path, TABLE), "lable")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(np.random.default_rng(1).bytes(9000).hex().encode())[:-99])
    with pytest.raises(TrainyardError, match=r"cut\.csv\.gz: "):
        inspect(str(tmp_path / "cut.csv.gz"))
    (tmp_path / "b.csv").write_text("id,years\n1,2\n")
    (tmp_path / "cut.csv.gz").unlink()
    with pytest.raises(TrainyardError, match=r"b\.csv: row 1: the header lacks age"):
        inspect(str(tmp_path))


def test_a_histogram_depends_neither_on_the_order_nor_on_the_batches() -> None:
    draws = np.random.default_rng(1)
    for values in (draws.normal(size=3000), draws.lognormal(9, 3, 3000), draws.integers(-5, 99, 3000) * 1.0):
        values = np.append(values, 1e30)
        parts = [counted(part, 100) for part in np.array_split(draws.permutation(values), 7)]
        together = parts[0]
        for part in parts[1:]:
            together = merged(together, part, 100)
        assert together == counted(values, 100)
        assert len(together.starts) <= 100 and sum(together.counts) == 3001
    assert counted(np.array([0.1, 0.1, 7.0])).starts == [0.1, 7.0]
    assert spark(counted(np.arange(240.0))).strip("▇█") == ""


def test_beyond_its_size_a_sample_of_hashes_estimates() -> None:
    exact, small = samples.HashSample(), samples.HashSample(1 << 10)
    for start in range(0, 100_000, 10_000):
        rows = np.arange(start, start + 10_000)
        values = hashes.hash_numbers(rows % 40_000 * 1.0)
        exact.add(values, rows)
        small.add(values, rows)
    assert (exact.distinct, exact.repeats, exact.repeated(1)) == (40_000, 60_000, [(0, 3)])
    assert abs(small.distinct - 40_000) < 4000 and abs(small.repeats - 60_000) < 6000 and not small.exact


def test_conflicts_are_estimated_by_the_same_rows_with_and_without_the_label() -> None:
    """The difference of two estimates of millions would be thousands where there are none."""
    draws = np.random.default_rng(0)
    none, some = samples.ConflictSample(1 << 10), samples.ConflictSample(1 << 10)
    for _ in range(10):
        features, labels = draws.integers(0, 1 << 63, (2, 10_000), np.uint64)
        none.add(features, labels)
        some.add(features, labels)
        some.add(features[:2000], labels[:2000] + np.uint64(1))
        some.add(features[:4000], labels[:4000])
    assert none.conflicts == 0
    assert abs(some.conflicts - 20_000) < 4000


def image(seed: int) -> Image.Image:
    patches = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(patches).resize((120, 120), Image.Resampling.BICUBIC)


def test_a_folder_of_images_has_classes_broken_files_and_copies(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(4):
            image(number + 10 * (label == "dog")).save(tmp_path / label / f"{number}.jpg")
    image(2).resize((80, 80)).save(tmp_path / "dog" / "small.jpg", quality=60)
    (tmp_path / "dog" / "same.jpg").write_bytes((tmp_path / "cat" / "0.jpg").read_bytes())
    (tmp_path / "cat" / "broken.jpg").write_bytes((tmp_path / "cat" / "1.jpg").read_bytes()[:300])
    (tmp_path / "dog" / "none.png").write_bytes(b"no image")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    profile = inspect(str(tmp_path))
    assert profile.classes == {"dog": 6, "cat": 4} and profile.images is not None
    assert sum(profile.images.broken.values()) == 2
    assert ["cat/2.jpg", "dog/small.jpg"] in profile.images.near and profile.images.near_count == 2
    sentence = " ".join(profile.findings)
    assert "1 image lies in several classes, such as cat/0.jpg = dog/same.jpg" in sentence
    assert "cat/2.jpg ≈ dog/small.jpg" in sentence and "notes.txt" in sentence
    html = page(profile)
    assert html.count("<img ") == 10 and "http:" not in html and "<script" not in html


def test_an_image_of_16_bits_or_on_its_side_is_looked_at_as_preprocess_makes_it(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        pixels = np.asarray(image(ord(label[0])).convert("L").resize((640, 480)))
        Image.fromarray(pixels).save(tmp_path / label / "8.png")
        Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / label / "16.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    shown = Image.new("RGB", (400, 200), "red")
    shown.paste("blue", (200, 0, 400, 200))
    shown.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "cat" / "turned.jpg", exif=turned)
    profile = inspect(str(tmp_path))
    assert profile.images is not None and profile.images.broken == {}
    assert sorted(profile.images.near) == [["cat/16.png", "cat/8.png"], ["dog/16.png", "dog/8.png"]]
    sheet = {item.name: Image.open(io.BytesIO(base64.b64decode(item.thumbnail))) for item in profile.images.sheet}
    assert 100 < np.asarray(sheet["cat/16.png"]).mean() < 155, "not white"
    assert sheet["cat/turned.jpg"].size == (96, 48) and sheet["cat/turned.jpg"].getpixel((90, 24))[2] > 200


def test_files_that_would_end_a_run_are_said_to(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        image(ord(label[0])).save(tmp_path / label / "1.jpg")
    (tmp_path / "dog" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "dog" / "2.jpg").write_bytes(b"")
    assert (
        inspect(str(tmp_path)).findings[-1].startswith("2 files are bad for preprocess, broken ones and others, more")
    )


def test_near_duplicates_are_found_without_comparing_all_and_plain_ones_are_left_out() -> None:
    draws = np.random.default_rng(1)
    hashes = draws.integers(0, 256, (20_000, 16), dtype=np.uint8)
    hashes[7] = hashes[19_999]
    hashes[7, 3] ^= 0b1000_0001
    hashes[100:4100] = 0
    assert near_duplicates(hashes) == {(7, 19_999): 2}
    assert hash_gray(Image.new("L", (50, 50), 70)) == bytes(16)


def test_what_the_data_hold_stays_text_in_the_page(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    html = page(inspect(written(tmp_path, f'a,"{hostile}"\n{hostile},1\nb,2\n')))
    assert "<script" not in html and "&lt;script&gt;" in html


def test_every_class_of_the_label_is_known_and_not_the_frequent_ones_alone(tmp_path: Path) -> None:
    rows = [f"{number},class {number % 30:02}" for number in range(300)] + ["1,class 00"] * 30
    (tmp_path / "a.csv").write_text("\n".join(["x,label", *rows]) + "\n")
    profile = inspect(str(tmp_path / "a.csv"), "label")
    assert len(profile.classes) == 30 and profile.classes["class 00"] == 40 and profile.classes["class 29"] == 10


@pytest.mark.parametrize(
    ("format", "read", "left"),
    [
        ("csv", ["B.CSV", "a.csv"], ["old/a.csv", "notes.txt"]),
        ("parquet", ["a.parquet", "day=1/b.pq"], ["_delta_log/9.checkpoint.parquet", "day=1/old/c.parquet"]),
    ],
)
def test_a_profile_counts_the_rows_that_preprocess_reads(
    format: Literal["csv", "parquet"], read: list[str], left: list[str], tmp_path: Path
) -> None:
    for rows, name in enumerate([*read, *left], 3):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        table = pa.table({"age": [float(row) for row in range(rows)], "label": [f"{row % 2}" for row in range(rows)]})
        (csv.write_csv if format == "csv" else parquet.write_table)(table, str(tmp_path / name))
    recipe = Recipe.model_validate(
        {
            "name": "visits",
            "data": {"format": format, "path": str(tmp_path), "features": {"age": {"type": "numeric"}}},
            "model": {"name": "mlp"},
        }
    )
    files = find_files(recipe.data, str(tmp_path))
    assert [files.name(path) for path in files.paths] == read
    assert inspect(str(tmp_path)).rows == inspect_recipe(recipe).rows == 3 + 4
    assert data.find(recipe, None, None).train == round(0.8 * (3 + 4))


def test_images_that_lose_their_content_are_said(tmp_path: Path) -> None:
    """A white shape in the alpha channel alone, 12 bits in 16, and floats."""
    for index in range(3):
        alpha = np.zeros((32, 32), np.uint8)
        alpha[8 : 20 + index, 8:20] = 255
        white = np.full((32, 32), 255, np.uint8)
        shapes = {
            "alpha": Image.fromarray(np.stack([white, white, white, alpha], -1)),
            "deep": Image.fromarray(alpha.astype(np.uint16) * 4),
            "float": Image.fromarray(alpha.astype(np.float32) / 255),
        }
        for label, image in shapes.items():
            (tmp_path / label).mkdir(exist_ok=True)
            image.save(tmp_path / label / f"{index}.{'tif' if label == 'float' else 'png'}")
    profile = inspect(str(tmp_path))
    assert profile.images is not None
    assert profile.images.broken == {"unscaled_image": 3}
    assert len(profile.images.broken_such_as) == 1  # one of each fault
    said = " ".join(profile.findings)
    assert "floating-point numbers from 0 to 1. Set data.white_level" in said
    assert "use values up to about 1023 of 65535, so 4 levels are left" in said and "such as 1023" in said
    assert "3 images are one color after decoding, such as alpha/0.png, alpha/1.png" in said
    source = {"format": "image_folder", "path": str(tmp_path), "white_level": 1020}
    named = inspect_recipe(Recipe.model_validate({"name": "pics", "data": source, "model": {"name": "cnn_small"}}))
    assert named.images is not None and named.images.level == -1 and not named.images.broken


def test_a_table_of_too_many_columns_is_refused_before_they_are_counted(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(10_001)]
    (tmp_path / "wide.csv").write_text(f"{','.join(names)}\n{','.join(['1'] * len(names))}\n")
    with pytest.raises(DataError, match=r"wide\.csv: the table has 10,001 columns\. At most 10,000 are read"):
        inspect(str(tmp_path / "wide.csv"))


def test_classes_that_differ_in_their_writing_and_cut_numbers_are_named(tmp_path: Path) -> None:
    opened = [1_700_000_000 + 5 * row for row in range(40)]
    rows = [f"{time},{'Cat' if row % 2 else 'cat'},{row % 3}.0" for row, time in enumerate(opened)]
    profile = inspect(written(tmp_path, "\n".join(["opened,label,kind", *rows])), "label")
    assert any("Classes differ in their writing alone: 'Cat' = 'cat'." in sentence for sentence in profile.findings)
    assert any("'opened' lies from 1700000000 to 1700000195" in sentence for sentence in profile.findings)
    same = [row.replace("Cat", "1.0").replace("cat", "1") for row in rows[:20]] + [f"{row},2,0" for row in range(20)]
    assert inspect(written(tmp_path, "\n".join(["opened,label,kind", *same])), "label").classes == {"1": 20, "2": 20}


@pytest.mark.parametrize("forms", [("caf\u00e9", "cafe\u0301"), ("True", "TRUE")])
def test_folders_of_one_name_in_two_writings_are_one_class(tmp_path: Path, forms: tuple[str, str]) -> None:
    for number, name in enumerate((*forms, "dog")):
        (tmp_path / name).mkdir(exist_ok=True)
        image(number).save(tmp_path / name / f"{number}.png")
    assert sorted(inspect(str(tmp_path)).classes.values()) == [1, 2]


def findings_of(folder: Path, cells: list[str], name: str = "n") -> list[str]:
    lines = "".join(f"{cell},{'xy'[index % 2]}\n" for index, cell in enumerate(cells))
    return [text for text in inspect(written(folder, f"{name},label\n{lines}")).findings if "far" in text]


def test_values_that_occur_often_and_lie_far_from_the_others_are_named_with_the_key_for_them(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    warm = [f"{value:.1f}" for value in draw.normal(12, 6, 400)]
    assert findings_of(tmp_path, warm) == []
    [finding] = findings_of(tmp_path, warm + ["-9999"] * 60)
    assert finding.startswith("'n' is -9999 in 13.0% of its cells, far from the others, -")
    assert finding.endswith("If it stands for a missing value, declare it, missing: [-9999].")
    [finding] = findings_of(tmp_path, warm + ["999"] * 10 + ["-99.5"] * 5)
    assert "'n' is 999 in 2.4% and -99.5 in 1.2% of its cells" in finding
    assert finding.endswith("If these stand for a missing value, declare it, missing: [999, -99.5].")
    assert findings_of(tmp_path, [f"{index % 5}" for index in range(200)]) == []
    assert findings_of(tmp_path, ["0"] * 300 + [f"{value:.3f}" for value in draw.lognormal(1, 2, 100)]) == []


def test_far_days_are_named(tmp_path: Path) -> None:
    days = [f"2024-{1 + index % 12:02}-{1 + index % 28:02}" for index in range(300)]
    assert findings_of(tmp_path, days) == []
    [finding] = findings_of(tmp_path, days + ["9999-12-31"] * 200)
    assert finding == (
        "'n' is 9999-12-31 in 40.0% of its cells, far from the others, 2024-01-01 to 2024-12-28. If it stands for a "
        "missing value, declare it, missing: [9999-12-31]."
    )
    [finding] = findings_of(tmp_path, [*days, "1800-01-01"])
    assert "nine tenths of its values lie from 2024-01-" in finding
    assert finding.endswith("a network hardly tells them apart. Set clip: [0.01, 0.99].")


def test_a_number_that_flattens_all_others_is_named_unless_the_recipe_limits_it(tmp_path: Path) -> None:
    cells = [f"{value:.2f}" for value in np.random.default_rng(6).lognormal(3, 1, 500)] + ["1e12"]
    [finding] = findings_of(tmp_path, cells)
    assert "'n': nine tenths of its values lie from " in finding and "scale: log, or clip: [0.01, 0.99]." in finding
    for feature, count in (({}, 1), ({"scale": "log"}, 0), ({"clip": [0.01, 0.99]}, 0), ({"scale": "minmax"}, 1)):
        data = {"format": "csv", "path": str(tmp_path / "a.csv"), "features": {"n": {"type": "numeric", **feature}}}
        recipe = Recipe.model_validate({"name": "some", "data": data, "model": {"name": "mlp"}})
        assert len([text for text in inspect_recipe(recipe).findings if "far away" in text]) == count
