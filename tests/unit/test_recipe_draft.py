"""A recipe is drafted from data, and one is held against the first of its data, before anything heavy starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.data import made_imagenet
from PIL import Image
from pyarrow import csv, parquet
from pydantic import ValidationError
from typer.testing import CliRunner

from trainyard.errors import DataError, TrainyardError
from trainyard.quality import recipe_check
from trainyard.quality.inspect import inspect, inspect_recipe
from trainyard.quality.recipe_check import check_first
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import find_files
from trainyard_control.cli.main import app

CITIES = ["Bern", "Basel", "Genf"]


def table(folder: Path, rows: int = 300) -> Path:
    """Columns of each kind; `kept` is the label, and `sure` tells it alone."""
    random = np.random.default_rng(1)
    lines = ["id,age,city,joined,fee,constant,key,sure,kept"]
    for row in range(rows):
        kept = int(random.random() < 0.4)
        age, fee = random.integers(18, 80), "" if row % 7 == 0 else f"{random.normal(5, 1):.2f}"
        joined = f"2024-{row % 12 + 1:02}-{row % 28 + 1:02}"
        lines.append(f"c{row},{age},{CITIES[row % 3]},{joined},{fee},x,{row % 5},{'yn'[kept]},{kept}")
    file = folder / "members.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def recipe(folder: Path, text: str) -> Recipe:
    (folder / "members.yaml").write_text(text)
    return recipes.load(str(folder / "members.yaml"))


def test_a_table_becomes_a_recipe_of_the_columns_that_can_tell_something(tmp_path: Path) -> None:
    text, guesses = draft_recipe("members", "members.csv", inspect(str(table(tmp_path)), "kept"))
    drafted = recipe(tmp_path, text)
    assert {name: feature.type for name, feature in drafted.data.features.items()} == {
        "age": "numeric",
        "city": "category",
        "joined": "date",
        "fee": "numeric",
    }
    assert drafted.task == "classification" and drafted.data.label == "kept"
    assert drafted.model.name == "boosted_trees" and drafted.model.trees.min_samples_leaf == 5
    zeros = sum(line.endswith(",0") for line in table(tmp_path).read_text().splitlines())
    assert (drafted.evaluate.gates[0].against, drafted.evaluate.gates[0].confidence) == ("baseline", 0.95)
    assert f"'0' as the answer to everything (about {zeros / 300:.3f})" in guesses[-1]
    left_out = [guess for guess in guesses if guess.startswith("left out")]
    assert [guess.split()[2] for guess in left_out] == ["id", "constant", "key", "sure"]
    assert "tells the label alone" in left_out[-1] and "taken" in left_out[2]
    assert all(f"#   {guess}" in text for guess in guesses)
    assert check_first(drafted) == "the first 300 rows of members.csv"


@pytest.mark.parametrize(("format", "delimiter"), [("csv", ";"), ("csv", "\t"), ("parquet", ",")])
def test_the_same_table_in_another_form_becomes_the_same_recipe(tmp_path: Path, format: str, delimiter: str) -> None:
    plain = table(tmp_path)
    expected = recipe(tmp_path, draft_recipe("members", "members.csv", inspect(str(plain), "kept"))[0])
    file = tmp_path / f"others.{format}"
    if format == "csv":
        file.write_text(plain.read_text().replace(",", delimiter))
    else:
        parquet.write_table(csv.read_csv(plain), file)
    profile = inspect(str(file), "kept")
    assert (profile.kind, profile.delimiter, profile.rows) == (format, delimiter, 300)
    drafted = recipe(tmp_path, draft_recipe("members", file.name, profile)[0])
    assert drafted.data.format == format and drafted.data.features == expected.data.features
    assert check_first(drafted) == f"the first 300 rows of {file.name}"
    if format == "csv":
        other = drafted.model_copy(update={"data": drafted.data.model_copy(update={"delimiter": ","})})
        with pytest.raises(DataError, match=r"data\.delimiter: is ','"):
            check_first(other)


def test_derived_labels_and_rows_left_out_are_looked_at(tmp_path: Path) -> None:
    text, _ = draft_recipe("members", "members.csv", inspect(str(table(tmp_path)), "kept"))
    derived = text.replace("label: kept", "label: old\n  derive: {old: age > 30}\n  where: fee > 4")
    assert check_first(recipe(tmp_path, derived)) == "the first 300 rows of members.csv"
    profile = inspect_recipe(recipe(tmp_path, derived))
    fees = [line.split(",")[4] for line in table(tmp_path).read_text().splitlines()[1:]]
    assert profile.rows == sum(bool(fee) and float(fee) > 4 for fee in fees) and set(profile.classes) == {
        "true",
        "false",
    }
    for old, new, sentence in (
        ("age > 30", "aeg > 30", "data.derive or data.where: no column 'aeg'. Did you mean 'age'?"),
        ("fee > 4", "fee > 400", "data.where: 'fee > 400' is true of no row."),
    ):
        with pytest.raises(DataError, match=re.escape(sentence)):
            check_first(recipe(tmp_path, derived.replace(old, new)))


def test_an_unknown_class_of_a_gate_is_found_in_the_first_rows_and_one_of_another_name_if_those_are_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _ = draft_recipe("members", "members.csv", inspect(str(table(tmp_path)), "city"))
    drafted = recipe(tmp_path, text)

    def checked(name: str) -> str:
        gates = [{"metric": "recall", "class": name, "min": 0.5}]
        return check_first(Recipe.model_validate(drafted.model_dump() | {"evaluate": {"gates": gates}}))

    with pytest.raises(DataError, match=r"evaluate\.gates\.0\.class: no class 'Bren'\. Did you mean 'Bern'\?"):
        checked("Bren")
    with pytest.raises(DataError, match=r"evaluate\.gates\.0\.class: no class 'Chur'\. Known: Basel, Bern, Genf\."):
        checked("Chur")
    assert checked("Bern") == "the first 300 rows of members.csv"
    monkeypatch.setattr(recipe_check, "_ROWS", 299)
    assert checked("Chur") == "the first 299 rows of members.csv"


@pytest.mark.parametrize(("task", "label"), [("classification", "NA"), ("regression", "7")])
def test_a_number_that_is_missing_in_all_first_rows_is_a_number_and_a_class_may_be_called_na(
    tmp_path: Path, task: str, label: str
) -> None:
    """As of a sensor that was built in later: preprocess reads NA as a missing number, and as the name of a class."""
    rows = [f"{'NA' if row < 15_000 else row},{row % 3 if row % 2 else label}" for row in range(16_000)]
    (tmp_path / "sensors.csv").write_text("\n".join(["late,kept", *rows]))
    document = {"name": "sensors", "task": task, "model": {"name": "mlp"}}
    data = {"format": "csv", "path": "sensors.csv", "label": "kept", "features": {"late": {"type": "numeric"}}}
    assert (
        check_first(recipe(tmp_path, json.dumps({**document, "data": data}))) == "the first 10,000 rows of sensors.csv"
    )


def test_numbers_to_predict_become_a_regression(tmp_path: Path) -> None:
    drafted = recipe(tmp_path, draft_recipe("members", "members.csv", inspect(str(table(tmp_path)), "fee"))[0])
    assert drafted.task == "regression"
    beats_the_mean, champion = drafted.evaluate.gates
    assert (beats_the_mean.metric, beats_the_mean.min, beats_the_mean.confidence) == ("r2", 0, 0.95)
    assert (champion.metric, champion.min_difference) == ("r2", -0.02)
    assert "fee" not in drafted.data.features


@pytest.mark.parametrize(
    ("cell", "scale"),
    [
        (lambda draw: f"{100 * np.exp(draw.normal()):.2f}", "log"),
        (lambda draw: f"{100 * np.exp(draw.normal()) * (draw.random() > 0.1):.2f}", "log1p"),
        (lambda draw: f"{draw.poisson(3 * np.exp(draw.normal()))}", "log1p"),
        (lambda draw: f"{0.1 * np.exp(draw.normal()) * (draw.random() > 0.1):.4f}", "none"),
        (lambda draw: f"{100 * np.exp(draw.normal()) - 20:.2f}", "none"),
        (lambda draw: f"{100 + 10 * draw.normal():.2f}", "none"),
    ],
)
def test_a_skewed_target_is_drafted_with_its_logarithm_and_its_total(
    tmp_path: Path, cell: Callable[[np.random.Generator], str], scale: str
) -> None:
    draw, file = np.random.default_rng(1), tmp_path / "prices.csv"
    lines = [f"{draw.normal():.3f},{cell(draw)}" for _ in range(2000)]
    file.write_text("\n".join(["size,price", *lines]) + "\n")
    text, guesses = draft_recipe("prices", "prices.csv", inspect(str(file), "price"))
    target = recipe(tmp_path, text).train.target
    assert (target.scale, target.mean) == (scale, scale != "none")
    assert any("keeps the total" in guess for guess in guesses) == (scale != "none")


def test_a_list_is_drafted_as_its_values_and_what_is_read_by_nothing_is_said(tmp_path: Path) -> None:
    rows = 300
    orders = pa.table(
        {
            "tags": [["new", "abroad"][: row % 3] for row in range(rows)],
            "shop": [{"id": row % 5} for row in range(rows)],
            "note": [f"pays invoice {row} later than the {row % 9} others" for row in range(rows)],
            "paid": [row % 2 == 0 for row in range(rows)],
        }
    )
    parquet.write_table(orders, tmp_path / "orders.parquet")
    text, guesses = draft_recipe("orders", "orders.parquet", inspect(str(tmp_path / "orders.parquet"), "paid"))
    drafted = recipe(tmp_path, text)
    tags = drafted.data.features["tags"]
    assert tags.type == "text" and tags.separator == ";" and "shop" not in drafted.data.features
    assert drafted.data.features["note"].type == "text" and "note: prose, read by its words" in guesses
    assert "left out: shop (struct<id: int64>, which is read by nothing)" in guesses
    check_first(drafted)
    with pytest.raises(DataError, match=r"data\.features\.tags: is list<.*>, which \{type: text, separator: ;\} alone"):
        check_first(recipe(tmp_path, text.replace("{type: text, separator: ;}", "{type: category}")))


def test_a_draft_leaves_out_what_would_end_its_first_run_and_says_why(tmp_path: Path) -> None:
    lines = ["code;day;fee;built;review;age;kept"]
    for row in range(300):
        built = "unknown" if row % 20 == 0 else str(1900 + row % 90)
        texts = f"K{row:04};{row % 28 + 1:02}.03.2024;1.{100 + row},{row % 10}0;{built};it is {row} good"
        lines.append(f"{texts};{row % 71};{int(row % 3 == 0)}")
    (tmp_path / "members.csv").write_text("\n".join(lines) + "\n")
    profile = inspect(str(tmp_path / "members.csv"), "kept")
    text, guesses = draft_recipe("members", "members.csv", profile)
    assert list(recipe(tmp_path, text).data.features) == ["age"]
    why = {guess.split()[2]: guess.partition("(")[2] for guess in guesses if guess.startswith("left out")}
    assert why["code"].startswith("an id") and why["review"].startswith("short text; use {type: text}")
    assert why["day"] == (
        "days not written YYYY-MM-DD, which are read by nothing, such as 01.03.2024: write them as 2024-03-01)"
    )
    assert why["fee"] == (
        "numbers with a comma, which are read by nothing, such as 1.100,00: set data.decimal: ',' if no number of the "
        "CSV has a point, or write 1234.5 for 1.234,5, as pandas.read_csv(..., thousands='.', decimal=',') reads it)"
    )
    assert why["built"].startswith("15 cells are no numeric value, such as members.csv:2 'unknown'")
    assert any(finding.startswith("'fee' holds numbers with a comma, such as 1.100,00") for finding in profile.findings)
    ids = [finding for finding in profile.findings if "looks like an id" in finding]
    assert len(ids) == 1 and ids[0].startswith("'code'"), "prose that never repeats is no id"


def test_values_that_differ_in_their_writing_alone_and_texts_of_equal_words_are_named(tmp_path: Path) -> None:
    colors, skills = ("Red", "red ", "RED", "blue"), ("a C lead, it is", "a (c) lead; IT IS", "a C++ lead it is")
    kept = np.random.default_rng(3).integers(2, size=300)
    lines = [f'"{colors[row % 4]}","{skills[row % 3]} of team {row % 20}",{kept[row]}' for row in range(300)]
    (tmp_path / "d.csv").write_text("\n".join(["color,skill,kept", *lines]) + "\n")
    profile = inspect(str(tmp_path / "d.csv"), "kept")
    color = "'RED' = 'Red' = 'red' differ in their writing alone, and a category takes them for different values"
    skill = (
        "40 different texts give the same words as another one, such as 'a C lead, it is of team 0' and 'a (c) lead; "
        "IT IS of team 0'"
    )
    for name, sentence in (("color", color), ("skill", skill)):
        assert any(finding.startswith(f"'{name}': {sentence}") for finding in profile.findings), profile.findings
    text, guesses = draft_recipe("members", "d.csv", profile)
    assert any(guess.startswith(f"color: {color}") for guess in guesses), guesses
    assert any(guess.startswith(f"skill: {skill}") for guess in guesses)
    assert recipe(tmp_path, text).data.features["skill"].type == "text"


@pytest.mark.parametrize(
    ("cells", "kind", "way"),
    [
        (["999.00", "1,234.50", "21,000.00"], "numbers with thousands separators", "thousands=','"),
        (["12.5"] * 30 + ["1,234.50"], "numbers with thousands separators", "thousands=','"),
        (["1'200", "999", "1 300"], "numbers with thousands separators", "write 1234.5"),
        (["1.234,50", "999,00", "7"], "numbers with a comma", "decimal=','"),
        (["1.234.567", "12"], "numbers with a comma", "decimal=','"),
        (["12 %", "7.5%", "0"], "percentages", "write the number alone"),
        (["€ 1,200", "€ 99", "5 EUR"], "amounts of money", "write the number alone"),
    ],
)
def test_numbers_in_another_notation_are_named_with_what_to_do(
    tmp_path: Path, cells: list[str], kind: str, way: str
) -> None:
    kept = np.random.default_rng(3).integers(2, size=300)
    lines = [f'"{cells[row % len(cells)]}",{row % 13},{kept[row]}' for row in range(300)]
    (tmp_path / "d.csv").write_text("\n".join(["fee,age,kept", *lines]) + "\n")
    profile = inspect(str(tmp_path / "d.csv"), "kept")
    (finding,) = (each for each in profile.findings if each.startswith("'fee'"))
    assert kind in finding and way in finding
    text, guesses = draft_recipe("members", "d.csv", profile)
    left_out = next(guess for guess in guesses if guess.startswith("left out: fee"))
    assert way in left_out and "fee" not in recipe(tmp_path, text).data.features


def test_a_draft_drops_the_rare_ones_of_several_classes_and_says_which(tmp_path: Path) -> None:
    lines = [f"{row % 7},{'ab'[row % 2]};{'cde'[row % 3]}{';polka' if row == 5 else ''}" for row in range(300)]
    (tmp_path / "d.csv").write_text("\n".join(["z,tags", *lines]) + "\n")
    text, guesses = draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), "tags"))
    assert recipe(tmp_path, text).data.label_min_count == 20
    assert "label_min_count: classes with fewer than 20 rows are dropped, their rows stay: 'polka'" in guesses


def test_a_rare_class_is_drafted_with_a_split_that_holds_it_and_a_gate_that_sees_it(tmp_path: Path) -> None:
    file = tmp_path / "members.csv"
    file.write_text("age,kept\n" + "".join(f"{row % 70},{'yes' if row % 50 == 0 else 'no'}\n" for row in range(1500)))
    text, guesses = draft_recipe("members", "members.csv", inspect(str(file), "kept"))
    drafted = recipe(tmp_path, text)
    gates = [(gate.metric, gate.class_name, gate.against, gate.confidence) for gate in drafted.evaluate.gates]
    assert gates == [
        ("pr_auc", "yes", "baseline", None),
        ("roc_auc", "yes", "champion", 0.98),
        ("pr_auc", "yes", "champion", None),
    ]
    assert drafted.threshold is not None
    assert (drafted.threshold.maximize, drafted.threshold.class_name) == ("f1", "yes")
    assert (drafted.data.split.by, drafted.data.split.test) == ("class", 0.2)
    assert "split by class: 'yes' has 30 examples, which a split by content may miss" in guesses
    assert any(
        guess.startswith("split 60 : 20 : 20: the test split holds about 6 of the 30 examples of 'yes'")
        and guess.endswith("with fewer than 5 no model is blessed")
        for guess in guesses
    )
    assert "'no' as the answer to everything has accuracy 0.980" in guesses[-1]


def test_accuracy_is_the_gate_of_classes_of_which_none_is_rare_and_macro_f1_of_several_rare_ones(
    tmp_path: Path,
) -> None:
    file = tmp_path / "members.csv"
    for classes, metrics in (
        (["no"] * 13 + ["yes"] * 7, ["accuracy"] * 2),
        (["no"] * 14 + ["yes"] * 6, ["pr_auc", "roc_auc", "pr_auc"]),
        (["1"] * 18 + ["2", "3"], ["macro_f1", "roc_auc", "roc_auc"]),
    ):
        rows = (f"{row % 71},{classes[row % 20]}\n" for row in range(2000))
        file.write_text("age,kept\n" + "".join(rows))
        drafted = recipe(tmp_path, draft_recipe("members", "members.csv", inspect(str(file), "kept"))[0])
        assert [gate.metric for gate in drafted.evaluate.gates] == metrics
        assert (drafted.train.class_weights == "balanced") == ("3" in classes)
        assert bool(drafted.threshold) == (metrics[0] == "pr_auc")


def images(folder: Path, mode: str, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    for number, name in enumerate(classes):
        (folder / "pets" / name).mkdir(parents=True)
        for index in range(6):
            pixels = np.full((130, 170, 3), 40 * number + index, np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / "pets" / name / f"{index}.png")
    return folder / "pets"


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_a_folder_of_images_becomes_a_recipe(tmp_path: Path, mode: str, channels: int) -> None:
    thumbnail = images(tmp_path, mode) / "cat" / ".thumbnails" / "0.PNG"
    thumbnail.parent.mkdir()
    for name in (thumbnail, thumbnail.with_name("index.db"), tmp_path / "pets" / "dog" / "._0.png"):
        name.touch()
    profile = inspect(str(tmp_path / "pets"))
    assert "1 hidden image is not read: cat/.thumbnails/0.PNG." in profile.findings
    drafted = recipe(tmp_path, draft_recipe("pets", "pets", profile)[0])
    assert find_files(drafted.data, str(tmp_path / "pets")).ignored == ("cat/.thumbnails/0.PNG",)
    assert drafted.data.image_size == (128, 128) and drafted.data.channels == channels
    assert drafted.model.name == "mobilenet_v3_small"
    assert check_first(drafted) == "12 of 12 images in 2 classes"
    gates = [{"metric": "recall", "class": "horse", "min": 0.5}]
    with pytest.raises(DataError, match=r"evaluate\.gates\.0\.class: no class 'horse'\. Known: cat, dog\."):
        check_first(Recipe.model_validate(drafted.model_dump() | {"evaluate": {"gates": gates}}))


def imagenet(folder: Path) -> Path:
    """A recipe of a made set in the form of ImageNet's archives, beside which lie the archives."""
    made_imagenet.write(folder / "data", "archives", train=30, val=3, side=32, classes=3)
    file = folder / "imagenet.yaml"
    file.write_text(
        "name: imagenet\nmodel: {name: cnn_small}\n"
        "data: {format: image_folder, path: data, image_size: [32, 32], split: {by: folder, eval: 0.1}}\n"
    )
    return file


