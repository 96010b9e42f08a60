"""Drafted gates refuse every constant, whatever the weights, and nearly every model without a signal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported
from trainyard.contract.artifacts.preprocess import Examples, SplitFiles
from trainyard.quality.inspect import inspect
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.baselines import baseline_predictions
from trainyard.steps.evaluate.gate import ChampionState, judge, judge_one_answer
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.trained_model import _measured, _only_answer

ROWS = 2000
SHARES = {"even": [0.5, 0.5], "rare": [0.9, 0.1], "rarer": [0.977, 0.023], "several": [0.95, 0.03, 0.02]}


def drafted(folder: Path, shares: list[float] | None) -> Recipe:
    """Return the draft for a table whose label has classes of these `shares`; None: a regression."""
    draw = np.random.default_rng(2)
    labels = (
        draw.normal(10, 2, ROWS).round(3) if shares is None else np.repeat(list("nyz")[: len(shares)], counts(shares))
    )
    lines = [f"{value:.4f},{label}" for value, label in zip(draw.normal(size=ROWS), labels, strict=True)]
    (folder / "t.csv").write_text("\n".join(["a,label", *lines]) + "\n")
    text, _ = draft_recipe("table", str(folder / "t.csv"), inspect(str(folder / "t.csv"), "label"))
    (folder / "r.yaml").write_text(text)
    return recipes.load(str(folder / "r.yaml"))


def counts(shares: list[float], rows: int = ROWS) -> list[int]:
    rest = [round(share * rows) for share in shares[1:]]
    return [rows - sum(rest), *rest]


def blessed(recipe: Recipe, answers: SplitPredictions, examples: Examples) -> bool:
    """Return True if the gates of `recipe` bless `answers`, without a champion."""
    names = list(examples.labels or [])
    rivals = {"champion": None, "boosted": None, "baseline": baseline_predictions(answers, examples)}
    measured = _measured(recipe, answers, rivals, {}, names, None)
    verdict = judge(recipe.evaluate.gates, measured, [], ChampionState(present=False))
    if names and (only := _only_answer(answers)) is not None:
        verdict = judge_one_answer(verdict, recipe, names[only], answers.count(answers.labels != only))
    return verdict.verdict == "blessed"


def document(names: list[str] | None, shares: list[float] | None) -> Examples:
    train = SplitFiles(examples=ROWS, files=[], shard_examples=[], class_counts=shares and counts(shares))
    return Examples.model_construct(
        task="classification" if names else "regression", labels=names, targets=[], splits={"train": train}
    )


@pytest.mark.parametrize("kind", [*SHARES, "number"])
def test_a_constant_is_never_blessed_and_a_model_without_a_signal_at_most_once_in_twenty(
    tmp_path: Path, kind: str
) -> None:
    shares = SHARES.get(kind)
    recipe = drafted(tmp_path, shares)
    recipe = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"bootstrap": 200})})
    names = list("nyz")[: len(shares)] if shares else None
    examples, rows, lucky = document(names, shares), 400, 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        weights = [None, draw.exponential(size=rows), draw.random(rows) ** 8][seed % 3]
        constants: list[NDArray[np.float32]]
        if shares and names:
            labels = np.repeat(np.arange(len(names)), counts(shares, rows))
            constants = [np.eye(len(names), dtype=np.float32)[[answer] * rows] for answer in range(len(names))]
            constants.append(np.tile(np.float32(shares), (rows, 1)))
            noise = draw.dirichlet(np.array(shares) * 20 + 0.5, rows).astype(np.float32)
        else:
            labels = draw.normal(10, 2, rows).astype(np.float32)
            constants = [np.full(rows, value, np.float32) for value in (0.0, labels.mean(), 10.0)]
            noise = (10 + 0.3 * draw.normal(size=rows)).astype(np.float32)
        for outputs in constants:
            assert not blessed(recipe, SplitPredictions(labels, outputs, weights), examples), (kind, seed, outputs[0])
        lucky += blessed(recipe, SplitPredictions(labels, noise), examples)
    assert lucky <= 2, lucky
