"""Data that moved are told by what moved; data that did not are not."""

from __future__ import annotations

import math

import pytest

from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.statistics.drift import (
    Distance,
    FeatureStatistics,
    Histogram,
    Statistics,
    TopValue,
    compare,
    distance,
    drift,
)
from trainyard.spec.schedule import Bounds, FeatureBounds
from trainyard.steps.evaluate.gate import judge_drift

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
        features={name: {"train": feature_statistics} for name, feature_statistics in features.items()},
    )


def test_equal_data_and_data_within_the_bounds_have_not_drifted() -> None:
    before = statistics(age=number(40), city=text(oslo=60, bergen=40))
    assert drift(before, before, BOUNDS) == []
    assert drift(before, statistics((45, 55), age=number(41), city=text(oslo=51, bergen=49)), BOUNDS) == []


def test_a_mean_that_moved_by_more_than_its_share_of_the_spread_is_named() -> None:
    sentences = drift(statistics(age=number(40)), statistics(age=number(41.1)), BOUNDS)
    assert sentences == ["age: mean 40 before, 41.1 now (standard deviation 2)"]


def test_any_other_value_in_a_constant_column_is_a_drift() -> None:
    assert len(drift(statistics(age=number(40, std=0)), statistics(age=number(40.01)), BOUNDS)) == 1


def test_values_that_came_or_became_rarer_are_listed_with_their_shares() -> None:
    sentences = drift(
        statistics(city=text(oslo=60, bergen=40)), statistics(city=text(oslo=40, bergen=40, bodø=20)), BOUNDS
    )
    assert sentences == ["city: 'bodø' 0.0% → 20.0%, 'oslo' 60.0% → 40.0%"]


def test_rare_values_that_did_not_occur_before_are_counted_together() -> None:
    before = statistics(city=text(oslo=60, bergen=40))
    now = statistics(city=text(oslo=52, bergen=36, bodø=6, hamar=6))
    [city, _] = compare(before, now, BOUNDS)
    assert (city.unknown, city.sentences) == (0.12, ["city: 12 of 100 values did not occur before"])
    assert compare(before, before, BOUNDS)[0].unknown == 0


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


def test_distances_are_those_of_a_calculation_by_hand() -> None:
    apart = distance([50, 50], [75, 25])
    assert apart.l_infinity == 0.25
    assert apart.psi == pytest.approx(0.25 * math.log(0.75 / 0.5) - 0.25 * math.log(0.25 / 0.5), abs=1e-6)
    middle = [0.625, 0.375]
    divergence = [
        sum(p * math.log2(p / m) for p, m in zip(distribution, middle, strict=True))
        for distribution in ([0.5] * 2, [0.75, 0.25])
    ]
    assert apart.jensen_shannon == pytest.approx(sum(divergence) / 2, abs=1e-6)
    assert distance([1, 0], [0, 1]).jensen_shannon == 1.0
    assert distance([3, 4], [30, 40]) == Distance(l_infinity=0, jensen_shannon=0, psi=0)


def test_numbers_are_compared_in_the_tenths_of_those_before() -> None:
    def spread(*values: float) -> FeatureStatistics:
        histogram = Histogram(exponent=0, starts=sorted(values), counts=[10] * len(values))
        return number(4.5, std=3).model_copy(update={"histogram": histogram})

    before = statistics(age=spread(*range(10)))
    assert compare(before, statistics(age=spread(*range(10))), BOUNDS)[0].distance == distance([1], [1])
    narrow = statistics(age=spread(4, 5))
    bounds = Bounds(max_psi=0.25, features={"age": FeatureBounds(max_jensen_shannon=0.2)})
    movement = compare(before, narrow, bounds)[0]
    assert movement.distance is not None and movement.distance.l_infinity == pytest.approx(0.4)
    assert [sentence.split(" 0.")[0] for sentence in movement.sentences] == [
        "age: Jensen-Shannon divergence",
        "age: population stability index 6.81, more than",
    ]
    lax = Bounds(max_psi=0.25, features={"age": FeatureBounds(max_psi=100)})
    assert drift(before, narrow, lax) == []


def test_drift_refuses_a_model_only_if_the_recipe_says_so() -> None:
    moved = compare(statistics(age=number(40)), statistics(age=number(50)), BOUNDS)
    verdict = Verdict(verdict="blessed", thresholds=[])
    assert judge_drift(verdict, moved, BOUNDS) == verdict
    refused = judge_drift(verdict, moved, BOUNDS.model_copy(update={"refuse": True}))
    assert refused.verdict == "refused" and refused.thresholds[0].value == 1
    assert refused.thresholds[0].note == "age: mean 40 before, 50 now (standard deviation 2)"
    still = compare(statistics(age=number(40)), statistics(age=number(40)), BOUNDS)
    assert judge_drift(verdict, still, BOUNDS.model_copy(update={"refuse": True})).verdict == "blessed"


def test_words_are_compared_with_words_alone() -> None:
    before = FeatureStatistics(count=10, missing=0, words=100, distinct=2, top=[TopValue(value="a", count=90)])
    now = before.model_copy(update={"top": [TopValue(value="a", count=10)]})
    whole = before.model_copy(update={"words": None, "top": [TopValue(value="a b c", count=10)], "distinct": 1})

    def moved(other: FeatureStatistics) -> list[str]:
        return drift(statistics(mail=before), statistics(mail=other), Bounds())

    assert "mail" in moved(now)[0]
    assert moved(before) == moved(whole) == []


def test_values_that_statistics_do_not_hold_count_as_others_and_as_known() -> None:
    """Before, two of `distinct` values are hidden, so up to two unseen ones may have occurred before."""
    before = text(oslo=58, bergen=40).model_copy(update={"distinct": 4})
    now = text(oslo=58, bergen=26, bodø=6, hamar=5, moss=5)
    [moved, _] = compare(statistics(city=before), statistics(city=now), Bounds(max_frequency_change=0.2))
    assert moved.unknown == 0.05 and moved.sentences == []
    [moved, _] = compare(statistics(city=before), statistics(city=now), Bounds(max_frequency_change=0.04))
    assert "'bergen' 40.0% → 26.0%" in moved.sentences[0]
    [moved, _] = compare(statistics(city=before), statistics(city=text(oslo=58, bergen=40, bodø=2)), BOUNDS)
    assert moved.unknown is None and moved.sentences == []
    long = {"x" * 41: 60}
    [moved, _] = compare(statistics(city=text(oslo=95)), statistics(city=text(oslo=95, **long)), BOUNDS)
    assert moved.sentences == []
    few = text(oslo=60, bergen=30).model_copy(update={"distinct": 3})
    many = text(oslo=52, bergen=24, **long).model_copy(update={"distinct": 3})
    [moved, _] = compare(statistics(city=few), statistics(city=many), BOUNDS)
    assert moved.sentences == ["city: other values 10.0% → 24.0%"]