def test_archives_are_held_against_a_recipe_by_their_first_members(tmp_path: Path) -> None:
    file = imagenet(tmp_path)
    result = CliRunner().invoke(app, ["recipe", "validate", str(file), "--data"])
    assert result.exit_code == 0 and "✓ 64 of 99 images in 3 classes fit it" in result.stderr, result
    profile = inspect_recipe(recipes.load(str(file)))
    assert profile.rows == 99 and profile.images is not None and profile.images.formats == {"JPEG": 99}
    assert profile.classes == {name: 30 for name in made_imagenet.CLASSES[:3]}, "those of val lie in no class folder"
    one = tmp_path / "data" / "ILSVRC2012_img_train.tar"
    assert inspect(str(one)).classes == profile.classes, "an archive that is the source is its root"
    (tmp_path / "data" / "ILSVRC2012_img_val.tar").unlink()
    with pytest.raises(DataError, match=r"finds no folder or archive that judges \(val, validation, test\)"):
        check_first(recipes.load(str(file)))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"<html>404</html>" * 99, r"ILSVRC2012_img_train\.tar: is not a tar archive, despite its name"),
        (made_imagenet.archive([("n1.tar", b"no" * 999)]), r"img_train\.tar/n1\.tar: is not a tar archive, despite"),
        (
            made_imagenet.archive([("../../x.jpg", b"1"), ("cat/1.jpg", b"1"), ("dog/2.jpg", b"1")]),
            r"3 of 12 images cannot be read, such as .*x\.jpg \(the member's name leads out of the archive\)",
        ),
        (
            made_imagenet.archive([("cat/1.jpg", b"1"), ("dog/2.jpg", b"1" * 9999)])[:5000],
            r"3 of 12 images cannot be read, such as",
        ),
    ],
)
def test_a_hostile_archive_is_refused_in_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = imagenet(tmp_path)
    (tmp_path / "data" / "ILSVRC2012_img_train.tar").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        check_first(recipes.load(str(file)))


