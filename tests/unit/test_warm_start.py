"""Where a model belongs that began as the champion: named after it, and not made twice of the same data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from report_folders import training_with

from trainyard.contract.pipeline import Pipeline, TrainingPlan
from trainyard.contract.version import Champion
from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

COLD = recipes.load("digits")
WARM = recipes.load("digits", ["train.warm_start=champion"])
BEST = Champion(version=3, path="/models/3", digest="a" * 64, metrics={})
NEXT = Champion(version=4, path="/models/4", digest="b" * 64, metrics={})


def plan(root: str, recipe: Recipe, examples: str, best: Champion | None, again: bool = False) -> TrainingPlan:
    """Return what `recipe` trains from `examples` below `root` while `best` is the champion."""
    pipeline = Pipeline(root, recipe, {"preprocess": examples})
    pipeline.best = best
    model, arguments = pipeline.place("train", again)
    return TrainingPlan(model=model, start=arguments["start"])


def trained(folder: str, start: str, finished: str) -> None:
    with storage.stage(folder, producer="trainyard.train") as staging:
        training_with(warm_start=start, finished=finished).write(staging)


def test_only_a_warm_start_depends_on_the_champion(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert plan(root, COLD, "examples", BEST) == plan(root, COLD, "examples", None)
    first = plan(root, WARM, "examples", None)
    assert first.start == "" and first.model != plan(root, COLD, "examples", None).model
    assert plan(root, WARM, "examples", BEST) == TrainingPlan(model=f"{first.model}-from-{'a' * 16}", start="/models/3")


def test_a_model_that_became_the_champion_is_not_trained_on_with_the_same_data(tmp_path: Path) -> None:
    root = str(tmp_path)
    first = plan(root, WARM, "examples", BEST)
    trained(first.model, "/models/3", "2026-03-01T03:00:00+00:00")
    (tmp_path / "digits" / "train" / f"{Path(first.model).name}.failure.json").write_text(json.dumps({}))
    assert plan(root, WARM, "examples", NEXT) == first
    assert plan(root, WARM, "other examples", NEXT).start == "/models/4"
    again = plan(root, WARM, "examples", NEXT, again=True)
    assert again == TrainingPlan(model=first.model.replace("a" * 16, "b" * 16), start="/models/4")
    trained(again.model, "/models/4", "2026-03-02T03:00:00+00:00")
    assert plan(root, WARM, "examples", BEST) == again, "the newest one"


def test_a_warm_start_needs_what_it_starts_from_to_be_exported() -> None:
    with pytest.raises(
        ConfigurationError, match=r"train\.warm_start: takes the champion's model\.keras\. Add keras to"
    ):
        recipes.load("digits", ["train.warm_start=champion", "export.formats=[saved_model]"])


def test_other_weights_to_begin_with_give_another_model_and_the_same_ones_the_same(tmp_path: Path) -> None:
    def model(weights: Path | str) -> str:
        update = COLD.model.model_copy(update={"weights": str(weights)})
        return plan("/runs", COLD.model_copy(update={"model": update}), "examples", None).model

    file = tmp_path / "trained.keras"
    file.write_bytes(b"one")
    first = model(file)
    assert first != plan("/runs", COLD, "examples", None).model
    file.write_bytes(b"two")
    assert model(file) != first
    file.unlink()
    file.write_bytes(b"one")
    assert model(file) == first

    version = tmp_path / "models" / "3"
    with pytest.raises(
        ConfigurationError, match=r"models/3: is not a \.keras or \.weights\.h5 file or the folder of a"
    ):
        model(version)
    with storage.stage(str(version), producer="trainyard.push") as folder:
        (folder / "saved_model.pb").write_bytes(b"one")
    pushed = model(version)
    storage.remove(str(version))
    with storage.stage(str(version), producer="trainyard.push") as folder:
        (folder / "saved_model.pb").write_bytes(b"two")
    assert model(version) != pushed


def test_weights_that_are_no_file_are_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "gone.keras", "there is no such file"), (tmp_path / "pipe.keras", "is a named pipe")):
        if path.name == "pipe.keras":
            os.mkfifo(path)
        update = COLD.model.model_copy(update={"weights": str(path)})
        with pytest.raises(ConfigurationError, match=rf"model\.weights: {path}: {why}.*Name a \.keras or"):
            plan("/runs", COLD.model_copy(update={"model": update}), "examples", None)
