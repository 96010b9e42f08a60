"""A table that is kept by day, through the whole preprocess step."""

from __future__ import annotations

from pathlib import Path

from trainyard.contract.artifacts.preprocess import Examples, Window
from trainyard.contract.statistics.drift import Statistics
from trainyard.runtime import step
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.run import run

RECIPE = """
name: sales
data:
  format: csv
  path: {folder}/day=%Y-%m-%d
  window_days: 3
  max_missing_days: 1
  label: sold
  features: {{price: {{type: numeric}}}}
model: {{name: mlp}}
"""


def test_a_run_reads_the_days_of_its_window_alone_and_says_which_are_missing(tmp_path: Path) -> None:
    for number, day in enumerate(("2026-03-01", "2026-03-02", "2026-03-04", "2026-03-05")):
        rows = "".join(f"{1000 * number + index},{'yes' if index % 2 else 'no'}\n" for index in range(100))
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "part.csv").write_text(f"price,sold\n{rows}")
    output = str(tmp_path / "output")
    recipe = documents.parse(RECIPE.format(folder=tmp_path), Recipe, name="sales")
    step.execute(run, output, recipe=recipe, day="2026-03-05")
    examples = Examples.read(output)
    assert sum(split.examples for split in examples.splits.values()) == 200
    assert examples.window == Window(first="2026-03-02", last="2026-03-04", missing=["2026-03-03"])
    assert examples.warnings == ["1 days from 2026-03-02 to 2026-03-04 hold no files: 2026-03-03."]
    prices = Statistics.read(output).features["price"]["train"]
    assert prices.min is not None and prices.max is not None
    assert prices.min >= 1000 and prices.max < 2100, "the days 2 and 4 of March, not 1 and 5"
