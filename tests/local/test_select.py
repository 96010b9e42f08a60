"""The metric that chooses the epoch: as evaluate computes it, in any parts, for networks and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import train_folders
from tests import small_documents

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import Selection
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import measure
from trainyard.steps.train import run as train_step
from trainyard.steps.train.engines.objective import EVAL_SUMS, Classification, Evaluated, eval_sums
from trainyard.steps.train.engines.scores import score_of
from trainyard.storage import storage

ROWS, CLASSES = 400, 3


def document(task: str) -> Examples:
    names = "targets" if task == "regression" else "labels"
    return small_documents.examples(task=task, **{names: ["a", "b", "c"]})


def answers(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return outputs of a network, labels, weights, and what evaluate makes of the outputs."""
    draw = np.random.default_rng(2)
    labels = draw.choice(CLASSES, ROWS, p=[0.9, 0.07, 0.03])
    logits = (draw.normal(size=(ROWS, CLASSES)) + np.eye(CLASSES)[labels] + [3, 0, 0]).astype(np.float32)
    weights = draw.integers(0, 3, ROWS).astype(np.float32)
    if task == "classification":
        return logits, labels, weights, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if task == "multi_label":
        return logits, draw.random((ROWS, CLASSES)) < 0.2, weights, 1 / (1 + np.exp(-logits))
    return logits, logits + draw.normal(size=logits.shape).astype(np.float32), weights, logits


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        ("classification", ["macro_f1", "roc_auc", "pr_auc", "log_loss"]),
        ("multi_label", ["macro_f1", "exact_match", "roc_auc", "pr_auc", "log_loss"]),
        ("regression", ["rmse", "r2"]),
    ],
)
def test_sums_of_parts_give_the_metric_that_evaluate_computes(task: str, metrics: list[str]) -> None:
    outputs, labels, weights, probabilities = answers(task)
    judged = SplitPredictions(labels, probabilities.astype(np.float32), weights)
    spread = np.sqrt([np.cov(column, fweights=weights.astype(int), ddof=0) for column in np.atleast_2d(labels.T)])
    cases: list[tuple[Selection, Any]] = [(Selection(metric=name), judged) for name in metrics]
    if task == "regression":
        cases += [(Selection(metric=name, target="b"), judged.one_target(1)) for name in ("mae", "rmse", "r2")]
    else:
        cases += [(Selection(metric=name, class_name="b"), judged.one_class(1)) for name in ("f1", "roc_auc", "pr_auc")]
    for selection, subject in cases:
        score = score_of(selection, document(task), spread)
        parts = [slice(0, 150), slice(150, 150), slice(150, None)]
        sums = sum(np.asarray(score.sums(outputs[part], labels[part], weights[part]), np.float64) for part in parts)
        tolerance = 2e-3 if "auc" in selection.metric else 1e-5
        expected = measure(task, subject, [selection.metric])[selection.metric]
        assert score.value(sums) == pytest.approx(expected, abs=tolerance), selection


def test_an_area_is_undefined_without_a_positive_and_the_loss_chooses_then() -> None:
    outputs, labels, weights, _ = answers("classification")
    selection = Selection(metric="pr_auc", class_name="c")
    score = score_of(selection, document("classification"))
    objective = Classification(CLASSES, 0.0, score=score)
    sums = np.asarray(eval_sums(objective, outputs, np.zeros_like(labels), weights))
    assert len(sums) == EVAL_SUMS + score.count
    assert Evaluated.from_sums(sums, score, selection, top5_counts=False).selected is None


def test_the_eval_loss_counts_by_class_weights_and_the_metric_does_not() -> None:
    outputs, labels, weights, probabilities = answers("classification")
    by_class = np.float32([1, 5, 9])
    objective = Classification(CLASSES, 0.0, class_weights=by_class)
    sums = np.asarray(eval_sums(objective, outputs, labels, weights))
    evaluated = Evaluated.from_sums(sums, None, Selection(metric="accuracy"), top5_counts=False)
    losses = -np.log(probabilities[np.arange(ROWS), labels])
    assert evaluated.loss == pytest.approx(np.average(losses, weights=weights * by_class[labels]), rel=1e-5)
    right = outputs.argmax(axis=1) == labels
    assert evaluated.metric == evaluated.selected == pytest.approx(np.average(right, weights=weights), rel=1e-5)


def trained(examples: str, folder: Path, **sections: Any) -> Training:
    recipe = {"name": "a", "data": {"format": "image_folder", "path": "a"}, "model": {"name": "cnn_small"}}
    with storage.stage(str(folder / "model"), producer="trainyard.train") as output:
        train_step.run(Recipe.model_validate(recipe | sections), examples, str(folder / "checkpoints"), output)
    return Training.read(str(folder / "model"))


def test_a_network_keeps_the_epoch_of_the_named_metric(tmp_path: Path) -> None:
    examples = train_folders.digits(tmp_path / "examples", limit=400, classes=range(3))
    train = {"epochs": 4, "batch_size": 16, "select": {"metric": "pr_auc", "class": "1"}}
    record = trained(examples, tmp_path, train=train | {"early_stopping": {"patience": 2}})
    values = [epoch.selected for epoch in record.history]
    assert record.selection == Selection(metric="pr_auc", class_name="1")
    assert record.history[record.best_epoch - 1].selected == max(values) > values[0]


def table_recipe(**train: Any) -> dict[str, Any]:
    features = {"numbers": {"type": "numeric"}, "c": {"type": "category"}}
    return {
        "task": "regression",
        "data": {"format": "csv", "path": "a.csv", "label": "y", "features": features},
        "model": {"name": "boosted_trees", "trees": {"max_iter": 40, "learning_rate": 0.5}},
        "train": train,
    }


def test_trees_keep_the_iteration_of_the_named_metric_and_stop_by_it(tmp_path: Path) -> None:
    examples = train_folders.table(tmp_path / "examples")
    whole = trained(examples, tmp_path / "whole", **table_recipe(select="mae"))
    values = [epoch.selected for epoch in whole.history]
    assert len(values) == 40 and whole.selection == Selection(metric="mae")
    np.testing.assert_allclose(values, [epoch.metric for epoch in whole.history], rtol=1e-4)
    best = int(np.argmin(values)) + 1
    assert whole.best_epoch == best
    stopped = trained(examples, tmp_path / "stopped", **table_recipe(select="mae", early_stopping={"patience": 3}))
    waits = next(n for n in range(4, 41) if int(np.argmin(values[:n])) + 1 <= n - 3)
    assert len(stopped.history) == waits and stopped.history[-1].selected == values[waits - 1]
    by_loss = trained(examples, tmp_path / "loss", **table_recipe())
    assert by_loss.selection.is_loss and {epoch.selected for epoch in by_loss.history} == {None}