def test_the_command_writes_the_recipe_once_and_says_what_it_guessed(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "members.yaml"
    file.parent.mkdir()
    command = ["recipe", "new", str(file), "--from", str(table(tmp_path)), "--label", "kept"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0 and "left out: id" in first.stderr
    assert Path(recipes.load(str(file)).data.path or "").resolve() == tmp_path / "members.csv"
    before = file.read_text()
    again = CliRunner().invoke(app, command)
    assert isinstance(again.exception, TrainyardError) and "already exists" in str(again.exception)
    assert file.read_text() == before
    result = CliRunner().invoke(app, ["recipe", "validate", str(file), "--data"])
    assert result.exit_code == 0 and "✓ the first 300 rows of members.csv fit it" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("label: kept", "label: kpt", "data.label: no column 'kpt'. Did you mean 'kept'? The header has: id, age"),
        ("age: {", "agee: {", "data.features.agee: no column 'agee'. Did you mean 'age'?"),
        ("city: {type: category}", "city: {type: numeric}", "is numeric, but 300 of 300 cells are no number, such as "),
        (
            "age: {type: numeric}",
            "age: {type: date}",
            "300 of 300 cells are no day YYYY-MM-DD, alone or before a time, such as members.csv:2 ",
        ),
        (
            "label: kept",
            "label: kept\n  split: {by: time, column: city, eval_from: 2024-02-01, test_from: 2024-03-01}",
            "data.split.column: is a date, but 300 of 300 cells are no day YYYY-MM-DD, alone or before a time",
        ),
        ("label: kept", "label: id", "'id' has 300 different values in 300 rows, too many for classes. Name another"),
        ("label: kept", "label: sure\n  max_bad_fraction: 0", ""),
    ],
)
def test_what_does_not_fit_is_said_with_row_and_nearest_name(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    text, _ = draft_recipe("members", "members.csv", inspect(str(table(tmp_path)), "kept"))
    assert old in text
    changed = recipe(tmp_path, text.replace(old, new))
    if not sentence:
        check_first(changed)
        return
    with pytest.raises(TrainyardError, match=r"^.*members.csv: does not fit the recipe") as raised:
        check_first(changed)
    assert sentence in str(raised.value) and raised.value.exit_code == 10


def test_a_day_before_a_text_that_is_no_time_is_no_date(tmp_path: Path) -> None:
    file = table(tmp_path)
    text, _ = draft_recipe("members", "members.csv", inspect(str(file), "kept"))
    file.write_text(re.sub(r"(2024-\d\d-\d\d)", r"\1 noon", file.read_text()))
    with pytest.raises(
        TrainyardError, match=r"300 of 300 cells are no day YYYY-MM-DD, alone or before a time, such as .* noon"
    ):
        check_first(recipe(tmp_path, text))


def test_many_different_numbers_as_classes_are_asked_about(tmp_path: Path) -> None:
    text, _ = draft_recipe("members", "members.csv", inspect(str(table(tmp_path)), "fee"))
    text = text.replace("regression", "classification").replace("r2", "accuracy")
    changed = recipe(tmp_path, text.replace("  where: not missing(fee + 0)\n", ""))
    with pytest.raises(TrainyardError, match="Is this task: regression") as raised:
        check_first(changed)
    assert "is missing in 43 of 300 rows" in str(raised.value)


def test_images_without_classes_or_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    folder = images(tmp_path, "RGB")
    drafted = recipe(tmp_path, draft_recipe("pets", "pets", inspect(str(folder)))[0])
    for name in ("0.png", "1.png"):
        (folder / "dog" / name).write_bytes(b"no image")
    with pytest.raises(TrainyardError, match=r"2 of 12 images cannot be read, such as dog/0.png \(no image\)\. Rep"):
        check_first(drafted)
    for file in (folder / "dog").iterdir():
        file.unlink()
    with pytest.raises(TrainyardError, match="the images lie in 1 class folders"):
        check_first(drafted)


def test_no_label_and_nothing_to_learn_from_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a,b\n" + "".join(f"x{row},{row * 1.5}\n" for row in range(50)))
    with pytest.raises(TrainyardError, match=r"no column looks like the label\. Name it by --label; there are: a, b"):
        draft_recipe("a", "a.csv", inspect(str(file)))
    with pytest.raises(TrainyardError, match=r"no column to learn from is left \(left out: a \("):
        draft_recipe("a", "a.csv", inspect(str(file), "b"))


def with_index(folder: Path, form: str, rows: int, ids: Callable[[int], str]) -> Path:
    """A table as pandas writes it with its index, which has no name."""
    random = np.random.default_rng(2)
    lines = [f"{ids(row)},{random.normal():.3f},{'yn'[random.integers(2)]}" for row in range(rows)]
    file = folder / f"d.{form}"
    if form == "csv":
        file.write_text("\n".join([",z,kept", *lines]) + "\n")
    else:
        cells = [line.split(",") for line in lines]
        columns = {"z": [float(cell[1]) for cell in cells], "kept": [cell[2] for cell in cells]}
        parquet.write_table(pa.table(columns | {"__index_level_0__": [cell[0] for cell in cells]}), file)
    return file


@pytest.mark.parametrize("ids", [str, lambda row: f"{row // 10}.{row % 10}", lambda row: f"row {row}"])
@pytest.mark.parametrize(
    ("form", "name", "how"),
    [("csv", "column 1", "name it 'column 1'"), ("parquet", "__index_level_0__", "rename it")],
)
@pytest.mark.parametrize("rows", [30, 300])
def test_a_column_without_a_name_is_called_by_its_place_and_left_out(
    tmp_path: Path, rows: int, form: str, name: str, how: str, ids: Callable[[int], str]
) -> None:
    file = with_index(tmp_path, form, rows, ids)
    text, guesses = draft_recipe("members", file.name, inspect(str(file), "kept"))
    drafted = recipe(tmp_path, text)
    assert list(drafted.data.features) == ["z"]
    assert f"left out: {name} (has no name, so it is an index. To learn from it, {how})" in guesses
    assert check_first(drafted).endswith(f"{rows} rows of {file.name}")


def test_a_row_repeats_another_whatever_its_index_is_and_no_index_makes_it_look_mislabelled(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(",z,kept\n" + "".join(f"{row},{row % 40},{row // 20 % 2}\n" for row in range(400)))
    profile = inspect(str(tmp_path / "d.csv"), "kept")
    assert profile.repeated.repeats == 360 and profile.label_errors == []
    named = {"format": "csv", "path": "d.csv", "label": "kept", "features": {"column 1": {"type": "numeric"}}}
    document = {"name": "members", "model": {"name": "mlp"}, "data": named}
    assert inspect_recipe(recipe(tmp_path, json.dumps(document))).repeated.repeats == 0


@pytest.mark.parametrize(
    ("values", "task", "reason"),
    [
        (
            [row % 10 for row in range(300)],
            "classification",
            "10 classes, because it holds few different integers; to predict the number task: regression",
        ),
        ([row % 2 for row in range(300)], "classification", ": 2 classes"),
        ([row % 12 for row in range(300)], "classification", "12 classes"),
        ([int(row**0.5) % 12 for row in range(300)], "classification", "12 classes"),
        (
            [*[5] * 10, *(score for score in range(11) for _ in range(15 + 5 * min(score, 10 - score)))],
            "regression",
            "a score: integers that are the rarer the farther they are from 5, so a regression; for classes task: ",
        ),
        (["bad"] * 12 + [row % 12 for row in range(288)], "classification", "13 classes"),
        ([row % 25 for row in range(300)], "regression", "more than 20 different integers, so a regression"),
        ([*range(11)] * 27 + [11] * 3, "regression", "more than 10 different integers, some with fewer than 10 rows"),
        ([0, 1, *[2 + row % 4 for row in range(298)]], "regression", "integers of which 2 have fewer than 3 rows"),
        ([0] * 170 + [1, 2, 3, 7, 12] * 26, "regression", "a count: most are 0, and some numbers up to 12 never occur"),
        ([0] * 170 + [1, 2, 3, 4, 6] * 26, "classification", "6 classes"),
        ([f"{row % 25:03}" for row in range(300)], "classification", "25 classes"),
        (["ab"[row % 2] + (";c" if row % 3 else "") for row in range(300)], "multi_label", "any of 3 classes a row"),
        (["ab"[row % 2] + ("|c" if row % 3 else "") for row in range(300)], "multi_label", "any of 3 classes a row"),
        (["a; b", "c"] * 150, "classification", "2 classes"),
    ],
)
def test_the_values_of_the_label_say_the_task_and_the_draft_says_why(
    tmp_path: Path, values: list[object], task: str, reason: str
) -> None:
    random = np.random.default_rng(3)
    lines = [f"{random.normal():.3f},{value}" for value in values]
    (tmp_path / "d.csv").write_text("\n".join(["z,kept", *lines]) + "\n")
    text, guesses = draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), "kept"))
    drafted = recipe(tmp_path, text)
    assert drafted.task == task and reason in guesses[0]
    assert drafted.evaluate.gates[0].confidence and drafted.evaluate.gates[1].min_difference is not None
    assert check_first(drafted) == "the first 300 rows of d.csv"


