"""Metrics against numbers worked out by hand, and their intervals against the truth they should hold."""

import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sklearn_metrics

import trainyard
from trainyard.spec import gates
from trainyard.steps.evaluate import curves
from trainyard.steps.evaluate.metrics.bootstrap import (
    differences,
    intervals,
    measure_with_intervals,
    percentiles,
    resample,
)
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import CLASS_METRICS, METRICS, each_statistic, measure


def predictions(labels, rows):
    return SplitPredictions(np.array(labels), np.array(rows, np.float32))


# Two classes; the answers are 1 0 1 0 for the labels 1 0 0 1: two of four are right.
BINARY = predictions([1, 0, 0, 1], [[0.2, 0.8], [0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])


def test_binary_metrics_equal_those_worked_out_by_hand():
    metrics = measure("classification", BINARY)
    assert metrics["accuracy"] == 0.5
    # Each class: precision 1/2, recall 1/2.
    assert metrics["macro_f1"] == pytest.approx(0.5)
    # Pairs of a positive (0.8, 0.3) and a negative (0.1, 0.6): 0.8 beats both, 0.3 beats 0.1 alone.
    assert metrics["roc_auc"] == pytest.approx(3 / 4)
    assert metrics["log_loss"] == pytest.approx(-sum(map(math.log, (0.8, 0.9, 0.4, 0.3))) / 4, rel=1e-6)
    # Confidences 0.8 right, 0.9 right, 0.6 wrong, 0.7 wrong, each in a bin of its own.
    assert metrics["calibration_error"] == pytest.approx((0.2 + 0.1 + 0.6 + 0.7) / 4, rel=1e-6)
    assert "top5_accuracy" not in metrics


def test_calibration_error_compares_accuracy_and_confidence_within_a_bin():
    same_bin = predictions([0, 1], [[0.75, 0.25], [0.75, 0.25]])
    assert measure("classification", same_bin)["calibration_error"] == pytest.approx(0.75 - 0.5)


def test_top5_counts_a_label_at_the_fifth_place_and_not_at_the_sixth():
    row = np.array([0.3, 0.2, 0.15, 0.13, 0.12, 0.1])
    assert measure("classification", predictions([4, 5], [row, row]))["top5_accuracy"] == 0.5


def test_a_model_that_gives_every_class_the_same_probability_has_no_top5_by_luck_of_ties():
    metrics = measure("classification", predictions(range(10), np.full((10, 10), 0.1)))
    assert metrics["top5_accuracy"] == 0.5
    assert metrics["roc_auc"] == pytest.approx(0.5)


def test_macro_f1_is_the_mean_over_classes_that_have_examples():
    # Class 2 has no example and one false find, which costs class 0 its recall: F1 of 0 is 2*1*0.5/1.5, of 1 is 1.
    metrics = measure("classification", predictions([0, 0, 1], [[1, 0, 0], [0, 0, 1], [0, 1, 0]]))
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_resamples_without_a_rare_class_that_is_never_found_do_not_lift_the_interval_of_macro_f1():
    # Of 300 examples 3 are of class 1, and each is taken for class 0: one resample in twenty holds none of them.
    answers = predictions([1] * 3 + [0] * 297, [[0.9, 0.1]] * 300)
    value = measure("classification", answers)["macro_f1"]
    interval = intervals("classification", answers, {"macro_f1": value}, 1000, 1)["macro_f1"]
    assert interval.low < value == pytest.approx(297 / 597) and interval.high <= 0.5


def test_a_metric_that_is_not_defined_is_left_out():
    assert "roc_auc" not in measure("classification", predictions([1, 1], [[0.2, 0.8], [0.4, 0.6]]))
    assert "r2" not in measure("regression", SplitPredictions(np.float32([1]), np.float32([2])))


def test_a_certain_mistake_costs_a_finite_loss():
    assert measure("classification", predictions([0], [[0, 1]]))["log_loss"] == pytest.approx(15.9424, abs=1e-3)


def test_regression_metrics_equal_those_worked_out_by_hand():
    metrics = measure("regression", SplitPredictions(np.float32([1, 2, 3, 6]), np.float32([1, 3, 3, 3])))
    assert metrics["mae"] == pytest.approx(1)
    assert metrics["rmse"] == pytest.approx(math.sqrt(10 / 4))
    # Spread around the mean 3: 4 + 1 + 0 + 9.
    assert metrics["r2"] == pytest.approx(1 - 10 / 14)
    assert metrics["mean_ratio"] == pytest.approx(10 / 12)


def test_the_mean_ratio_counts_by_weights_and_is_left_out_where_it_says_nothing():
    weights = np.float32([3, 1])
    metrics = measure("regression", SplitPredictions(np.float32([1, 5]), np.float32([2, 2]), weights))
    assert metrics["mean_ratio"] == pytest.approx((3 * 2 + 2) / (3 * 1 + 5))
    draw = np.random.default_rng(1).normal(size=(100, 2)).astype(np.float32)
    assert "mean_ratio" not in measure("regression", SplitPredictions(draw[:, 0], draw[:, 0])), "a mean near 0"
    assert "mean_ratio" in measure("regression", SplitPredictions(draw[:, 0] - 2, draw[:, 0]))
    several = SplitPredictions(draw + 9, draw + 9)
    assert "mean_ratio" not in measure("regression", several), "a mean over targets hides them"
    assert measure("regression", several.one_target(1))["mean_ratio"] == 1


def rare_answers(share, signal, count, seed):
    """Return answers about a class of this share, as a split by class has it; signal: what its scores are higher by."""
    draw = np.random.default_rng(seed)
    labels = (np.arange(count) < share * count).astype(np.int64)
    scores = 1 / (1 + np.exp(-draw.normal(size=count) - signal * labels))
    return SplitPredictions(labels, np.stack([1 - scores, scores], axis=1).astype(np.float32))


def test_intervals_of_totals_and_of_a_rare_classes_area_hold_the_truth_in_92_to_98_percent_of_300_test_splits():
    covered = {"mean_ratio": 0, "pr_auc": 0}
    area = measure("classification", rare_answers(0.3, 1.2, 200_000, 999).one_class(1), ["pr_auc"])["pr_auc"]
    for seed in range(300):
        draw = np.random.default_rng(seed)
        median = np.exp(draw.uniform(-2, 2, 400)).astype(np.float32)
        totals = SplitPredictions((median * np.exp(draw.normal(0, 0.5, 400))).astype(np.float32), median)
        one = rare_answers(0.3, 1.2, 400, seed).one_class(1)
        for task, answers, name, truth in (
            ("regression", totals, "mean_ratio", math.exp(-(0.5**2) / 2)),
            ("classification", one, "pr_auc", area),
        ):
            bound = intervals(task, answers, measure(task, answers, [name]), 200, seed)[name]
            covered[name] += bound.low <= truth <= bound.high
    assert all(0.92 * 300 <= count <= 0.98 * 300 for count in covered.values()), covered


def test_an_area_of_a_class_with_four_examples_has_no_interval():
    for count, has_interval in ((4, False), (5, True)):
        one = rare_answers(count / 100, 1, 100, 3).one_class(1)
        metrics = measure("classification", one, ["roc_auc", "pr_auc"])
        assert bool(intervals("classification", one, metrics, 50, 1)) == has_interval
        assert bool(differences("classification", ["pr_auc"], one, one, 50, 1)) == has_interval


@pytest.mark.parametrize("unit", [1e-25, 1e20])
def test_targets_whose_squares_float32_does_not_hold_are_judged_alike(unit):
    """Atoms weigh 1e-25 kg and stars 1e30: with squares of 0 any model would be perfect, of infinity none defined."""
    labels, outputs = np.float32([1, 2, 3, 6]), np.float32([1, 3, 3, 3])
    plain = measure("regression", SplitPredictions(labels, outputs))
    scaled = measure("regression", SplitPredictions(labels * np.float32(unit), outputs * np.float32(unit)))
    expected = {"mae": plain["mae"] * unit, "rmse": plain["rmse"] * unit, "r2": plain["r2"]}
    expected["mean_ratio"] = plain["mean_ratio"]
    assert scaled == pytest.approx(expected, rel=1e-6, abs=0)


def random_answers(examples, classes, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, examples)
    logits = generator.normal(size=(examples, classes))
    logits[np.arange(examples), labels] += 1.5
    odds = np.exp(logits)
    return predictions(labels, np.round(odds / odds.sum(axis=1, keepdims=True), 3))


def test_the_registry_has_the_metrics_that_recipes_may_name():
    assert tuple(gates.METRIC_SPECS) == get_args(gates.MetricName)
    assert {task: set(metrics) for task, metrics in METRICS.items()} == {
        task: set(names) for task, names in gates.METRICS.items()
    }
    assert tuple(CLASS_METRICS) == gates.CLASS_METRICS and set(METRICS) == set(get_args(gates.Task))
    assert gates.MAIN_METRIC == {"classification": "accuracy", "multi_label": "f1", "regression": "mae"}


def test_a_metric_stands_where_it_is_specified_and_where_it_is_computed():
    package = Path(trainyard.__path__[0])
    named = {
        path.name
        for path in package.rglob("*.py")
        if re.search('"(exact_match|calibration_error)"', path.read_text(encoding="utf-8"))
    }
    assert named == {"gates.py", "registry.py", "scores.py"}


def scikit_learn_metrics(task, answers):
    """Return the metrics that scikit-learn has, as it computes them."""
    labels, outputs, how = answers.labels, answers.outputs, {"sample_weight": answers.weights}
    if task == "regression":
        pair = labels.astype(np.float64), outputs.astype(np.float64)
        names = {"mae": "mean_absolute_error", "rmse": "root_mean_squared_error", "r2": "r2_score"}
        return {name: getattr(sklearn_metrics, function)(*pair, **how) for name, function in names.items()}
    several = labels.ndim == 2
    predicted = outputs > 0.5 if several else outputs.argmax(axis=1)
    present = np.flatnonzero(labels.any(axis=0)) if several else np.unique(labels)
    found = {"exact_match" if several else "accuracy": sklearn_metrics.accuracy_score(labels, predicted, **how)}
    found["macro_f1"] = sklearn_metrics.f1_score(labels, predicted, labels=present, average="macro", **how)
    for name, area in (("roc_auc", "roc_auc_score"), ("pr_auc", "average_precision_score")):
        ones = [(labels[:, at] if several else labels == at, outputs[:, at]) for at in present]
        found[name] = np.mean([getattr(sklearn_metrics, area)(*one, **how) for one in ones])
    return found


def answers_of(task, weighed, count=300):
    draw = np.random.default_rng(7)
    outputs = np.round(draw.dirichlet(np.ones(8), count), 2).astype(np.float32)  # with ties
    labels = (outputs + draw.normal(0, 0.1, outputs.shape)).argmax(axis=1)
    if task == "multi_label":
        outputs, labels = draw.random((count, 4)).astype(np.float32), draw.random((count, 4)) < 0.4
    if task == "regression":
        labels, outputs = (draw.normal(size=(count, 2)).astype(np.float32) for _ in range(2))
    return SplitPredictions(labels, outputs, draw.integers(1, 4, count).astype(np.float32) if weighed else None)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("task", get_args(gates.Task))
def test_metrics_are_those_of_scikit_learn(task, weighed):
    answers = answers_of(task, weighed)
    metrics = measure(task, answers)
    for name, value in scikit_learn_metrics(task, answers).items():
        assert metrics[name] == pytest.approx(value, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_the_metrics_of_one_class_are_those_of_scikit_learn_and_are_resampled(task, weighed):
    answers = answers_of(task, weighed)
    one = answers.one_class(2)
    metrics, how = measure(task, one), {"sample_weight": answers.weights}
    for name in ("precision", "recall", "f1"):
        value = getattr(sklearn_metrics, f"{name}_score")(one.actual, one.predicted, **how)
        assert metrics[name] == pytest.approx(value, abs=1e-12), name
    for name, area in (("roc_auc", "roc_auc_score"), ("pr_auc", "average_precision_score")):
        value = getattr(sklearn_metrics, area)(one.actual, one.scores, **how)
        assert metrics[name] == pytest.approx(value, abs=1e-12), name
    times = np.random.default_rng(0).integers(0, 3, 300)
    repeated = measure(task, answers.take(np.repeat(np.arange(300), times)).one_class(2))
    for name, statistic in each_statistic(task, one):
        found = statistic(times[None].astype(float))[0]
        assert found == pytest.approx(repeated[name], rel=CLASS_METRICS[name].tolerance), name
    bounds = intervals(task, one, metrics, 500, 1)
    assert bounds.keys() == metrics.keys() == set(CLASS_METRICS)
    assert all(bounds[name].low < value < bounds[name].high for name, value in metrics.items())
    narrow = intervals(task, one, metrics, 500, 1, confidence=0.5)
    assert all(bounds[name].low < narrow[name].low < narrow[name].high < bounds[name].high for name in metrics)


def test_a_class_that_was_never_predicted_has_no_precision_and_one_without_examples_no_recall():
    answers = predictions([0, 0, 1], [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.6, 0.4, 0]])
    assert measure("classification", answers.one_class(1)).keys() == {"recall", "f1", "roc_auc", "pr_auc"}
    assert measure("classification", answers.one_class(2)) == {}
    never = predictions([0] * 40 + [1] * 12, [[1, 0]] * 52).one_class(1)
    bounds = intervals("classification", never, measure("classification", never), 20, seed=1)
    assert bounds["f1"] == bounds["recall"] and bounds["recall"].low == 0 < bounds["recall"].high < 0.3


def test_the_interval_of_a_class_that_is_always_found_follows_from_its_examples():
    """Recall 12 of 12: (0.025)^(1/12) = 0.7354 (Clopper and Pearson)."""
    one = predictions([0] * 40 + [1] * 12, [[1, 0]] * 40 + [[0, 1]] * 12).one_class(1)
    bounds = intervals("classification", one, measure("classification", one), 50, seed=1)
    assert [bounds[name].low for name in ("recall", "precision", "f1", "roc_auc")] == pytest.approx(
        [0.7354] * 4, abs=1e-4
    )
    assert {bound.high for bound in bounds.values()} == {1}


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_resampled_form_of_every_metric_is_that_of_the_examples_drawn(classes):
    """Weights of 0, 1 and 2 are the same as leaving out and repeating examples."""
    answers = random_answers(200, classes, seed=classes)
    weights = np.random.default_rng(0).integers(0, 3, (1, 200)).astype(float)
    repeated = measure("classification", answers.take(np.repeat(np.arange(200), weights[0].astype(int))))
    for name, statistic in each_statistic("classification", answers):
        tolerance = METRICS["classification"][name].tolerance
        assert statistic(weights)[0] == pytest.approx(repeated[name], rel=tolerance), name


def test_the_resampled_form_of_regression_metrics_agrees_with_their_plain_form():
    generator = np.random.default_rng(5)
    labels = generator.normal(1000, 3, 100)
    answers = SplitPredictions(labels, labels + generator.normal(0, 1, 100))
    weights = generator.integers(0, 3, (1, 100)).astype(float)
    repeated = measure("regression", answers.take(np.repeat(np.arange(100), weights[0].astype(int))))
    for name, statistic in each_statistic("regression", answers):
        assert statistic(weights)[0] == pytest.approx(repeated[name], rel=1e-9), name


def test_a_95_percent_interval_holds_the_true_value_about_95_times_in_100():
    names = ("accuracy", "roc_auc", "pr_auc", "log_loss")
    truth = measure("classification", random_answers(100_000, 2, seed=999))
    covered = dict.fromkeys(names, 0)
    for seed in range(150):
        metric_statistics = dict(each_statistic("classification", random_answers(200, 2, seed)))
        for name, drawn in resample([(name, metric_statistics[name]) for name in names], 200, 200, seed).items():
            bound = drawn.interval()
            covered[name] += bound.low <= truth[name] <= bound.high
    # 142.5 of 150 are expected, standard deviation 2.7; percentile intervals of 200 examples fall a little short.
    assert all(134 <= count <= 149 for count in covered.values()), covered


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("rows", [60, 600])
def test_the_interval_of_a_skewed_mean_is_that_of_scipy(rows, weighed):
    draw = np.random.default_rng(3)
    errors, weights = draw.lognormal(0, 1.2, rows), draw.choice([1.0, 3.0], rows) if weighed else np.ones(rows)
    answers = SplitPredictions(np.zeros(rows), errors, weights if weighed else None)

    def mean(values, times, axis=-1):
        return (values * times).sum(axis=axis) / times.sum(axis=axis)

    expected = scipy.stats.bootstrap(
        (errors, weights), mean, paired=True, method="BCa", n_resamples=8000, rng=np.random.default_rng(4)
    ).confidence_interval
    found = resample(each_statistic("regression", answers, ["mae"]), rows, 8000, seed=1)["mae"]
    tolerance = 0.04 * (expected.high - expected.low)
    assert tuple(found.interval().model_dump().values()) == pytest.approx(tuple(expected), abs=tolerance)
    assert percentiles(found.draws).high < expected.high - tolerance


def test_equal_seeds_give_equal_intervals_and_other_seeds_others():
    answers = random_answers(50, 3, seed=1)
    values = measure("classification", answers)
    first, again, other = (intervals("classification", answers, values, 100, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_interval_of_a_share_without_a_mistake_is_the_exact_one():
    """20 of 20: (0.025)^(1/20) = 0.8316 (Clopper and Pearson)."""
    answers = predictions([0] * 10 + [1] * 10, [[1, 0]] * 10 + [[0, 1]] * 10)
    bounds = intervals("classification", answers, measure("classification", answers), 50, seed=1)
    assert bounds["accuracy"].low == pytest.approx(0.8316, abs=1e-4)
    assert bounds["accuracy"].high == 1
    assert bounds["roc_auc"].low == pytest.approx(0.6915, abs=1e-4), "as of a share of the ten of a class"


def test_the_interval_of_calibration_error_holds_the_value_itself():
    answers = random_answers(300, 5, seed=3)
    value = measure("classification", answers)["calibration_error"]
    bound = intervals("classification", answers, {"calibration_error": value}, 300, seed=1)["calibration_error"]
    assert bound.low < value < bound.high


def test_a_paired_difference_is_narrower_than_two_separate_intervals():
    ours = random_answers(400, 3, seed=7)
    theirs = SplitPredictions(ours.labels, ours.outputs.copy())
    theirs.outputs[:8] = 1 / 3
    paired = differences("classification", ["accuracy"], ours, theirs, 300, seed=1)["accuracy"]
    own = intervals("classification", ours, measure("classification", ours), 300, seed=1)["accuracy"]
    assert paired.high - paired.low < (own.high - own.low) / 2
    same = differences("classification", ["accuracy"], ours, ours, 100, seed=1)["accuracy"]
    assert (same.low, same.high) == (0, 0)


def test_resamples_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    answers = random_answers(60, 3, seed=2)
    whole = resample(each_statistic("classification", answers), 60, 20, seed=4)
    monkeypatch.setattr("trainyard.steps.evaluate.metrics.bootstrap.CELLS", 60 * 3)
    for name, drawn in resample(each_statistic("classification", answers), 60, 20, seed=4).items():
        assert drawn.draws == pytest.approx(whole[name].draws), name
        assert drawn.without_block == pytest.approx(whole[name].without_block), name


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("task", get_args(gates.Task))
def test_a_large_set_has_the_metrics_of_a_small_one_and_intervals_as_wide_whatever_its_order(
    task, weighed, monkeypatch
):
    answers = answers_of(task, weighed, 1200)
    answers = answers.take(np.argsort(answers.losses))  # the right ones first
    metrics = measure(task, answers)
    whole = intervals(task, answers, metrics, 500, 1)
    rival = answers.take(np.arange(1200))  # a copy
    rival.outputs[:100] = rival.outputs[:100][:, ::-1]
    paired = differences(task, metrics, answers, rival, 500, 1)
    package = "trainyard.steps.evaluate.metrics"
    for name in (f"{package}.statistic.MOST_WHOLE", f"{package}.bootstrap.MOST_WHOLE", f"{package}.statistic._BLOCK"):
        monkeypatch.setattr(name, 700)
    monkeypatch.setattr(f"{package}.bootstrap.GROUPS", 400)
    assert measure(task, answers) == pytest.approx(metrics, rel=1e-9)
    at_once = measure_with_intervals(task, answers, 500, 1)
    assert at_once == (pytest.approx(metrics, rel=1e-9), intervals(task, answers, metrics, 500, 1))
    for before, grouped in (
        (whole, intervals(task, answers, metrics, 500, 1)),
        (paired, differences(task, metrics, answers, rival, 500, 1)),
    ):
        assert grouped.keys() == before.keys()
        for name, interval in grouped.items():
            width = before[name].high - before[name].low
            assert interval.high - interval.low == pytest.approx(width, rel=0.2), name
            assert interval.low == pytest.approx(before[name].low, abs=0.2 * width), name


def test_draws_that_are_undefined_are_left_out_of_an_interval():
    assert percentiles(np.array([np.nan, np.nan])) is None
    assert percentiles(np.array([1.0, np.nan, 1.0])).low == 1


def test_confusion_and_classes_count_true_rows_and_predicted_columns():
    answers = predictions([0, 0, 1, 2], [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
    assert curves.confusion(answers, 3) == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    first, second, third = curves.class_metrics(answers, ["a", "b", "c"])
    assert (first.precision, first.recall, first.examples) == (1, 0.5, 2)
    assert second.precision == pytest.approx(1 / 3)
    assert (third.precision, third.recall, third.f1) == (0, 0, 0)


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_the_metrics_of_classes_with_weights_are_those_of_scikit_learn(task):
    answers = answers_of(task, weighed=True, count=200)
    names = [str(index) for index in range(answers.outputs.shape[1])]
    expected = sklearn_metrics.precision_recall_fscore_support(
        answers.labels, answers.predicted, labels=range(len(names)), sample_weight=answers.weights, zero_division=0
    )
    found = curves.class_metrics(answers, names)
    assert [each.precision for each in found] == pytest.approx(expected[0])
    assert [each.recall for each in found] == pytest.approx(expected[1])
    assert [each.f1 for each in found] == pytest.approx(expected[2])


def test_the_largest_losses_come_first_and_of_equal_ones_those_of_earlier_examples():
    answers = SplitPredictions(np.zeros(6, np.float32), np.float32([1, 3, 2, 3, 2, 2]))
    for count in range(8):
        assert answers.largest_losses(count).tolist() == [1, 3, 2, 4, 5, 0][:count]


def test_a_roc_curve_runs_from_corner_to_corner_with_finite_falling_thresholds():
    (curve,) = curves.roc_curves(BINARY, ["no", "yes"])
    assert curve.label == "yes"
    assert (curve.false_positive_rate[0], curve.true_positive_rate[0]) == (0, 0)
    assert (curve.false_positive_rate[-1], curve.true_positive_rate[-1]) == (1, 1)
    assert curve.threshold == sorted(curve.threshold, reverse=True)
    assert all(math.isfinite(value) for value in curve.threshold)


def test_calibration_bins_hold_every_example_once():
    bins = curves.calibration(random_answers(100, 4, seed=1))
    assert sum(calibration_bin.examples for calibration_bin in bins) == 100
    assert [calibration_bin.confidence for calibration_bin in bins] == sorted(
        calibration_bin.confidence for calibration_bin in bins
    )


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_an_example_of_weight_three_counts_as_three_and_one_of_none_not_at_all(task):
    draw = np.random.default_rng(5)
    times = draw.integers(0, 4, 300)
    if task == "regression":
        labels = draw.normal(size=300).astype(np.float32)
        outputs = labels + draw.normal(size=300).astype(np.float32)
    else:
        labels, outputs = draw.integers(0, 7, 300), draw.dirichlet(np.ones(7), 300).astype(np.float32)
        labels[0], times[0] = 7, 0  # a class of which no example counts
        outputs = np.concatenate([outputs, np.zeros((300, 1), np.float32)], axis=1)
    weighed = SplitPredictions(labels, outputs, times.astype(np.float32))
    repeated = SplitPredictions(np.repeat(labels, times), np.repeat(outputs, times, axis=0))
    expected, metrics = measure(task, repeated), measure(task, weighed)
    assert metrics == pytest.approx(expected, rel=1e-6)
    once, alike = np.ones((1, 300)), np.ones((1, times.sum()))
    for name, statistic in each_statistic(task, weighed):
        assert statistic(once)[0] == pytest.approx(metrics[name], rel=1e-6, abs=1e-6), name
        resampled = draw.integers(0, 3, (4, 300)).astype(np.float64)
        repeated_values = dict(each_statistic(task, repeated))[name](np.repeat(resampled, times, axis=1))
        np.testing.assert_allclose(statistic(resampled), repeated_values, rtol=1e-6, err_msg=name)
        assert dict(each_statistic(task, repeated))[name](alike)[0] == pytest.approx(metrics[name], rel=1e-6, abs=1e-6)


def test_few_examples_that_count_much_leave_a_wide_interval():
    right = np.tile(np.float32([[0.1, 0.9]]), (100, 1))
    alike = SplitPredictions(np.ones(100, int), right)
    uneven = SplitPredictions(np.ones(100, int), right, np.float32([1000] * 4 + [1] * 96))
    narrow, wide = (
        intervals("classification", answers, {"accuracy": 1.0}, 100, 1)["accuracy"] for answers in (alike, uneven)
    )
    assert narrow.low > 0.96
    assert wide.low < 0.6
