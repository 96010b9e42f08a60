"""The gate over exported files, on figures small enough to check by hand."""

from __future__ import annotations

import pytest

from trainyard.contract.artifacts.export import ExportedFile, Latency
from trainyard.steps.export.parity import ParityFigures, judge


def measured(
    format: str, accuracy: float, trained: float = 0.98, skew: float = 0.0, noise: float = 0.0, furthest: float = 0.0
) -> ParityFigures:
    export = ExportedFile(
        format=format,
        path=format,
        bytes=1,
        accuracy=accuracy,
        accuracy_difference=accuracy - trained,
        max_abs_difference=skew,
        latency_ms=Latency(p50=1, p95=2),
    )
    return ParityFigures(export=export, skew=skew, rise=accuracy / trained - 1, noise=noise, furthest=furthest)


EXACT = ("saved_model", "keras")


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [(0.98, "blessed"), (0.97, "blessed"), (0.9699, "refused"), (1.0, "blessed")]
)
def test_a_file_may_lose_as_much_accuracy_as_the_recipe_says_and_no_more(accuracy: float, verdict: str) -> None:
    gate = judge([measured("litert_int8", accuracy)], "classification", 0.01, EXACT)
    assert gate.verdict == verdict
    assert [(threshold.name, threshold.bound) for threshold in gate.thresholds] == [
        ("litert_int8 accuracy - trained >= -0.01", -0.01),
        ("litert_int8 rms |probability - trained| <= 0.1", 0.1),
    ]


@pytest.mark.parametrize(
    ("error", "verdict"), [(2.0, "blessed"), (1.0, "blessed"), (2.1, "blessed"), (2.11, "refused")]
)
def test_a_regression_s_error_may_rise_by_a_share_of_the_trained_one(error: float, verdict: str) -> None:
    gate = judge([measured("litert_float16", error, trained=2.0)], "regression", 0.05, EXACT)
    assert gate.verdict == verdict
    assert gate.thresholds[0].value == pytest.approx(error / 2 - 1)


def test_exact_formats_must_give_the_same_outputs_and_others_need_not() -> None:
    files = [measured(name, 0.98, skew=1e-3) for name in ("saved_model", "keras", "litert_float32", "litert_int8")]
    gate = judge(files, "classification", 0.01, EXACT)
    assert [threshold.name for threshold in gate.thresholds if not threshold.passed] == [
        "saved_model max |probability - trained| <= 1e-05",
        "keras max |probability - trained| <= 1e-05",
    ]


@pytest.mark.parametrize(
    ("noise", "furthest", "verdict"), [(0.04, 0.4, "blessed"), (0.06, 0.4, "refused"), (0.04, 0.6, "refused")]
)
def test_a_file_whose_error_is_the_trained_one_s_but_whose_predictions_are_not_is_refused(
    noise: float, furthest: float, verdict: str
) -> None:
    file = measured("litert_int8", 2.0, trained=2.0, noise=noise, furthest=furthest)
    assert judge([file], "regression", 0.01, EXACT).verdict == verdict


def test_one_bad_file_refuses_all_and_every_threshold_is_listed() -> None:
    gate = judge([measured("keras", 0.98), measured("litert_int8", 0.5)], "classification", 0, EXACT)
    assert gate.verdict == "refused"
    assert [(threshold.name, threshold.passed) for threshold in gate.thresholds] == [
        ("keras accuracy - trained >= 0", True),
        ("litert_int8 accuracy - trained >= 0", False),
        ("keras max |probability - trained| <= 1e-05", True),
        ("litert_int8 rms |probability - trained| <= 0.1", True),
    ]