@pytest.mark.parametrize(
    ("label", "values", "condition", "kept"),
    [
        ("kept", [1.5, 2.5, "NA", ""], "not missing(kept + 0)", 150),
        ("kept", [*[1.5, 2.5, "NA", ""] * 74, 1.5, 2.5, 1.5, "6.2\x1a"], "not missing(kept + 0)", 152),
        ("is kept", [1, 0, "NA", ""], "not missing(column('is kept') + 0)", 150),
        ("kept", ["no", "yes", "NA", ""], "not missing(kept)", 225),  # NA may be the name of a class
        ("kept", ["no", "yes"] * 50 + ["it's"], """kept not in ["it's"]""", 298),
        ("kept", [1, 0] * 60 + [7, "NA"], "not missing(kept + 0) and kept not in [7]", 296),
        ("kept", ["no", "yes"], None, 300),
    ],
)
def test_rows_without_a_label_or_of_a_class_that_no_split_can_hold_are_drafted_as_left_out(
    tmp_path: Path, label: str, values: list[object], condition: str | None, kept: int
) -> None:
    random = np.random.default_rng(3)
    lines = [f"{random.normal():.3f},{values[row % len(values)]}" for row in range(300)]
    (tmp_path / "d.csv").write_text("\n".join([f"z,{label}", *lines]) + "\n")
    text, guesses = draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), label))
    drafted = recipe(tmp_path, text)
    assert drafted.data.where == condition
    assert [guess.startswith("where: ") for guess in guesses].count(True) == (condition or "").count("not ")
    assert check_first(drafted) == "the first 300 rows of d.csv"
    profile = inspect_recipe(drafted)
    assert profile.rows == kept
    if profile.classes:
        assert min(profile.classes.values()) >= 3
        assert f"(about {max(profile.classes.values()) / kept:.3f})" in guesses[-1]


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("it is {}", "Name"),
        ('"{},5"', "It holds numbers with a comma"),
        ("${}.00", "It holds amounts of money"),
        ("{}%", "It holds percentages"),
        ("{} kg", "It holds numbers with a unit"),
    ],
)
def test_a_label_of_texts_that_hardly_repeat_is_refused(tmp_path: Path, cell: str, hint: str) -> None:
    rows = "".join(f"{row % 7},{cell.format(row)}\n" for row in range(300))
    (tmp_path / "d.csv").write_text("z,said\n" + rows)
    with pytest.raises(
        TrainyardError, match=rf"'said' has 300 different values in 300 rows, too many for classes\. {hint}"
    ):
        draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), "said"))


