"""The gate: what it calls its conditions, and which values hold."""

import math

import pytest

from trainyard.contract.artifacts.gate import Interval, refusal_reason
from trainyard.spec.gates import Gate
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.gate import ChampionState, MetricPair, Subject, judge, judge_one_answer

NONE = ChampionState(present=False)
THERE = ChampionState(present=True)
BOUNDS = Interval(low=0.95, high=0.99)


def one(gate, measured=None, champion=NONE, slices=()):
    subject = Subject.from_gate(Gate(**gate))
    verdict = judge([Gate(**gate)], {subject: measured} if measured else {}, slices, champion)
    (threshold,) = verdict.thresholds
    assert (verdict.verdict == "blessed") == threshold.passed
    return threshold


@pytest.mark.parametrize(
    ("gate", "value", "name", "passed"),
    [
        ({"metric": "accuracy", "min": 0.97}, 0.98, "accuracy >= 0.97", True),
        ({"metric": "accuracy", "min": 0.97}, 0.97, "accuracy >= 0.97", True),
        ({"metric": "accuracy", "min": 0.97}, 0.9699, "accuracy >= 0.97", False),
        ({"metric": "log_loss", "max": 0.1}, 0.1, "log_loss <= 0.1", True),
        ({"metric": "log_loss", "max": 0.1}, 0.11, "log_loss <= 0.1", False),
        ({"metric": "accuracy", "min": 0.0}, 0.0, "accuracy >= 0", True),
    ],
)
def test_a_bound_is_named_and_held_at_equality(gate, value, name, passed):
    threshold = one(gate, MetricPair(value, BOUNDS))
    assert (threshold.name, threshold.value, threshold.passed) == (name, value, passed)
    assert threshold.interval == BOUNDS


@pytest.mark.parametrize(
    ("gate", "value", "passed"),
    [
        ({"metric": "accuracy", "min": 0.95}, 0.96, True),
        ({"metric": "accuracy", "min": 0.951}, 0.98, False),
        ({"metric": "log_loss", "max": 0.99}, 0.97, True),
        ({"metric": "log_loss", "max": 0.98}, 0.96, False),
    ],
)
def test_a_bound_with_a_confidence_holds_for_the_whole_interval(gate, value, passed):
    threshold = one(gate | {"confidence": 0.9}, MetricPair(value, BOUNDS))
    assert (threshold.value, threshold.passed) == (value, passed)
    assert threshold.name.endswith(" by its 90 % interval")
    end, bound = ("lower", 0.95) if "min" in gate else ("upper", 0.99)
    assert threshold.note == f"Judged by the {end} bound of the interval, {bound:g}."
    assert passed or refusal_reason([threshold]).endswith(f", was {value:g}: {threshold.note.rstrip('.')}")
    unknown = one(gate | {"confidence": 0.9}, MetricPair(value, None))
    assert not unknown.passed and unknown.note.endswith("has no interval here. Leave confidence out.")


@pytest.mark.parametrize(
    ("gate", "ours", "theirs", "name", "passed"),
    [
        ({"metric": "accuracy", "min_difference": -0.01}, 0.96, 0.97, "accuracy - champion >= -0.01", True),
        ({"metric": "accuracy", "min_difference": -0.01}, 0.95, 0.97, "accuracy - champion >= -0.01", False),
        ({"metric": "log_loss", "max_difference": 0.05}, 0.2, 0.1, "log_loss - champion <= 0.05", False),
        ({"metric": "log_loss", "max_difference": 0.05}, 0.05, 0.1, "log_loss - champion <= 0.05", True),
    ],
)
def test_a_difference_is_ours_less_the_champions(gate, ours, theirs, name, passed):
    paired = Interval(low=-0.02, high=0.01)
    threshold = one(gate, MetricPair(ours, BOUNDS, theirs, paired), THERE)
    assert (threshold.name, threshold.champion, threshold.passed) == (name, theirs, passed)
    assert threshold.value == pytest.approx(ours - theirs)
    assert threshold.interval == paired


def test_boosted_trees_are_a_rival_without_a_champion_and_refuse_if_they_cannot_answer():
    gate = {"metric": "roc_auc", "min_difference": -0.01, "against": "boosted"}
    threshold = one(gate, MetricPair(0.90, BOUNDS, 0.92, Interval(low=-0.03, high=-0.01)))
    assert (threshold.name, threshold.passed) == ("roc_auc - boosted >= -0.01", False)
    assert one(gate, MetricPair(0.92, BOUNDS, 0.92, BOUNDS)).passed
    assert "not grown" in one(gate, MetricPair(0.92, BOUNDS)).note


def test_the_baseline_itself_is_not_better_than_the_baseline():
    gate = {"metric": "accuracy", "min_difference": 0.001, "against": "baseline", "confidence": 0.95}
    assert not one(gate, MetricPair(0.9, BOUNDS, 0.9, Interval(low=0, high=0))).passed
    threshold = one(gate, MetricPair(0.95, BOUNDS, 0.9, Interval(low=0.01, high=0.09)))
    assert (threshold.name, threshold.passed) == ("accuracy - baseline >= 0.001 by its 95 % interval", True)
    assert "One answer to every example cannot be compared" in one(gate, MetricPair(0.95, BOUNDS)).note


