"""Slices: which examples belong to them and what they are called."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from trainyard.errors import ConfigurationError
from trainyard.spec.gates import Gate
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.gate import ChampionState, Subject, judge
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.slices import largest_gap, slice_masks, slice_metrics, slices_of


def recipe(slices, task="classification", samples=True):
    features = {
        "age": {"type": "numeric"},
        "rooms": {"type": "numeric"},
        "sex": {"type": "category"},
        "day": {"type": "date"},
    }
    return Recipe.model_validate(
        {
            "name": "people",
            "task": task,
            "data": {"format": "csv", "path": "people.csv", "label": "ill", "features": features, "samples": samples},
            "model": {"name": "mlp"},
            "evaluate": {"slices": slices, "bootstrap": 50},
        }
    )


TRAIN = {"age": np.arange(101, dtype=np.float32), "rooms": np.float32([1, 2, 2, 3])}


def members(slices, columns, labels=None, train=TRAIN):
    masks = slice_masks(recipe(slices), columns, train, labels)
    return {name: np.flatnonzero(mask).tolist() for name, mask in masks.items()}


def test_a_number_is_cut_at_the_quartiles_of_the_training_split():
    ages = np.float32([-5, 24.9, 25, 50, 80, np.nan])
    assert members(["age"], {"age": ages}) == {
        "age=(-inf, 25.0)": [0, 1],
        "age=[25.0, 50.0)": [2],
        "age=[50.0, 75.0)": [3],
        "age=[75.0, inf)": [4],
        "age=missing": [5],
    }


def test_a_number_of_few_values_is_cut_by_value():
    assert members(["rooms"], {"rooms": np.float32([2, 1, 2])}) == {"rooms=1": [1], "rooms=2": [0, 2]}


def test_numbers_that_differ_in_a_late_digit_alone_are_slices_of_their_own():
    plots = np.float32([1234567, 1234568, 1234567])
    assert members(["rooms"], {"rooms": plots}, train={"rooms": plots}) == {
        "rooms=1234567": [0, 2],
        "rooms=1234568": [1],
    }
    seconds = np.arange(1_700_000_000, 1_700_000_101, dtype=np.float64)
    slices = members(["age"], {"age": seconds}, train={"age": seconds})
    assert list(map(len, slices.values())) == [25, 25, 25, 26]
    assert list(slices)[1] == "age=[1.70000002e+09, 1.70000005e+09)"


def test_a_category_of_the_name_missing_is_counted_with_the_empty_ones():
    values = np.array([b"missing", b"", b"f"], dtype=object)
    assert members(["sex"], {"sex": values}) == {"sex=missing": [0, 1], "sex=f": [2]}


def test_a_category_is_cut_by_value_and_an_empty_one_is_missing():
    values = np.array([b"f", b"m", b"", b"f"], dtype=object)
    assert members(["sex"], {"sex": values}) == {"sex=missing": [2], "sex=f": [0, 3], "sex=m": [1]}


def test_names_that_are_numbers_stand_in_the_order_of_their_size():
    sexes = np.array([b"10", b"9", b"nan", b"a", b"-1", b"10"], dtype=object)
    assert list(members(["sex"], {"sex": sexes})) == ["sex=-1", "sex=9", "sex=10", "sex=a", "sex=nan"]


def test_a_date_is_cut_by_month():
    values = np.array([b"2024-01-31", b"2024-02-01", b"2024-01-02"], dtype=object)
    assert members(["day"], {"day": values}) == {"day=2024-01": [0, 2], "day=2024-02": [1]}


def test_a_label_is_cut_by_its_name_and_only_where_it_has_examples():
    assert members(["ill"], {"ill": np.array([1, 0, 1])}, ["no", "yes", "perhaps"]) == {
        "ill=no": [1],
        "ill=yes": [0, 2],
    }


def test_only_the_most_frequent_values_of_a_long_column_are_kept():
    values = np.array([b"often"] * 5 + [f"name {index}".encode() for index in range(200)], dtype=object)
    slices = members(["sex"], {"sex": values})
    assert len(slices) == 50
    assert slices["sex=often"] == [0, 1, 2, 3, 4]


def test_values_that_are_long_or_in_one_example_are_no_slices_unless_samples_are_kept():
    values = np.array([b"f", b"f", b"m", b"", *[b"x" * 41] * 2], dtype=object)
    masks = slice_masks(recipe(["sex"], samples=False), {"sex": values}, TRAIN, None)
    assert list(masks) == ["sex=missing", "sex=f"]
    assert len(members(["sex"], {"sex": values})) == 4


def test_a_feature_that_the_data_have_not_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="no raw feature 'sex'"):
        slice_masks(recipe(["sex"]), {"six": np.empty(0)}, {}, None)


def test_a_slice_has_its_own_metrics_and_the_interval_of_the_main_one():
    predictions = SplitPredictions(np.array([0, 0, 1, 1]), np.float32([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.3, 0.7]]))
    masks = {"sex=f": np.array([True, True, False, False]), "sex=m": np.array([False, False, True, True])}
    first, second = slice_metrics(recipe([]), masks, predictions)
    assert (first.name, first.examples, first.metrics["accuracy"]) == ("sex=f", 2, 0.5)
    assert "roc_auc" not in first.metrics
    assert (first.interval.low, first.interval.high) == (0, 1)
    assert second.metrics["accuracy"] == 1
    assert second.interval.high == 1


def grouped(weighed=False, accuracies=(0.9, 0.8, 0.6), seed=0):
    """Predictions of 600 examples in three groups of these accuracies, and the masks of the groups."""
    draw = np.random.default_rng(seed)
    groups, labels = draw.integers(0, 3, 600), draw.integers(0, 2, 600)
    right = draw.random(600) < np.array(accuracies)[groups]
    score = np.where(right == (labels == 1), draw.uniform(0.51, 1, 600), draw.uniform(0, 0.49, 600))
    weights = draw.integers(1, 4, 600).astype(np.float32) if weighed else None
    answers = SplitPredictions(labels, np.stack([1 - score, score], axis=1).astype(np.float32), weights)
    return answers, {f"sex={name}": groups == at for at, name in enumerate("abc")}


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "recall"])
def test_the_largest_gap_is_that_of_scikit_learns_metric_and_its_interval_that_of_examples_drawn(metric, weighed):
    answers, masks = grouped(weighed)

    def value(part):
        counted = np.ones(len(part.labels), bool) if metric == "accuracy" else part.labels == 1
        weights = None if part.weights is None else part.weights[counted]
        return np.average((part.predicted == part.labels)[counted], weights=weights)

    of_all = getattr(sklearn_metrics, f"{metric}_score")
    assert value(answers) == pytest.approx(of_all(answers.labels, answers.predicted, sample_weight=answers.weights))

    def gap(chosen):
        values = [value(answers.take(chosen[mask[chosen]])) for mask in masks.values()]
        return max(values) - min(values)

    chosen_part = {name: answers.take(mask) for name, mask in masks.items()}
    parts = chosen_part if metric == "accuracy" else {name: part.one_class(1) for name, part in chosen_part.items()}
    found = largest_gap("classification", metric, parts, masks, 1000, 1, 0.95)
    assert found.value == pytest.approx(gap(np.arange(600)))
    assert found.note.startswith("From 0.") and "in 'sex=c' to 0." in found.note and found.note.endswith("in 'sex=a'.")
    draw = np.random.default_rng(9)
    drawn = np.array([gap(draw.integers(0, 600, 600)) for _ in range(300)])
    expected = np.quantile(drawn - (drawn.mean() - found.value), [0.025, 0.975])
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(expected), abs=0.02)
    narrow = largest_gap("classification", metric, parts, masks, 1000, 1, 0.5).interval
    assert found.interval.low < narrow.low < found.value < narrow.high < found.interval.high


def test_equal_groups_have_a_gap_by_chance_which_the_interval_takes_away():
    lows = []
    for seed in range(40):
        answers, masks = grouped(accuracies=(0.8, 0.8, 0.8), seed=seed)
        parts = {name: answers.take(mask) for name, mask in masks.items()}
        lows.append(largest_gap("classification", "accuracy", parts, masks, 300, 1, 0.95).interval.low)
    assert np.mean(np.array(lows) <= 0.01) >= 0.75


def test_a_gap_without_a_second_slice_or_a_value_is_not_measured_and_one_of_perfect_slices_has_an_exact_interval():
    answers, masks = grouped(accuracies=(1, 1, 1))
    parts = {name: answers.take(mask) for name, mask in masks.items()}
    perfect = largest_gap("classification", "accuracy", parts, masks, 50, 1, 0.95)
    smallest = min(mask.sum() for mask in masks.values())
    assert perfect.value == perfect.interval.low == 0
    assert perfect.interval.high == pytest.approx(1 - 0.025 ** (1 / smallest)), "Clopper and Pearson"
    alone = {name: parts[name] for name in ["sex=a"]}
    assert "fewer than two" in largest_gap("classification", "accuracy", alone, masks, 50, 1, 0.95).note
    masks["sex=b"] = masks["sex=b"] & (answers.labels == 0)
    parts = {name: answers.take(mask).one_class(1) for name, mask in masks.items()}
    undefined = largest_gap("classification", "recall", parts, masks, 50, 1, 0.95)
    gate = Gate.model_validate({"metric": "recall", "class": "ill", "largest_gap_between": "sex", "max": 0.1})
    (threshold,) = judge([gate], {Subject.from_gate(gate): undefined}, [], ChampionState(present=False)).thresholds
    assert threshold.name == "largest gap of recall of ill between sex <= 0.1" and not threshold.passed
    assert "The gap cannot be measured: the slice 'sex=b' does not define it" in threshold.note


def test_a_gap_gate_is_judged_by_its_value_or_its_upper_bound():
    answers, masks = grouped()
    parts = {name: answers.take(mask) for name, mask in masks.items()}
    found = largest_gap("classification", "accuracy", parts, masks, 500, 1, 0.9)
    between = (found.value + found.interval.high) / 2
    for confidence, passed in ((None, True), (0.9, False)):
        gate = Gate(metric="accuracy", largest_gap_between="sex", max=between, confidence=confidence)
        (threshold,) = judge([gate], {Subject.from_gate(gate): found}, [], ChampionState(present=False)).thresholds
        assert threshold.passed == passed and threshold.note.endswith(found.note)


def test_slices_belong_to_the_feature_of_the_longest_name():
    masks = dict.fromkeys(["a=1", "a=b=2", "a=3"], np.array([True]))
    assert list(slices_of("a", recipe_of(["a", "a=b"]), masks)) == ["a=1", "a=3"]
    assert list(slices_of("a=b", recipe_of(["a", "a=b"]), masks)) == ["a=b=2"]


def recipe_of(slices):
    parsed = recipe([])
    return parsed.model_copy(update={"evaluate": parsed.evaluate.model_copy(update={"slices": slices})})