@pytest.mark.parametrize(
    ("name", "values", "is_id"),
    [
        ("row", [7 + row for row in range(60)], True),
        ("income", [35_000 + 671 * row for row in range(60)], False),
        ("rows", [*range(1, 13)], True),
        ("pat_id", [35_000 + 671 * row for row in range(60)], True),
        ("seconds", [1_700_000_000 + 5 * row for row in range(60)], True),
        ("Year", [*range(1871, 1931)], False),
        ("time", [*range(1, 61)], True),
        ("year_id", [*range(1871, 1931)], True),
    ],
)
def test_integers_are_an_id_if_measured_ones_would_repeat(
    tmp_path: Path, name: str, values: list[int], is_id: bool
) -> None:
    random = np.random.default_rng(5)
    lines = [f"{value},{random.normal():.3f},{random.integers(2)}" for value in values]
    (tmp_path / "d.csv").write_text("\n".join([f"{name},z,kept", *lines]) + "\n")
    profile = inspect(str(tmp_path / "d.csv"), "kept")
    drafted = recipe(tmp_path, draft_recipe("members", "d.csv", profile)[0])
    assert (name not in drafted.data.features) == is_id
    assert any("looks like an id" in finding for finding in profile.findings) == is_id


@pytest.mark.parametrize(
    ("rows", "label", "split"),
    [
        (
            50,
            lambda draw: f"{draw.normal():.2f}",
            {"train": 0.6, "eval": 0.2, "test": 0.2},
        ),
        (500, lambda draw: f"{draw.normal():.2f}", {}),
        (500, lambda draw: f"{draw.integers(15) / 2}", {}),
        (500, lambda draw: "ab"[draw.integers(2)], {}),
        (500, lambda draw: "ab"[int(draw.random() < 0.15)], {"by": "class", "train": 0.6, "eval": 0.2, "test": 0.2}),
        (500, lambda draw: "ab"[int(draw.random() < 0.05)], {"by": "class", "train": 0.6, "eval": 0.2, "test": 0.2}),
        (50, lambda draw: "ab"[draw.integers(2)], {"by": "class", "train": 0.6, "eval": 0.2, "test": 0.2}),
    ],
)
def test_no_split_of_a_table_of_few_rows_or_combinations_is_drafted_empty(
    tmp_path: Path, rows: int, label: Callable[[np.random.Generator], str], split: dict[str, object]
) -> None:
    draw = np.random.default_rng(6)
    lines = [f"{row},{'abc'[draw.integers(3)]},{'xy'[draw.integers(2)]},{label(draw)}" for row in range(rows)]
    (tmp_path / "d.csv").write_text("\n".join([",wool,tension,breaks", *lines]) + "\n")
    text, guesses = draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), "breaks"))
    drafted = recipe(tmp_path, text)
    assert drafted.data.split.model_dump(exclude_defaults=True) == split
    assert sum(guess.startswith("split ") for guess in guesses) == ("by" in split) + ("train" in split)


