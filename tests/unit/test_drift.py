"""Data that moved are told by what moved; data that did not are not."""

from __future__ import annotations

from trainyard.contract.drift import FeatureStatistics, Statistics, drift
from trainyard.spec.drift_bounds import Bounds

BOUNDS = Bounds(max_mean_shift=0.5, max_frequency_change=0.1, max_missing_change=0.05)


def number(mean: float, std: float = 2.0, missing: int = 0) -> FeatureStatistics:
    return FeatureStatistics(count=100 - missing, missing=missing, mean=mean, std=std, min=0, max=100)


def text(**counts: int) -> FeatureStatistics:
    top = [{"value": value, "count": count} for value, count in counts.items()]
    return FeatureStatistics.model_validate({"count": 100, "missing": 0, "distinct": len(top), "top": top})


def statistics(classes: tuple[int, int] = (50, 50), **features: FeatureStatistics) -> Statistics:
    return Statistics(
        examples={"train": 100, "eval": 10, "test": 10},
        classes={"no": {"train": classes[0]}, "yes": {"train": classes[1]}},
        features={name: {"train": each} for name, each in features.items()},
    )


def test_equal_data_and_data_within_the_bounds_have_not_drifted() -> None:
    before = statistics(age=number(40), city=text(oslo=60, bergen=40))
    assert drift(before, before, BOUNDS) == []
    assert drift(before, statistics((45, 55), age=number(41), city=text(oslo=51, bergen=49)), BOUNDS) == []


def test_a_mean_that_moved_by_more_than_its_share_of_the_spread_is_named() -> None:
    found = drift(statistics(age=number(40)), statistics(age=number(41.1)), BOUNDS)
    assert found == ["age: mean 40 before, 41.1 now (standard deviation 2)"]


def test_any_other_value_in_a_constant_column_is_a_drift() -> None:
    assert len(drift(statistics(age=number(40, std=0)), statistics(age=number(40.01)), BOUNDS)) == 1


def test_values_that_came_or_became_rarer_are_listed_with_their_shares() -> None:
    found = drift(statistics(city=text(oslo=60, bergen=40)), statistics(city=text(oslo=40, bergen=40, bodø=20)), BOUNDS)
    assert found == ["city: 'bodø' 0.0% → 20.0%, 'oslo' 60.0% → 40.0%"]


def test_missing_values_classes_and_columns_count_too() -> None:
    before = statistics(age=number(40), city=text(oslo=100))
    now = statistics((70, 30), age=number(40, missing=6), street=text(a=100))
    assert drift(before, now, BOUNDS) == [
        "age: 0.0% missing before, 6.0% now",
        "city: is gone",
        "street: is new",
        "label: 'no' 50.0% → 70.0%, 'yes' 50.0% → 30.0%",
    ]


def test_a_column_that_changed_its_type_is_told() -> None:
    assert drift(statistics(age=number(1)), statistics(age=text(one=100)), BOUNDS) == ["age: was a number, is a text"]
