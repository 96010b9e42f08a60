"""A model is held beside one and the same answer to everything."""

from __future__ import annotations

import pytest
from tests.unit import report_folders

from trainyard.contract.artifacts.evaluate import Baseline, ClassThreshold
from trainyard.contract.artifacts.gate import Interval


@pytest.mark.parametrize(
    ("metric", "value", "interval", "constant", "doubt"),
    [
        ("accuracy", 0.79, (0.75, 0.83), 0.78, True),
        ("accuracy", 0.95, (0.92, 0.97), 0.78, False),
        ("accuracy", 0.95, None, 0.78, False),
        ("mae", 5.0, (4.5, 5.5), 5.4, True),
        ("mae", 2.0, (1.5, 2.5), 5.4, False),
    ],
)
def test_the_remark_doubts_a_model_whose_interval_holds_what_a_constant_reaches(
    metric: str, value: float, interval: tuple[float, float] | None, constant: float, doubt: bool
) -> None:
    bounds = {} if interval is None else {metric: Interval(low=interval[0], high=interval[1])}
    evaluation = report_folders.evaluation("seven").model_copy(
        update={
            "metrics": {metric: value},
            "intervals": bounds,
            "baseline": Baseline(answer="'no'", metrics={metric: constant}),
        }
    )
    assert evaluation.remark.startswith(f"'no' as the answer to everything has {metric} {constant:.4f}")
    assert ("the model is not significantly better" in evaluation.remark) == doubt


def test_an_evaluation_of_an_earlier_version_has_no_remark() -> None:
    assert report_folders.evaluation("seven").remark == ""


@pytest.mark.parametrize(("high", "says"), [(0.7, True), (1.01, False)])
def test_the_remark_says_that_predictions_have_another_total_than_the_targets(high: float, says: bool) -> None:
    evaluation = report_folders.evaluation("seven").model_copy(
        update={"metrics": {"mean_ratio": 0.6}, "intervals": {"mean_ratio": Interval(low=0.5, high=high)}}
    )
    sentence = f"The mean prediction is 0.6000 times the mean target (95 %: 0.5000 to {high:.4f}). A logarithmic train"
    assert evaluation.remark.startswith(sentence) == says


def test_the_remark_does_not_doubt_an_accuracy_that_a_threshold_trades_for_its_class() -> None:
    evaluation = report_folders.evaluation("seven").model_copy(
        update={
            "metrics": {"accuracy": 0.8},
            "intervals": {"accuracy": Interval(low=0.75, high=0.85)},
            "baseline": Baseline(answer="'no'", metrics={"accuracy": 0.97}),
            "thresholds": [ClassThreshold(label="yes", value=0.1, precision=0.2, recall=0.5, f1=0.3)],
        }
    )
    assert "has accuracy 0.9700; a threshold may have less" in evaluation.remark
    assert "not significantly better" not in evaluation.remark