def test_numbers_padded_with_zeros_are_codes(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    lines = [f"{random.integers(30):05},{random.normal():.3f},{random.integers(2)}" for _ in range(300)]
    (tmp_path / "d.csv").write_text("\n".join(["zip,z,kept", *lines]) + "\n")
    drafted = recipe(tmp_path, draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), "kept"))[0])
    assert drafted.data.features["zip"].type == "category"


def test_a_name_that_no_recipe_can_give_is_left_out_with_its_reason(tmp_path: Path) -> None:
    lines = [f"{row * 1.5},{row * 0.5},{row % 2}" for row in range(60)]
    (tmp_path / "d.csv").write_text("\n".join([f"{'x' * 300},z,kept", *lines]) + "\n")
    _, guesses = draft_recipe("members", "d.csv", inspect(str(tmp_path / "d.csv"), "kept"))
    assert any("its name has 300 characters, and at most 256 are allowed" in guess for guess in guesses)


def test_a_window_of_days_is_checked_and_inspected_by_its_latest_day_with_files(tmp_path: Path) -> None:
    day = datetime.now(UTC).date() - timedelta(days=3)
    table(tmp_path).rename(tmp_path / f"members-{day.isoformat()}.csv")
    features = {"age": {"type": "numeric"}}
    data = {"format": "csv", "path": "members-%Y-%m-%d.csv", "window_days": 7, "label": "kept", "features": features}
    windowed = recipe(tmp_path, json.dumps({"name": "members", "model": {"name": "mlp"}, "data": data}))
    assert check_first(windowed) == f"the first 300 rows of members-{day.isoformat()}.csv"
    assert inspect_recipe(windowed).rows == 300
    gone = windowed.data.model_copy(update={"path": str(tmp_path / "none-%Y-%m-%d.csv")})
    with pytest.raises(DataError, match="none-"):
        check_first(windowed.model_copy(update={"data": gone}))


