"""Evidence in the form that Kubeflow's and Vertex AI's pages draw."""

from __future__ import annotations

from bisect import bisect_right
from statistics import fmean

from trainyard.contract.artifacts.evaluate import Roc

POINTS = 101  # chosen: as fine as the page draws


def mean_roc(curves: list[Roc]) -> tuple[list[float], list[float], list[float]]:
    """Return the points of one curve: false positive rates, true positive rates, thresholds.

    The pages draw a single curve. With several it is the mean of the true positive rates over the classes, each against
    the rest (macro average), read off every curve at the same false positive rates. Such a mean has no thresholds; the
    pages require some that fall, so they get 1 - false positive rate.
    """
    if len(curves) == 1:
        return curves[0].false_positive_rate, curves[0].true_positive_rate, curves[0].threshold
    rates = [index / (POINTS - 1) for index in range(POINTS)]
    means = [fmean(_read(curve, rate) for curve in curves) for rate in rates]
    return rates, means, [1 - rate for rate in rates]


def _read(curve: Roc, rate: float) -> float:
    """Return the true positive rate at the false positive `rate`, linear between the curve's points."""
    xs, ys = curve.false_positive_rate, curve.true_positive_rate
    right = bisect_right(xs, rate)
    if right == 0:
        return 0.0
    if right == len(xs) or xs[right] == xs[right - 1]:
        return ys[right - 1]
    share = (rate - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