def test_a_difference_holds_where_there_is_no_champion_and_says_so():
    threshold = one({"metric": "accuracy", "min_difference": -0.01}, MetricPair(0.9, BOUNDS))
    assert threshold.passed
    assert threshold.champion is None and threshold.value is None
    assert "There is no champion yet" in threshold.note


def test_a_champion_that_could_not_answer_refuses_and_says_why_and_how_to_push_all_the_same():
    threshold = one(
        {"metric": "accuracy", "min_difference": -0.01},
        MetricPair(0.9, BOUNDS),
        ChampionState(present=True, fault="models/3: its input 'age' is no raw feature."),
    )
    assert not threshold.passed
    assert "input 'age' is no raw feature. To push this model all the same" in threshold.note
    assert "without this condition in evaluate.gates" in threshold.note


def test_a_metric_that_was_not_measured_refuses():
    threshold = one({"metric": "roc_auc", "min": 0.1})
    assert not threshold.passed
    assert threshold.note.startswith("roc_auc is not defined on the split.")


@pytest.mark.parametrize("gate", [{"min": 0.0}, {"max": 1.0}, {"min_difference": -1.0}])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_refuses_whatever_the_bound(gate, value):
    threshold = one({"metric": "accuracy", **gate}, MetricPair(value, None, 0.5, None), THERE)
    assert not threshold.passed
    assert "not a number" in threshold.note


def test_a_champion_whose_metric_is_no_number_refuses():
    assert not one({"metric": "accuracy", "min_difference": -1}, MetricPair(0.9, None, math.nan), THERE).passed


def test_a_slice_is_judged_alone_and_named():
    gate = {"metric": "accuracy", "min": 0.9, "slice": "sex=female"}
    threshold = one(gate, MetricPair(0.8, None), slices=["sex=female", "sex=male"])
    assert threshold.name == "accuracy [sex=female] >= 0.9"
    assert not threshold.passed


def test_a_slice_without_examples_refuses_with_the_nearest_name():
    gate = {"metric": "accuracy", "min": 0.0, "slice": "sex=femal"}
    threshold = one(gate, slices=["sex=female", "sex=male"])
    assert not threshold.passed
    assert "Did you mean 'sex=female'?" in threshold.note


def test_one_failed_condition_refuses_the_model_and_all_are_listed():
    gates = [Gate(metric="accuracy", min=0.9), Gate(metric="log_loss", max=0.1)]
    measured = {Subject("accuracy"): MetricPair(0.95, None), Subject("log_loss"): MetricPair(0.2, None)}
    verdict = judge(gates, measured, [], NONE)
    assert verdict.verdict == "refused"
    assert [threshold.passed for threshold in verdict.thresholds] == [True, False]


def test_a_value_that_misses_its_bound_by_little_is_not_shown_as_the_bound():
    verdict = judge([Gate(metric="accuracy", min=0.95)], {Subject("accuracy"): MetricPair(0.9499999, None)}, [], NONE)
    assert refusal_reason(verdict.thresholds) == "accuracy >= 0.95, was 0.9499999"


def test_no_conditions_bless():
    assert judge([], {}, [], NONE).verdict == "blessed"


def recipe_with(gates, **more):
    data = {"format": "csv", "path": "a.csv", "label": "kept", "features": {"age": {"type": "numeric"}}}
    return Recipe.model_validate(
        {"name": "kept", "data": data, "model": {"name": "mlp"}, "evaluate": {"gates": gates}, **more}
    )


THRESHOLD = {"threshold": {"maximize": "f1", "class": "yes"}}


@pytest.mark.parametrize(
    ("gates", "more", "missed", "refused"),
    [
        ([{"metric": "accuracy", "min": 0.5}], {}, 5, True),
        ([{"metric": "accuracy", "min": 0.5}], {}, 4, False),
        ([{"metric": "roc_auc", "min": 0.5}, {"metric": "macro_f1", "min": 0.1}], {}, 20, True),
        ([{"metric": "roc_auc", "min": 0.5}, {"metric": "log_loss", "max": 1}], {}, 20, False),
        ([{"metric": "pr_auc", "min": 0.5, "class": "yes"}], THRESHOLD, 20, True),
        ([], THRESHOLD, 20, False),
    ],
)
def test_one_answer_to_everything_is_refused_where_classes_are_judged(gates, more, missed, refused):
    recipe = recipe_with(gates, **more)
    verdict = judge_one_answer(judge([], {}, [], NONE), recipe, "no", missed)
    assert (verdict.verdict == "refused") == refused
    if refused:
        [condition] = verdict.thresholds
        assert condition.note.startswith(f"The model predicts 'no' for every example, also for {missed} of other")