@pytest.mark.parametrize(("bundled", "format"), [("digits", "csv"), ("breast_cancer", "parquet")])
def test_bundled_data_in_another_format_are_refused(bundled: str, format: str) -> None:
    features = {"mean_radius": {"type": "numeric"}}
    data = {"format": format, "bundled": bundled, "label": "diagnosis", "features": features}
    with pytest.raises(ValidationError, match=rf"bundled: {bundled} is written as \w+, not as {format}\. Set format: "):
        Recipe.model_validate({"name": "b", "model": {"name": "mlp"}, "data": data})


def test_images_of_twelve_bits_are_drafted_with_their_white_level(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "pics" / label).mkdir(parents=True)
        for index in range(6):
            pixels = np.random.default_rng(index).integers(0, 4096, (32, 32)).astype(np.uint16)
            Image.fromarray(pixels).save(tmp_path / "pics" / label / f"{index}.png")
    text, guesses = draft_recipe("deep", "pics", inspect(str(tmp_path / "pics")))
    drafted = recipe(tmp_path, text)
    assert (drafted.data.white_level, drafted.data.channels) == (4095, 1)
    assert "white_level 4095: 16 bits a channel, of which few are used" in guesses


def test_a_draft_tells_the_model_of_gaps_and_names_values_far_from_the_others(tmp_path: Path) -> None:
    rows = [
        f"{index % 39 or ''},{'-9999' if index % 7 == 0 else index / 9},{index % 13},{index % 2}"
        for index in range(400)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["gap,temperature,whole,label", *rows]))
    text, guesses = draft_recipe("a", "a.csv", inspect(str(tmp_path / "a.csv"), "label"))
    assert "gap: {type: numeric, indicator: true}" in text and "whole: {type: numeric}" in text
    assert "indicator: the model is told which values of gap are missing" in guesses
    [far] = [guess for guess in guesses if "far from" in guess]
    assert far.startswith("'temperature' is -9999 in 14.5% of its cells, far from the others, ")
    assert far.endswith("declare it, missing: [-9999]")
