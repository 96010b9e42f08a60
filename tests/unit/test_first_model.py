"""A table's first model is that of a known truth, and nothing but its training rows says which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trainyard.quality.recipe_draft import Comparison
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard_control.api import arguments

ROWS = 250


def table(folder: Path, truth: str, changed: frozenset[int] = frozenset()) -> Path:
    """Write a table of two classes with missing values; those of the rows `changed` are drawn anew."""
    draw = np.random.default_rng(4)
    numbers = draw.normal(size=(ROWS, 4))
    score = numbers @ [2.0, -1.5, 1.0, 0.5] if truth == "linear" else 3 * np.sign(numbers[:, 0] * numbers[:, 1])
    labels = draw.random(ROWS) < 1 / (1 + np.exp(-score))
    labels = np.where(np.isin(np.arange(ROWS), list(changed)), ~labels, labels)
    cells = np.where(draw.random((ROWS, 4)) < 0.02, "", np.char.mod("%.4f", numbers))
    lines = [",".join([*row, "red" if at % 3 else "blue", str(int(label))]) for at, (row, label) in
             enumerate(zip(cells, labels, strict=True))]  # fmt: skip
    (folder / "t.csv").write_text("\n".join(["a,b,c,d,color,y", *lines]) + "\n")
    return folder / "t.csv"


def drafted(folder: Path, truth: str, changed: frozenset[int] = frozenset()) -> tuple[Recipe, str]:
    text, _ = arguments.draft(str(table(folder, truth, changed)), folder / "t.yaml", "y")
    (folder / "t.yaml").write_text(text)
    return recipes.load(str(folder / "t.yaml")), text


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, str]:
    return drafted(tmp_path_factory.mktemp("linear"), "linear")


def test_the_draft_names_the_model_of_the_truth_with_its_figures(tmp_path: Path, linear: tuple[Recipe, str]) -> None:
    for name, (recipe, text) in (("linear", linear), ("_trees", drafted(tmp_path, "steps"))):
        assert recipe.model.name == ("mlp" if name == "linear" else "boosted_trees")
        rows = f"{len(training(recipe)):,} training rows"
        assert f"First model by cross-validated log loss on {rows}" in recipe.description
        assert f"{name}: cross-validated log loss on {rows}: " in text


def training(recipe: Recipe) -> NDArray[np.int64]:
    """Return the positions of the training rows of `recipe` in its table."""
    from trainyard.steps.preprocess.training_rows import training_rows

    rows = training_rows(recipe, ROWS)
    assert rows is not None
    return np.array([int(source.rpartition(":")[2]) - 2 for source in rows["source"].to_pylist()])


def test_labels_outside_the_training_split_change_no_figure(tmp_path: Path, linear: tuple[Recipe, str]) -> None:
    recipe, before = linear
    others = frozenset(range(ROWS)) - set(training(recipe).tolist())
    assert len(others) > ROWS / 10
    _, after = drafted(tmp_path, "linear", others)
    figures = [line for line in before.splitlines() if line.startswith("#   model")]
    assert figures and figures == [line for line in after.splitlines() if line.startswith("#   model")]


def test_an_environment_without_a_cpu_gets_a_network_and_the_reason(tmp_path: Path) -> None:
    text, _ = arguments.draft(str(table(tmp_path, "steps")), tmp_path / "t.yaml", "y", no_trees="the pool has GPUs")
    assert "#   model mlp: the pool has GPUs" in text and "boosted_trees" not in text


def test_a_large_table_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_COMPARED", ROWS - 1)
    recipe, text = drafted(tmp_path, "linear")
    assert recipe.model.name == "boosted_trees" and "without a comparison" in text


def test_the_smallest_loss_is_named_first() -> None:
    found = Comparison("log loss", 1200, {"linear": 0.3021, "small_trees": 0.25})
    assert found.best == "small_trees"
    assert found.text == "cross-validated log loss on 1,200 training rows: small_trees 0.25, linear 0.302"


def test_a_label_of_many_classes_gets_a_network_and_all_are_counted(tmp_path: Path) -> None:
    rows = [f"{number % 7},sku{number % 1_200:04d}" for number in range(24_000)]
    (tmp_path / "skus.csv").write_text("weight,sku\n" + "\n".join(rows) + "\n")
    text, _ = arguments.draft(str(tmp_path / "skus.csv"), tmp_path / "skus.yaml", "sku")
    assert "label 'sku': 1200 classes" in text
    assert "model mlp: boosted trees of more than 50 classes can diverge" in text and "boosted_trees" not in text


@pytest.mark.parametrize(
    ("stem", "name"),
    [("Wohnungen Köln", "wohnungen-koln"), ("2024_ventas_año", "ventas-ano"), ("売上", "recipe"), ("a–b", "a-b")],
)
def test_a_recipe_is_named_after_its_table_without_accents(stem: str, name: str) -> None:
    assert arguments.recipe_name(stem) == name
