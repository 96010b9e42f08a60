"""The moments of targets, added up part by part."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from trainyard.steps.preprocess.statistics import Summary
from trainyard.values.moments import WeightedMoments


def rows(targets: np.ndarray, weights: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch({"label": [f"{value!r}" for value in targets.tolist()], "measure/n": weights})


def test_parts_in_any_order_give_the_moments_of_the_whole_to_the_last_digit() -> None:
    draw = np.random.default_rng(0)
    targets, weights = np.exp(draw.normal(3, 2, 1000)), draw.integers(0, 5, 1000).astype(float)
    found = []
    for order in (np.arange(1000), draw.permutation(1000)):
        summary = Summary()
        for part in np.array_split(order, 7):
            summary.merge(Summary.from_rows(rows(targets[part], weights[part]), ["y"], weight="n"))
        found.append(summary.document({}).target_moments)
    assert found[0] == found[1]
    for scale, values in {"none": targets, "log": np.log(targets), "log1p": np.log1p(targets)}.items():
        mean = np.average(values, weights=weights)
        deviation = np.sqrt(np.average((values - mean) ** 2, weights=weights))
        [(learned_mean, learned_deviation)] = found[0][scale]
        assert learned_mean == pytest.approx(mean, abs=1e-7 * deviation)
        assert learned_deviation == pytest.approx(deviation, rel=1e-7)


@pytest.mark.parametrize(
    ("targets", "scales"),
    [
        ([1.0, 2.0], {"none", "log", "log1p"}),
        ([0.0, 2.0], {"none", "log1p"}),
        ([-0.5, 2.0], {"none"}),  # log1p has a number for -0.5, but is for targets of at least 0
        ([1e-60, 2.0], {"none", "log1p"}),  # 0 in 32 bits
        ([1e30, 1.0000001e30], {"none"}),  # their logarithms are equal in 32 bits
    ],
)
def test_a_scale_that_some_targets_do_not_fit_has_no_moments(targets: list[float], scales: set[str]) -> None:
    parts = [Summary.from_rows(rows(np.array([target]), np.ones(1)), ["y"]) for target in targets]
    for first, second in (parts, reversed(parts)):
        summary = Summary()
        summary.merge(first)
        summary.merge(second)
        assert set(summary.document({}).target_moments) == scales


def test_equal_targets_have_a_deviation_of_one_and_no_rows_none() -> None:
    moments = WeightedMoments.from_values(np.full(9, 0.1), np.ones(9))
    assert moments.rounded() == (0.1, 1.0) and moments.are_known
    assert not WeightedMoments.from_values(np.zeros(0), np.zeros(0)).are_known
