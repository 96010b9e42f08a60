"""Examples of several classes, and several targets: the recipe, the cells of a table, and the metrics by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from table_recipes import HOUSES, SONGS
from tests import small_documents

from trainyard.contract.artifacts.gate import Interval, Verdict
from trainyard.readers.rows import RowBatch
from trainyard.spec.gates import ALL_METRICS, MAIN_METRIC, Gate
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate import gate
from trainyard.steps.evaluate.gate import ChampionState, MetricPair, Subject
from trainyard.steps.evaluate.metrics.bootstrap import intervals
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import METRICS, each_statistic, measure
from trainyard.steps.preprocess.readers.records import BadRecord, batch_schema
from trainyard.steps.preprocess.readers.tables import ColumnValidator, check_row
from trainyard.steps.preprocess.statistics import Summary
from trainyard_control.search.learning_curve import _point


def changed(recipe: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return recipe | {
        name: recipe.get(name, {}) | value if isinstance(value, dict) else value for name, value in sections.items()
    }


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (changed(SONGS, data={"label_separator": None}), "data.label_separator: says where the classes of a cell"),
        (changed(SONGS, data={"label_separator": " ;"}), "separator ' ;' has white space around it"),
        (changed(SONGS, task="classification"), "It is for task: multi_label. Leave it out"),
        (changed(HOUSES, data={"label_min_count": 2}), "several, and the task is regression. Leave it out"),
        (
            changed(SONGS, task="classification", data={"label_separator": None, "label_min_count": 2}),
            "Leave it out, and drop rows by data.where, such as label not in ['rare']",
        ),
        (changed(SONGS, train={"class_weights": "balanced"}), "an example may have several classes. Leave it out"),
        (changed(SONGS, data={"split": {"by": "class"}}), "and an example may have several classes. Leave it out"),
        (changed(SONGS, evaluate={"slices": ["genres"]}), "evaluate.slices: no feature 'genres'"),
        (
            changed(SONGS, evaluate={"gates": [{"metric": "accuracy", "min": 0.5}]}),
            "'accuracy' is no metric of a multi_label. Known: f1, macro_f1, exact_match",
        ),
        (
            changed(SONGS, data={"format": "image_folder", "features": {}}, model={"name": "cnn_small"}),
            "image_folder has one class an example",
        ),
        (changed(HOUSES, task="classification"), "are several numbers to predict, and the task is classification"),
        (changed(HOUSES, data={"label": "price"}), "is not predicted beside data.targets"),
        (changed(HOUSES, data={"targets": ["heating", "heating"]}), "name a column twice"),
        (changed(HOUSES, data={"targets": ["area", "heating"]}), "the name 'area' is taken"),
        (changed(HOUSES, data={"weight": "cooling"}), "'cooling' is the label or what the model is served"),
        (
            changed(HOUSES, evaluate={"gates": [{"metric": "mae", "max": 2, "target": "heatin"}]}),
            "'heatin' is not in data.targets. Did you mean 'heating'? Name one",
        ),
    ],
)
def test_what_does_not_go_with_several_labels_is_refused(recipe: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        Recipe.model_validate(recipe)
    text = str(error.value.errors())
    assert sentence.split(": ", 1)[-1] in text, text


def test_a_cell_of_classes_is_the_set_of_them_in_any_order_and_an_empty_one_has_none() -> None:
    data = Recipe.model_validate(SONGS).data
    labels = {
        text: check_row({"tempo": "1", "genres": text}, "s", data, "multi_label").label  # type: ignore[union-attr]
        for text in ("rock; pop", " pop ;rock;;rock", "", " ; ", "jazz")
    }
    assert labels == {"rock; pop": "pop\nrock", " pop ;rock;;rock": "pop\nrock", "": "", " ; ": "", "jazz": "jazz"}
    with pytest.raises(BadRecord, match="line break"):
        check_row({"tempo": "1", "genres": "a\nb"}, "s", data, "multi_label")


@pytest.mark.parametrize(
    ("recipe", "columns", "bad"),
    [
        (SONGS, {"tempo": ["1", "2", "x", "4"], "genres": ["b; a", "", "c", "a\nb"]}, {2, 3}),
        (
            HOUSES,
            {"area": ["1", "2", "3", "4"], "heating": ["5", "", "7", "8.5"], "cooling": ["1e1", "2", "many", "4"]},
            {1, 2},
        ),
    ],
)
def test_many_rows_at_once_have_the_labels_that_each_has_alone(
    recipe: dict[str, Any], columns: dict[str, list[str]], bad: set[int]
) -> None:
    read = Recipe.model_validate(recipe)
    texts = pa.RecordBatch.from_pydict({name: pa.array(texts) for name, texts in columns.items()})
    batch, rejected, _ = ColumnValidator(read.data, read.task).check(RowBatch("r", texts, np.arange(4)))
    assert batch.schema == batch_schema(read.data) and {item.row for item in rejected} == bad
    for index, source in enumerate(batch["source"].to_pylist()):
        row = {name: texts[int(source[2:])] for name, texts in columns.items()}
        alone = check_row(row, source, read.data, read.task)
        assert alone is not None and batch["label"][index].as_py() == alone.label
    counted = Summary.from_rows(batch, read.data.targets)
    if read.task == "multi_label":
        assert counted.labels == {"a": 1, "b": 1} and counted.examples == 2
    else:
        assert {name: counted.numbers[name].mean for name in ("heating", "cooling")} == {"heating": 6.75, "cooling": 7}


def test_the_metrics_of_several_classes_by_hand() -> None:
    labels = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]], np.bool_)
    outputs = np.float32([[0.9, 0.4, 0.1], [0.2, 0.1, 0.3], [0.6, 0.7, 0.8], [0.8, 0.1, 0.2]])
    metrics = measure("multi_label", SplitPredictions(labels, outputs))
    # By example: one of two classes found, none and none, both and one too many, all.
    assert metrics["f1"] == pytest.approx(np.mean([2 / 3, 1, 4 / 5, 1]))
    # By class: (2 right, 1 too many), (1 right, 1 missed), (1 right).
    assert metrics["macro_f1"] == pytest.approx(np.mean([4 / 5, 2 / 3, 1]))
    assert metrics["exact_match"] == 0.5
    # Of the pairs of a row that has the class and one that has not, those in order: 4 of 4, 4 of 4, 3 of 3.
    assert metrics["roc_auc"] == pytest.approx(1)
    right = np.where(labels, outputs, 1 - outputs)
    assert metrics["log_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-6)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_the_resampled_metrics_of_several_labels_are_those_of_the_examples_drawn(task: Any, weighed: bool) -> None:
    draw = np.random.default_rng(5)
    outputs = draw.random((80, 4)).astype(np.float32)
    labels = draw.random((80, 4)) < 0.2 + 0.6 * outputs if task == "multi_label" else outputs + draw.random((80, 4)) / 3
    if task == "multi_label":
        labels[:, 3] = False  # a class that no example has
    labels = labels if task == "multi_label" else labels.astype(np.float32)
    own = draw.integers(1, 4, 80).astype(np.float32) if weighed else None
    judged = SplitPredictions(labels, outputs, own)
    times = draw.integers(0, 3, 80)
    repeated = judged.take(np.repeat(np.arange(80), times))
    expected = measure(task, repeated)
    resampled = dict(each_statistic(task, judged))
    assert resampled.keys() == expected.keys()
    for name, statistic in resampled.items():
        within = max(METRICS[task][name].tolerance, 1e-5)
        assert statistic(times[None].astype(float))[0] == pytest.approx(expected[name], rel=within), name
    assert intervals(task, judged, expected, 50, 1).keys() == expected.keys()


def test_several_targets_are_judged_by_the_mean_over_them_and_each_alone() -> None:
    judged = SplitPredictions(np.float32([[1, 100], [3, 300]]), np.float32([[2, 100], [3, 260]]))
    assert measure("regression", judged)["mae"] == pytest.approx((0.5 + 20) / 2)
    assert measure("regression", judged.one_target(1))["mae"] == pytest.approx(20)
    # Each is a share of its own variance, 1 and 10,000.
    np.testing.assert_allclose(judged.losses, [1 / 2, 1600 / 10_000 / 2])


def test_a_gate_may_be_about_one_target() -> None:
    both = [Gate(metric="mae", max=11), Gate(metric="mae", max=11, target="cooling")]
    measured = {
        Subject("mae"): MetricPair(10.25, None),
        Subject("mae", target="cooling"): MetricPair(20, None),
    }
    verdict = gate.judge(both, measured, [], ChampionState(present=False))
    assert [(threshold.name, threshold.passed) for threshold in verdict.thresholds] == [
        ("mae <= 11", True),
        ("mae of cooling <= 11", False),
    ]


def test_each_task_has_a_main_metric_that_a_report_and_a_learning_curve_know() -> None:
    assert {*MAIN_METRIC.values()} <= {*ALL_METRICS}
    judged = small_documents.evaluation(
        metrics={"roc_auc": 0.9, "f1": 0.75},
        intervals={"f1": Interval(low=0.7, high=0.8)},
        gate=Verdict(verdict="blessed", thresholds=[]),
    )
    assert judged.main_metric == "f1"
    point = _point(1.0, 500, judged)
    assert (point.error, point.low, point.high) == pytest.approx((0.25, 0.2, 0.3))
