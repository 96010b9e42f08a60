"""The step: from the recipe's data to examples that train, evaluate and export share."""

from __future__ import annotations

from pathlib import Path

from trainyard.contract import keys
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.spec.recipe import Recipe


def run(recipe: Recipe, output: Path, beam_options: str = "", day: str = "") -> None:
    """Read, check, split and transform the recipe's data into example shards with their transform graph.

    beam_options are Beam's own, such as `--runner=PrismRunner`; by default the pipelines run in this process.
    day: if the recipe reads a window of days, the day after its last one, YYYY-MM-DD; today in UTC by default.
    """
    if recipe.data.format == "none":
        _write_empty(recipe, output)
        return
    from trainyard.steps.preprocess.prepare import prepare  # TensorFlow and Beam: seconds

    prepare(recipe, output, beam_options, day)


def _write_empty(recipe: Recipe, output: Path) -> None:
    """Write the examples.json of a recipe without data into `output`."""
    Examples(
        task=recipe.task,
        label="",
        labels=None,
        splits={},
        features=[],
        raw_features=[],
        image=None,
        quarantined=0,
        quarantine={},
        warnings=[],
        fingerprint=keys.fingerprint(recipe),
    ).write(output)
