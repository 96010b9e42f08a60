"""A model is held beside one and the same answer to everything."""

from __future__ import annotations

import pytest
from tests.unit import report_folders

from trainyard.contract.artifacts.evaluate import Baseline
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
