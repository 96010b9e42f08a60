"""The ROC curve that the pipeline's page draws."""

from __future__ import annotations

import pytest

from trainyard.contract.artifacts.evaluate import Roc, mean_roc

PERFECT = Roc(label="a", false_positive_rate=[0, 0, 1], true_positive_rate=[0, 1, 1], threshold=[1, 0.9, 0.1])
CHANCE = Roc(label="b", false_positive_rate=[0, 1], true_positive_rate=[0, 1], threshold=[1, 0])


def test_a_single_curve_is_drawn_as_it_is() -> None:
    assert mean_roc([PERFECT]) == ([0, 0, 1], [0, 1, 1], [1, 0.9, 0.1])


def test_several_curves_are_drawn_as_their_mean_at_equal_false_positive_rates() -> None:
    rates, means, thresholds = mean_roc([PERFECT, CHANCE])
    assert (rates[0], rates[25], rates[100]) == (0.0, 0.25, 1.0)
    assert (means[0], means[25], means[100]) == pytest.approx((0.5, (1 + 0.25) / 2, 1.0))
    assert thresholds == sorted(thresholds, reverse=True)
