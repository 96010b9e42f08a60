"""Slices: which examples belong to them and what they are called."""

import numpy as np
import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.metrics.measure import SplitPredictions
from trainyard.steps.evaluate.slices import slice_masks, slice_metrics


def recipe(slices, task="classification"):
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
            "data": {"format": "csv", "path": "people.csv", "label": "ill", "features": features},
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
