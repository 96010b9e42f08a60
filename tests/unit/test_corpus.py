"""Tables with the shapes of public ones: the draft of each fits it, or a sentence says why there is none."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from trainyard.errors import TrainyardError
from trainyard.quality import schema as schema
from trainyard.quality.figures import page
from trainyard.quality.inspect import inspect, inspect_recipe
from trainyard.quality.recipe_check import check_first
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe

TODAY = datetime.date(2026, 1, 1)
ROWS = 120
Cell = Callable[[int], object]


def drawn(seed: int = 0) -> Cell:
    """A measured number of each row."""
    numbers = np.random.default_rng(seed).normal(size=50_000)
    return lambda row: f"{numbers[row]:.3f}"


def cell(values: Iterable[object], seed: int = 1) -> Cell:
    """One of `values` for each row, without a pattern."""
    listed = list(values)
    places = np.random.default_rng(seed).integers(0, len(listed), 50_000)
    return lambda row: listed[places[row]]


def counts(row: int) -> object:
    return int(np.random.default_rng(row).poisson(8))


def table(columns: dict[str, Cell], rows: int = ROWS, separator: str = ",", end: str = "\n") -> str:
    lines = [separator.join(columns)] + [
        separator.join(f"{cell(row)}" for cell in columns.values()) for row in range(rows)
    ]
    return end.join([*lines, ""])


def index(row: int) -> object:
    return row + 1


YES_NO = cell(["yes", "no"])
FITTING: dict[str, tuple[str, str, set[str]]] = {
    "row names as R writes them": (table({'"rownames"': index, "z": drawn(), "y": YES_NO}), "classification", {"z"}),
    "an index as pandas writes it": (table({"": index, "z": drawn(), "y": YES_NO}), "classification", {"z"}),
    "several columns without a name": (
        table({"": index, "z": drawn(), " ": drawn(2), "y": YES_NO}),
        "classification",
        {"z"},
    ),
    "an index of groups": (
        table({"": lambda row: f"{row // 9}.{row % 9}", "z": drawn(), "y": YES_NO}),
        "classification",
        {"z"},
    ),
    "padded cells": (
        table({"work": cell([" Private", " State-gov", " ?"]), "z": drawn(), "y": cell([" <=50K", " >50K."])}),
        "classification",
        {"work", "z"},
    ),
    "factors of R": (
        table({'"sex"': cell(['"male"', '"female"', "NA"]), "z": drawn(), "y": cell(['"a"', '"b"', '"c"'], 7)}),
        "classification",
        {"sex", "z"},
    ),
    "logicals of R": (
        table({"ok": cell(["TRUE", "FALSE", "NA"]), "z": drawn(), "y": cell(["TRUE", "FALSE"])}),
        "classification",
        {"ok", "z"},
    ),
    "numbers with gaps": (
        table({"z": cell(["NA", "", "1.5", "2", "7e2"]), "y": cell(["0.0", "1.0", ""])}),
        "classification",
        {"z"},
    ),
    "targets with gaps": (table({"z": drawn(), "y": cell(["1.5", "2.25", "8", "NA"])}), "regression", {"z"}),
    "days": (
        table({"day": lambda row: datetime.date(1967, 7, 1) + datetime.timedelta(row), "z": drawn(), "y": drawn(3)}),
        "regression",
        {"day", "z"},
    ),
    "days of the USA": (
        table({"day": lambda row: f"{row % 12 + 1}/{row % 28 + 1}/2016", "z": drawn(), "y": YES_NO}),
        "classification",
        {"z"},
    ),
    "counts": (table({"z": drawn(), "y": counts}), "regression", {"z"}),
    "half stars": (table({"z": drawn(), "y": cell(["3.5", "4", "4.5", "5"])}), "regression", {"z"}),
    "grades": (table({"z": drawn(), "y": cell([1, 2, 3, 4, 5])}), "classification", {"z"}),
    "a rare grade": (table({"z": drawn(), "y": lambda row: 9 if row == 7 else row * 7 % 5}), "classification", {"z"}),
    "postal codes": (
        table({"zip": cell(["01067", "80331", "04109"]), "z": drawn(), "y": YES_NO}),
        "classification",
        {"zip", "z"},
    ),
    "incomes of towns": (table({"income": lambda row: 35_000 + row * 331, "y": YES_NO}), "classification", {"income"}),
    "wide": (
        table({f"gene {number}": drawn(number) for number in range(200)} | {"y": YES_NO}, 40),
        "classification",
        {f"gene {n}" for n in range(200)},
    ),
    "tall": (table({"z": drawn(), "y": YES_NO}, 20_000), "classification", {"z"}),
    "constant and empty columns": (
        table({"one": lambda _: "x", "none": lambda _: "", "na": lambda _: "NA", "z": drawn(), "y": YES_NO}),
        "classification",
        {"z"},
    ),
    "decimal commas": (
        table({"fee": lambda row: f"{row},50", "z": drawn(), "y": YES_NO}, separator=";"),
        "classification",
        {"z"},
    ),
    "tabs, CR LF and a byte-order mark": (
        "\ufeff" + table({"z": drawn(), "y": YES_NO}, separator="\t", end="\r\n"),
        "classification",
        {"z"},
    ),
    "lists": (table({"z": drawn(), "y": cell(["rock;pop", "pop", "rock", "folk;rock"])}), "multi_label", {"z"}),
    "prose": (
        table({"said": lambda row: f"it was bought for {row} francs by a friend", "z": drawn(), "y": YES_NO}),
        "classification",
        {"said", "z"},
    ),
    "names that mean something to programs": (
        table({"class": drawn(), "from": drawn(2), "image": drawn(3), "self": YES_NO, "y": cell("ab", 7)}),
        "classification",
        {"class", "from", "image", "self"},
    ),
    "questions as names": (
        table({'"How often, <br>if ""ever"", do you fly?"': cell(["never", "daily"]), "y": cell("ab", 7)}),
        "classification",
        {'How often, <br>if "ever", do you fly?'},
    ),
    "lines that end with CR": (table({"z": drawn(), "y": YES_NO}, end="\r"), "classification", {"z"}),
    "twenty-one rows": (table({"z": drawn(), "y": YES_NO}, 21), "classification", {"z"}),
}
REFUSED = {
    "no rows": ("z,y\n", "there are no rows below the header"),
    "one row": ("z,y\n1.5,a\n", "has one value in all rows"),
    "a constant label": (table({"z": drawn(), "y": lambda _: "x"}), "label 'y' has one value in all rows, 'x'"),
    "a label that is missing": (table({"z": drawn(), "y": lambda _: ""}), "label 'y' is missing in all rows"),
    "two rows": (table({"z": drawn(), "y": index}, 2), "'y' has 2 different values in 2 rows, too many for classes"),
    "addresses": (table({"z": drawn(), "y": lambda row: f"{row} Main St"}, 90), "too many for classes"),
    "a label of texts": (table({"z": cell([1, 2]), "y": lambda row: f"tweet {row}"}), "too many for classes"),
    "nothing but ids": (
        table({"rownames": index, "y": YES_NO}),
        r"no column to learn from is left \(left out: rownames .+\)\. To learn from one of them",
    ),
    "a name twice": (table({"z": drawn(), "y": YES_NO}).replace("z", "y", 1), "names column 'y' twice"),
    "no header": ("1.5,2\n2.5,1\n", "holds numbers alone"),
}


def drafted(folder: Path, text: str) -> Recipe:
    file = folder / "table.csv"
    file.write_text(text, encoding="utf-8", newline="")
    profile = inspect(str(file), "y")
    assert "y" in page(profile) and schema.draft(profile, TODAY)
    inspect(str(file))  # without a label too
    (folder / "table.yaml").write_text(draft_recipe("table", file.name, profile)[0], encoding="utf-8")
    return recipes.load(str(folder / "table.yaml"))


@pytest.mark.parametrize("shape", FITTING)
def test_a_table_of_this_shape_has_a_draft_that_fits_it(tmp_path: Path, shape: str) -> None:
    text, task, features = FITTING[shape]
    recipe = drafted(tmp_path, text)
    assert (recipe.task, set(recipe.data.features)) == (task, features)
    assert check_first(recipe).endswith("rows of table.csv")
    profile = inspect_recipe(recipe)
    assert profile.rows and (task != "classification" or min(profile.classes.values()) >= 1 < len(profile.classes))


@pytest.mark.parametrize("shape", REFUSED)
def test_a_table_of_this_shape_is_refused_with_a_sentence(tmp_path: Path, shape: str) -> None:
    text, sentence = REFUSED[shape]
    with pytest.raises(TrainyardError, match=sentence) as refused:
        drafted(tmp_path, text)
    assert refused.value.exit_code in (10, 20)
