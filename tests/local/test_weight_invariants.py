"""A row of weight k counts like k equal rows, and a row of weight 0 like none, whatever is computed from the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from tests import small_documents

from trainyard.contract.artifacts.preprocess import Examples, Feature, SplitFiles
from trainyard.models import boosted_trees
from trainyard.spec.gates import Gate, ThresholdAim
from trainyard.spec.model import Trees
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.baselines import baseline, baseline_predictions
from trainyard.steps.evaluate.curves import calibration, choose_thresholds, class_metrics
from trainyard.steps.evaluate.gate import ChampionState, MetricPair, Subject, judge
from trainyard.steps.evaluate.metrics.bootstrap import differences
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import measure
from trainyard.steps.evaluate.slices import slice_masks
from trainyard.steps.preprocess.statistics import Summary, quantiles
from trainyard.steps.train.engines.objective import class_weights, target_moments
from trainyard.values.quantiles import weighted_quantiles

Arrays = tuple[NDArray[Any], ...]
ROWS, CLASSES, SEEDS = 60, 3, range(5)


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def weights_of(seed: int) -> NDArray[np.float64]:
    """Return whole weights of rows, some of them 0."""
    weights = draw(seed + 100).integers(0, 4, ROWS).astype(np.float64)
    weights[:CLASSES] = 1  # each class has a row that counts
    return weights


def copies(weights: NDArray[np.float64], *arrays: NDArray[Any]) -> Arrays:
    return tuple(np.repeat(array, weights.astype(int), axis=0) for array in arrays)


def answers(seed: int, task: str) -> Arrays:
    """Return labels and outputs, which agree more often than by chance."""
    generator = draw(seed)
    labels = np.concatenate([np.arange(CLASSES), generator.integers(0, CLASSES, ROWS - CLASSES)])
    logits = generator.normal(size=(ROWS, CLASSES)) + 2 * np.eye(CLASSES)[labels]
    if task == "classification":
        return labels, (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    if task == "multi_label":
        return generator.random((ROWS, CLASSES)) < 0.4, (1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits.astype(np.float32), (logits + generator.normal(size=logits.shape)).astype(np.float32)


def document(task: str, totals: NDArray[np.float64], weighted: bool) -> Examples:
    counts = [1] * CLASSES if weighted else totals.astype(int).tolist()
    files = SplitFiles(
        examples=ROWS,
        files=[],
        shard_examples=[],
        class_counts=None if task == "regression" else counts,
        class_weights=totals.tolist() if weighted and task != "regression" else None,
    )
    return small_documents.examples(
        task=task,
        labels=None if task == "regression" else [f"class {number}" for number in range(CLASSES)],
        targets=[f"target {number}" for number in range(CLASSES)] if task == "regression" else [],
        splits={"train": files},
    )


def both(seed: int, task: str) -> tuple[SplitPredictions, SplitPredictions]:
    """Return predictions with weights, and the same ones with copies of rows."""
    weights, rows = weights_of(seed), answers(seed, task)
    return SplitPredictions(*rows, weights.astype(np.float32)), SplitPredictions(*copies(weights, *rows))


@pytest.mark.parametrize("task", ["classification", "multi_label", "regression"])
@pytest.mark.parametrize("seed", SEEDS)
def test_metrics_and_their_curves_count_weights_as_copies(task: str, seed: int) -> None:
    weighted, copied = both(seed, task)
    assert measure(task, weighted) == pytest.approx(measure(task, copied), rel=1e-6)
    assert weighted.mean(weighted.losses) == pytest.approx(copied.mean(copied.losses), rel=1e-6)
    if task != "regression":
        names = [f"class {number}" for number in range(CLASSES)]
        for one, other in zip(class_metrics(weighted, names), class_metrics(copied, names), strict=True):
            assert (one.precision, one.recall, one.f1) == pytest.approx((other.precision, other.recall, other.f1))
    if task == "classification":
        for bin, other in zip(calibration(weighted), calibration(copied), strict=True):
            assert (bin.accuracy, bin.confidence) == pytest.approx((other.accuracy, other.confidence), rel=1e-6)


@pytest.mark.parametrize("task", ["classification", "multi_label", "regression"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_baseline_answers_as_for_copies(task: str, seed: int) -> None:
    weighted, copied = both(seed, task)
    has = np.eye(CLASSES)[weighted.labels] if task == "classification" else weighted.labels
    totals = weights_of(seed) @ has
    one, other = (document(task, totals, weighted=flag) for flag in (True, False))
    ours, theirs = baseline(weighted, one), baseline(copied, other)
    assert ours.answer == theirs.answer and ours.metrics == pytest.approx(theirs.metrics, rel=1e-6)
    np.testing.assert_allclose(
        baseline_predictions(weighted, one).outputs[0], baseline_predictions(copied, other).outputs[0], rtol=1e-6
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_constant_answer_is_never_blessed_against_the_baseline(seed: int) -> None:
    generator = draw(seed)
    labels = generator.integers(0, CLASSES, ROWS)
    weights = np.exp(generator.normal(0, 2, CLASSES))[labels] * generator.exponential(size=ROWS)
    examples = document("classification", np.bincount(labels, weights, CLASSES), weighted=True)
    gate = Gate(metric="accuracy", against="baseline", min_difference=0.001)
    for constant in range(CLASSES):
        outputs = np.broadcast_to(np.eye(CLASSES, dtype=np.float32)[constant], (ROWS, CLASSES))
        candidate = SplitPredictions(labels, outputs, weights)
        rival = baseline_predictions(candidate, examples)
        values = [measure("classification", each, ["accuracy"])["accuracy"] for each in (candidate, rival)]
        drawn = differences("classification", ["accuracy"], candidate, rival, 50, seed).get("accuracy")
        measured = {Subject.from_gate(gate): MetricPair(values[0], None, values[1], drawn)}
        assert judge([gate], measured, [], ChampionState(present=False)).verdict == "refused"


@pytest.mark.parametrize("wanted", [{"maximize": "f1"}, {"recall": 0.7}, {"precision": 0.5}])
@pytest.mark.parametrize("seed", SEEDS)
def test_thresholds_are_those_of_copies(wanted: dict[str, Any], seed: int) -> None:
    weighted, copied = both(seed, "classification")
    aim = ThresholdAim.model_validate(wanted | {"class": "class 1"})
    names = [f"class {number}" for number in range(CLASSES)]
    [one], [other] = (
        choose_thresholds(aim, names, each.labels, each.outputs, each.weights) for each in (weighted, copied)
    )
    assert one.model_dump(exclude={"label"}) == pytest.approx(other.model_dump(exclude={"label"}), rel=1e-6)


@pytest.mark.parametrize("chosen", ["balanced", {"class 1": 3.0}])
@pytest.mark.parametrize("seed", SEEDS)
def test_class_weights_follow_sums_of_weights(chosen: object, seed: int) -> None:
    recipe = Recipe.model_validate(
        {"name": "a", "data": {"format": "csv", "path": "a.csv", "label": "y", "features": {"x": {"type": "numeric"}}},
         "model": {"name": "mlp"}, "train": {"class_weights": chosen}}
    )  # fmt: skip
    labels, weights = answers(seed, "classification")[0], weights_of(seed)
    summed, counted = (np.bincount(*each, minlength=CLASSES) for each in ((labels, weights), copies(weights, labels)))
    names = [f"class {number}" for number in range(CLASSES)]
    one, other = (class_weights(recipe, names, totals.tolist()) for totals in (summed, counted))
    np.testing.assert_array_equal(one, other)
    scaled = class_weights(recipe, names, (summed / 1000).tolist())
    np.testing.assert_allclose(scaled, one, rtol=1e-6)  # only ratios of weights matter


def test_a_class_of_weight_zero_leaves_the_balance_of_the_others() -> None:
    recipe = Recipe.model_validate(
        {"name": "a", "data": {"format": "csv", "path": "a.csv", "label": "y", "features": {"x": {"type": "numeric"}}},
         "model": {"name": "mlp"}, "train": {"class_weights": "balanced"}}
    )  # fmt: skip
    assert class_weights(recipe, ["a", "b", "c"], [3.0, 0.0, 1.0]).tolist() == pytest.approx([2 / 3, 1, 2])


@pytest.mark.parametrize("seed", SEEDS)
def test_quantiles_and_moments_are_those_of_copies(seed: int) -> None:
    weights, values = weights_of(seed), draw(seed).normal(size=ROWS)
    (copied,) = copies(weights, values)
    batch = pa.RecordBatch.from_pydict({"x": values, "w": weights})
    other = pa.RecordBatch.from_pydict({"x": copied})
    for shares in ((0.01, 0.99), (0.25, 0.75), (0.0, 1.0)):
        expected = weighted_quantiles(copied, None, shares)
        assert weighted_quantiles(values, weights / 7, shares) == expected
        assert quantiles(lambda: [batch.slice(0, 20), batch.slice(20)], {"x": shares}, "w")["x"] == expected
        assert quantiles(lambda: [other], {"x": shares})["x"] == expected
    assert target_moments(values, weights) == pytest.approx(target_moments(copied), rel=1e-12)
    table = np.stack([values, values**2], axis=1)
    np.testing.assert_allclose(target_moments(table, weights), target_moments(copies(weights, table)[0]), rtol=1e-12)


def test_quantiles_are_symmetric_and_the_nearest_values_inside() -> None:
    hundred = np.arange(100.0)
    assert weighted_quantiles(hundred, None, (0.01, 0.99)) == (1.0, 98.0)
    assert weighted_quantiles(hundred, None, (0.0, 1.0)) == (0.0, 99.0)
    assert weighted_quantiles(np.array([5.0]), None, (0.1, 0.2)) == (5.0, 5.0)
    some = np.array([0.0, 1.0, 0.0])
    assert weighted_quantiles(np.array([4.0, 5.0, 6.0]), some, (0.0, 1e-300)) == (5.0, 5.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_are_counted_by_rows_and_by_weights(seed: int) -> None:
    weights, labels = weights_of(seed), answers(seed, "classification")[0]
    rows = pa.RecordBatch.from_pydict({"label": [f"class {label}" for label in labels], "measure/w": weights})
    halves = [Summary.from_rows(rows.slice(start, ROWS // 2), [], weight="w") for start in (0, ROWS // 2)]
    halves[0].merge(halves[1])
    found = halves[0].document({})
    names = [f"class {number}" for number in range(CLASSES)]
    assert [found.labels[name] for name in names] == np.bincount(labels).tolist()
    assert [found.label_weights[name] for name in names] == np.bincount(labels, weights).tolist()
    assert Summary.from_rows(rows, []).document({}).label_weights == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_is_cut_into_quarters_of_the_weight(seed: int) -> None:
    recipe = Recipe.model_validate(
        {"name": "a", "data": {"format": "csv", "path": "a.csv", "label": "y", "features": {"x": {"type": "numeric"}}},
         "model": {"name": "mlp"}, "evaluate": {"slices": ["x"]}}
    )  # fmt: skip
    weights, values = weights_of(seed), draw(seed).normal(size=ROWS)
    (copied,) = copies(weights, values)
    one = slice_masks(recipe, {"x": values}, {"x": values}, None, weights)
    other = slice_masks(recipe, {"x": values}, {"x": copied}, None, np.ones(len(copied)))
    assert {name: mask.tolist() for name, mask in one.items()} == {name: mask.tolist() for name, mask in other.items()}


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_trees_of_weighted_rows_are_those_of_copies(kind: Callable[..., Any]) -> None:
    """scikit-learn bins by rows and asks for 20 of them in a leaf: here both have plenty."""
    generator = draw(3)
    values = generator.integers(0, 8, (400, 2)).astype(np.float32)
    labels = (values[:, 0] + generator.normal(size=400) > 4).astype(kind)
    weights = generator.integers(1, 4, 400).astype(np.float64)
    columns = boosted_trees.Columns([Feature(name=name, dtype="float32", shape=()) for name in "ab"])

    def losses(rows: boosted_trees.Rows) -> NDArray[np.float64]:
        judged = boosted_trees.Rows(values, labels, None)
        settings = Trees(max_iter=5, max_leaf_nodes=2)
        return boosted_trees.fit(settings, columns, rows, judged, None, 1, lambda _: None).losses[1]

    copied = losses(boosted_trees.Rows(*copies(weights, values, labels), None))
    np.testing.assert_allclose(losses(boosted_trees.Rows(values, labels, weights)), copied, rtol=1e-6)
