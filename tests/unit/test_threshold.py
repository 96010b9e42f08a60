"""Decision thresholds: chosen as by a search over scikit-learn's metrics, and applied by one rule."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from trainyard.contract.artifacts.evaluate import ClassThreshold, Evaluation, threshold_text
from trainyard.contract.statistics.decision import decided_class, decided_classes
from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.gates import ThresholdAim
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.curves import choose_thresholds
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import measure

NAMES = ["a", "b", "c"]
RECIPE = "{name: t, data: {format: csv, path: x.csv, features: {x: {type: numeric}}}, model: {name: mlp}, %s}"


def aim(**fields: Any) -> ThresholdAim:
    return ThresholdAim.model_validate(fields)


def answers(weighed: bool = False, several: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    draw = np.random.default_rng(4)
    outputs = np.round(draw.dirichlet(np.ones(3), 400), 2).astype(np.float32)  # with ties
    noisy = outputs + draw.normal(0, 0.25, outputs.shape)
    labels = noisy > 0.4 if several else noisy.argmax(axis=1)
    return labels, outputs, draw.integers(1, 4, 400).astype(np.float32) if weighed else None


def by_search(labels: np.ndarray, outputs: np.ndarray, weights: np.ndarray | None, value: float) -> dict[str, float]:
    found = {"labels": labels == 1 if labels.ndim == 1 else labels[:, 1]}
    predicted = outputs[:, 1] > np.float32(value)
    functions = {"precision": "precision_score", "recall": "recall_score", "f1": "f1_score"}
    return {
        name: getattr(sklearn_metrics, function)(found["labels"], predicted, sample_weight=weights, zero_division=0)
        for name, function in functions.items()
    }


@cache
def all_by_search(several: bool, weighed: bool) -> list[dict[str, float]]:
    labels, outputs, weights = answers(weighed, several)
    return [by_search(labels, outputs, weights, value) for value in np.linspace(0.005, 0.995, 100)]


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("wanted", [{"maximize": "f1"}, {"recall": 0.9}, {"precision": 0.75}])
def test_a_threshold_is_the_best_of_all(wanted: dict[str, Any], several: bool, weighed: bool) -> None:
    labels, outputs, weights = answers(weighed, several)
    (chosen,) = choose_thresholds(aim(**wanted, **{"class": "b"}), NAMES, labels, outputs, weights)
    found = by_search(labels, outputs, weights, chosen.value)
    assert (chosen.precision, chosen.recall, chosen.f1) == pytest.approx(tuple(found.values()))
    every = all_by_search(several, weighed)
    if "maximize" in wanted:
        assert found["f1"] == pytest.approx(max(each["f1"] for each in every))
    else:
        (name,) = wanted
        other = {"recall": "precision", "precision": "recall"}[name]
        assert found[name] >= wanted[name]
        assert found[other] == pytest.approx(max(each[other] for each in every if each[name] >= wanted[name]))
    assert chosen.value == np.float32(chosen.value), "every format compares float32 numbers"


@pytest.mark.parametrize("wanted", [{"recall": 0.5}, {"precision": 0.5}])
def test_a_threshold_of_classes_that_are_apart_gives_up_nothing(wanted: dict[str, float]) -> None:
    scores = np.float32([0.1, 0.2, 0.7, 0.8, 0.9, 0.95])
    labels = np.array([0, 0, 1, 1, 1, 1])
    (chosen,) = choose_thresholds(
        aim(**wanted, **{"class": "b"}), ["a", "b"], labels, np.stack([1 - scores, scores], axis=1), None
    )
    assert (chosen.precision, chosen.recall) == (1, 1) and 0.2 < chosen.value < 0.7


def test_multi_label_without_a_class_has_a_threshold_for_each_class_that_has_examples() -> None:
    labels, outputs, _ = answers(several=True)
    labels[:, 2] = False
    chosen = choose_thresholds(aim(recall=0.8), NAMES, labels, outputs, None)
    assert [each.label for each in chosen] == ["a", "b"] and min(each.recall for each in chosen) >= 0.8


def test_a_threshold_lies_between_scores_and_splits_neighbours_of_float32() -> None:
    high = np.float32(0.7)
    low = np.nextafter(high, np.float32(0))
    outputs = np.stack([1 - np.array([high, low]), [high, low]], axis=1).astype(np.float32)
    (chosen,) = choose_thresholds(aim(maximize="f1", **{"class": "b"}), ["a", "b"], np.array([1, 0]), outputs, None)
    assert decided_class(outputs, {1: chosen.value}).tolist() == [1, 0] and chosen.f1 == 1
    apart = np.float32([[0.2, 0.8], [0.6, 0.4]])
    (chosen,) = choose_thresholds(aim(maximize="f1", **{"class": "b"}), ["a", "b"], np.array([1, 0]), apart, None)
    assert chosen.value == pytest.approx(0.6)


def test_an_aim_that_cannot_be_met_is_refused_with_what_can() -> None:
    labels, outputs, _ = answers()
    with pytest.raises(ConfigurationError, match=r"threshold\.class: no class 'bb'\. Did you mean 'b'\?"):
        choose_thresholds(aim(maximize="f1", **{"class": "bb"}), NAMES, labels, outputs, None)
    with pytest.raises(ConfigurationError, match="the eval split has no example of 'c'"):
        choose_thresholds(aim(maximize="f1", **{"class": "c"}), NAMES, np.zeros(400, int), outputs, None)
    hopeless = np.float32([[0.1, 0.9], [0.4, 0.6]])
    with pytest.raises(
        ConfigurationError, match=r"reaches precision 0\.9 of 'b' on the eval split; the highest is 0\.5"
    ):
        choose_thresholds(aim(precision=0.9, **{"class": "b"}), ["a", "b"], np.array([0, 1]), hopeless, None)
    certain = np.float32([[1, 0], [0.4, 0.6]])  # no threshold is below a probability of 0
    with pytest.raises(ConfigurationError, match=r"reaches recall 1 of 'b' on the eval split; the highest is 0\.5"):
        choose_thresholds(aim(recall=1, **{"class": "b"}), ["a", "b"], np.array([1, 1]), certain, None)


def test_the_class_of_the_threshold_is_predicted_above_it_alone_and_the_others_as_before() -> None:
    outputs = np.float32([[0.5, 0.3, 0.2], [0.3, 0.1, 0.6], [0.1, 0.25, 0.65], [0.2, 0.7, 0.1]])
    assert decided_class(outputs, {}).tolist() == [0, 2, 2, 1]
    assert decided_class(outputs, {1: 0.25}).tolist() == [1, 2, 2, 1]
    assert decided_class(outputs, {1: 0.75}).tolist() == [0, 2, 2, 0]
    assert decided_classes(outputs, {}).tolist() == (outputs > 0.5).tolist()
    assert decided_classes(outputs, {2: 0.15})[:, 2].tolist() == [True, True, True, False]


def test_metrics_are_those_of_the_decided_classes_whole_by_class_and_in_parts() -> None:
    labels, outputs, _ = answers()
    judged = SplitPredictions(labels, outputs, thresholds={1: 0.2})
    decided = decided_class(outputs, {1: 0.2})
    assert decided.tolist() != outputs.argmax(axis=1).tolist()
    for part in (slice(None), slice(0, 50)):
        chosen_part = judged.take(np.arange(400)[part])
        assert measure("classification", chosen_part)["accuracy"] == pytest.approx(
            np.mean(decided[part] == labels[part])
        )
        recall = sklearn_metrics.recall_score(labels[part] == 1, decided[part] == 1)
        assert measure("classification", chosen_part.one_class(1))["recall"] == pytest.approx(recall)
    plain = measure("classification", SplitPredictions(labels, outputs))
    same = ("roc_auc", "pr_auc", "log_loss", "calibration_error")
    assert {name: plain[name] for name in same} == {name: measure("classification", judged)[name] for name in same}
    several, outputs, _ = answers(several=True)
    sets = decided_classes(outputs, {0: 0.2})
    metrics = measure("multi_label", SplitPredictions(several, outputs, thresholds={0: 0.2}))
    assert metrics["exact_match"] == pytest.approx(sklearn_metrics.accuracy_score(several, sets))
    f1 = sklearn_metrics.f1_score(several, sets, average="samples", zero_division=1)
    assert metrics["f1"] == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("threshold: {maximize: f1}", r"threshold\.class: is required for a classification"),
        ("threshold: {class: a}", "give exactly one of maximize, recall, precision"),
        ("threshold: {recall: 0.9, precision: 0.9, class: a}", "give exactly one of maximize, recall, precision"),
        ("threshold: {maximize: accuracy, class: a}", r"threshold\.maximize"),
        ("threshold: {recall: 1.1, class: a}", r"threshold\.recall"),
        ("task: regression, threshold: {recall: 0.9, class: a}", "a regression has no classes"),
    ],
)
def test_a_threshold_that_cannot_work_is_refused_before_a_run(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        documents.parse(RECIPE % text, Recipe, name="recipe.yaml")


@pytest.mark.parametrize("value", [0.25, 0.9, 0.99999994, 0.12345678, 1e-7, 1e-45, 0.53710932])
def test_a_threshold_is_shown_as_a_number_that_decides_alike(value: float) -> None:
    single = float(np.float32(value))
    assert np.float32(threshold_text(single)) == np.float32(single)
    assert len(threshold_text(single)) <= len(repr(np.float32(single).item()))
    one = ClassThreshold(label="b", value=single, precision=1, recall=1, f1=1)
    evaluation = Evaluation.model_construct(thresholds=[one], baseline=None, boosted=None, metrics={})
    assert f"if its probability is above {threshold_text(single)} (eval" in evaluation.remark


def test_a_class_is_named_as_labels_are() -> None:
    read = documents.parse(RECIPE % "threshold: {recall: 0.9, class: 1}", Recipe, name="recipe.yaml")
    assert read.threshold is not None and read.threshold.class_name == "1"
    assert Recipe.model_validate(read.model_dump(mode="json")) == read, "a version's record holds it so"
