"""Labels of images in a CSV file beside them."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainyard.contract import keys
from trainyard.errors import ConfigurationError, DataError
from trainyard.quality import schema
from trainyard.quality.inspect import inspect, inspect_recipe, statistics_of
from trainyard.quality.recipe_check import check_first
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe, load
from trainyard.steps.preprocess.readers.files import find_files, with_listed_labels

NAMES = [f"{number}.png" if number % 2 else f"more/{number}.png" for number in range(30)]


def pets(folder: Path, rows: list[str] | None = None, header: str = "file,label") -> Path:
    generator = np.random.default_rng(1)
    for name in NAMES:
        (folder / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (40, 40, 3)).astype(np.uint8)).save(folder / "pets" / name)
    rows = rows if rows is not None else [f"{name},{'cat' if index % 3 else 'dog'}" for index, name in enumerate(NAMES)]
    (folder / "pets" / "labels.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "pets"


def recipe(root: Path, more: str = "", task: str = "classification", split: str = "") -> Recipe:
    (root.parent / "p.yaml").write_text(
        f"name: p\ntask: {task}\nmodel: {{name: cnn_small}}\n"
        f"data: {{format: image_folder, path: pets, labels: labels.csv, image_size: [32, 32]{more}{split}}}\n"
    )
    return load(str(root.parent / "p.yaml"))


def read(made: Recipe) -> tuple[dict[str, tuple[str, ...]], dict[tuple[str, str], str]]:
    """Return the cells of each image, and what is set aside by name and reason, as preprocess reads them."""
    files = with_listed_labels(find_files(made.data, made.data.path or ""), made)
    assert files.labels is not None
    faults = [files.labels.fault(files.name(path)) for path in files.paths]
    return files.labels.cells, {(item.key, item.reason): item.detail for item in (*files.bad, *faults) if item}


def test_a_csv_file_beside_images_is_drafted_and_read_as_their_labels(tmp_path):
    root = pets(tmp_path)
    profile = inspect(str(root))
    text, guesses = draft_recipe("p", "pets", profile)
    (tmp_path / "p.yaml").write_text(text)
    made = load(str(tmp_path / "p.yaml"))
    assert (made.data.labels_file, made.data.label, made.task) == ("labels.csv", "label", "classification")
    assert any(guess.startswith("2 classes, by 'label' of labels.csv: cat, dog; a file beside") for guess in guesses)
    assert profile.classes == {"cat": 20, "dog": 10} == inspect_recipe(made).classes
    assert check_first(made) == "30 of 30 images with 'label' of labels.csv"
    labels, bad = read(made)
    assert labels == {name: ("cat" if index % 3 else "dog",) for index, name in enumerate(NAMES)} and not bad


def test_several_classes_of_an_image_are_drafted_and_read(tmp_path):
    root = pets(tmp_path, [f"{name},{['a', 'a;b', 'b;c', 'c'][index % 4]}" for index, name in enumerate(NAMES)])
    text, guesses = draft_recipe("p", "pets", inspect(str(root)))
    (tmp_path / "p.yaml").write_text(text)
    made = load(str(tmp_path / "p.yaml"))
    assert (made.task, made.data.label_separator) == ("multi_label", ";")
    assert any(guess.startswith("3 classes, by 'label' of labels.csv: a, b, c, several per image") for guess in guesses)
    assert check_first(made) == "30 of 30 images with 'label' of labels.csv"
    assert read(made)[0][NAMES[2]] == ("b;c",)


def test_what_does_not_fit_is_set_aside_with_its_reason(tmp_path):
    rows = [f"{name},cat" for name in NAMES[:-2]]
    rows += [f"{NAMES[0]},cat", f"./{NAMES[1]},dog", "gone.png,cat", "../secret.png,cat", "/etc/x.png,cat", "ragged"]
    made = recipe(pets(tmp_path, rows))
    labels, found = read(made)
    assert len(labels) == 27 and NAMES[0] in labels, "equal rows count once"
    assert found[NAMES[1], "contradicting_labels"] == "labels.csv says ('cat',) in row 3 and ('dog',) in row 31"
    assert found["labels.csv:32", "missing_image"] == "there is no image 'gone.png'"
    assert {key for key in found if key[1] == "name_out_of_root"} == {
        ("labels.csv:33", "name_out_of_root"),
        ("labels.csv:34", "name_out_of_root"),
    }
    assert {key for key in found if key[1] == "missing_label"} == {(name, "missing_label") for name in NAMES[-2:]}
    assert ("labels.csv:35", "ragged_row") in found and len(found) == 7
    with pytest.raises(
        DataError, match=r"data\.labels: 3 of 30 images have no row in labels\.csv, or rows that differ"
    ):
        check_first(made)


def test_the_splits_of_a_column_are_read_from_the_file(tmp_path):
    root = pets(
        tmp_path, [f"{name},{'ab'[index % 2]},p{index // 3}" for index, name in enumerate(NAMES)], "image,label,who"
    )
    labels, bad = read(recipe(root, split=", split: {by: group, column: who}"))
    assert labels[NAMES[3]] == ("b", "p1") and len(labels) == 30 and not bad
    with pytest.raises(DataError, match=r"labels\.csv: row 1: no column 'patient'"):
        read(recipe(root, split=", split: {by: group, column: patient}"))


def test_the_file_is_read_as_any_csv_file(tmp_path):
    root = pets(tmp_path)
    rows = [f"{name};{'café' if index % 3 else 'dog'}" for index, name in enumerate(NAMES)]
    (root / "labels.csv").write_text("\n".join(["# drawn by hand", "file;label", *rows]), "cp1252")
    text, _ = draft_recipe("p", "pets", inspect(str(root)))
    (tmp_path / "p.yaml").write_text(text)
    made = load(str(tmp_path / "p.yaml"))
    assert (made.data.delimiter, made.data.encoding, made.data.comment) == (";", "cp1252", "#")
    assert check_first(made) == "30 of 30 images with 'label' of labels.csv"
    assert sorted({*read(made)[0].values()}) == [("café",), ("dog",)]


def test_a_changed_label_changes_the_key_of_the_examples(tmp_path):
    made = recipe(pets(tmp_path))
    before = keys.fingerprint(made)
    (tmp_path / "pets" / "labels.csv").write_text("file,label\n1.png,cat\n")
    assert keys.fingerprint(made) != before


def test_a_file_of_labels_that_cannot_be_is_one_sentence(tmp_path):
    root = pets(tmp_path, header="name,label")
    with pytest.raises(
        DataError, match=r"labels\.csv: row 1: no column 'file' names the images\..*Name the column file, "
    ):
        read(recipe(root))
    with pytest.raises(DataError, match=r"data\.labels: there is no file labels\.csv in .*, which data\.path names"):
        (root / "labels.csv").unlink()
        read(recipe(root))


def test_a_table_about_images_in_class_folders_does_not_become_their_labels(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for index in range(3):
            Image.new("L", (20, 20), index * 40).save(tmp_path / "pets" / label / f"{index}.png")
    rows = [f"{label}/{index}.png,{index * 7},x" for label in ("cat", "dog") for index in range(3)]
    (tmp_path / "pets" / "sizes.csv").write_text("file,width,camera\n" + "\n".join(rows))
    assert inspect(str(tmp_path / "pets")).classes == {"cat": 3, "dog": 3}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            "format: csv, path: x, labels: l.csv, features: {a: {type: numeric}}",
            "data.labels: is a file beside images of",
        ),
        ("format: image_folder, path: x, labels: ../l.csv", "data.labels: '../l.csv' leads out of data.path"),
        ("format: image_folder, path: x, labels: /l.csv", "data.labels"),
        ("format: image_folder, path: x, labels: l.txt", "data.labels"),
        (
            "format: image_folder, path: x, labels: l.csv, split: {by: folder}",
            "and split: by: folder has several folders",
        ),
        ("format: image_folder, path: x, split: {by: group, column: who}", "goes by a column, and these are images"),
        ("format: image_folder, path: x}\ntask: regression\npush: {", "takes columns, or images with a number each"),
        (
            "format: image_folder, path: x, labels: l.csv, label: height}\ntask: regression\npush: {",
            "'height' stands for the height of the image file itself in statistics",
        ),
        (
            "format: image_folder, path: x, labels: l.csv, schema: s}\ntask: regression\npush: {",
            "names the class of each, and a regression has no classes",
        ),
    ],
)
def test_a_recipe_says_where_labels_can_be(data, sentence):
    model = "mlp" if "csv, path" in data else "cnn_small"
    with pytest.raises(ConfigurationError, match=sentence):
        documents.parse(f"name: p\ndata: {{{data}}}\nmodel: {{name: {model}}}", Recipe, name="x", overrides=[])


def test_a_draft_from_the_file_itself_says_to_name_the_folder(tmp_path):
    with pytest.raises(ConfigurationError, match=r"its rows name images.* Name their folder"):
        draft_recipe("p", "pets", inspect(str(pets(tmp_path) / "labels.csv")))
    rows = [f"{name},{index % 7},{'ab'[index % 2]}" for index, name in enumerate(NAMES)]
    table = inspect(str(pets(tmp_path / "other", rows, "file,age,label") / "labels.csv"))
    assert "file (names of images; to learn from the images, draft" in draft_recipe("p", "pets", table)[0]


def test_the_column_of_the_labels_is_named_if_the_file_has_several(tmp_path):
    rows = [f"{name},p{index},{'ab'[index % 2]}" for index, name in enumerate(NAMES)]
    root = pets(tmp_path, rows, "file,patient,species")
    assert inspect(str(root)).labels_file == "", "no column is likely"
    assert inspect(str(root), "species").classes == {"a": 15, "b": 15}
    with pytest.raises(ConfigurationError, match=r"--label age: .* no CSV file beside them has this column"):
        inspect(str(root), "age")


def numbers(folder: Path) -> Path:
    rows = [f"{name},{index / 4 + 0.1:.2f},{index % 7},p{index // 3}" for index, name in enumerate(NAMES)]
    return pets(folder, rows, "file,weight,age,who")


def test_a_number_of_each_image_is_drafted_inspected_and_checked_as_a_regression(tmp_path):
    profile = inspect(str(numbers(tmp_path)), "weight")
    text, guesses = draft_recipe("p", "pets", profile)
    (tmp_path / "p.yaml").write_text(text)
    made = load(str(tmp_path / "p.yaml"))
    assert (made.task, made.data.label, made.evaluate.gates[0].metric) == ("regression", "weight", "r2")
    assert guesses[0] == (
        "'weight' of labels.csv: numbers, so a regression; a file beside the images, which has nearly all of their "
        "names"
    )
    column = profile.columns[-1]
    assert (column.name, column.statistics.min, column.statistics.max) == ("weight", 0.1, 7.35)
    assert profile.classes == {} and inspect_recipe(made).columns[-1] == column
    assert check_first(made) == "30 of 30 images with 'weight' of labels.csv"
    with pytest.raises(ConfigurationError, match="a schema of images lists classes"):
        schema.draft(profile, datetime.date(2026, 1, 1))


def test_several_numbers_of_each_image_are_checked(tmp_path):
    root = numbers(tmp_path)
    made = recipe(root, ", targets: [weight, age]", "regression", ", split: {by: group, column: who}")
    assert check_first(made) == "30 of 30 images with 'weight', 'age' of labels.csv"
    assert read(made)[0][NAMES[1]] == ("0.35", "1", "p0")
    text = (root / "labels.csv").read_text().replace(",0.35,", ",heavy,")
    (root / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=r"data.targets: is a number, but 1 of 30 cells .* labels.csv:3 'heavy'"):
        check_first(made)


def test_labels_are_compared_with_those_of_the_same_kind_and_with_no_others(tmp_path):
    before, now, bare = (pets(tmp_path / name) for name in ("before", "now", "bare"))
    (bare / "labels.csv").unlink()
    for folder, classes in ((now, {"cat", "dog"}), (bare, set())):
        first, second = statistics_of(str(before), str(folder))
        assert first.classes.keys() == second.classes.keys() == classes
    for name in ("cat", "dog"):
        (tmp_path / "folders" / name).mkdir(parents=True)
        Image.new("L", (20, 20), 40).save(tmp_path / "folders" / name / "0.png")
    first, second = statistics_of(str(tmp_path / "folders"), str(tmp_path / "folders"))
    assert first.classes.keys() == second.classes.keys() == {"cat", "dog"}
