"""Evidence in the form that Kubeflow's and Vertex AI's pages draw."""

from __future__ import annotations

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
    import numpy as np  # which a program that judges itself does without

    rates = np.arange(POINTS) / (POINTS - 1)
    read = [np.interp(rates, curve.false_positive_rate, curve.true_positive_rate, left=0.0) for curve in curves]
    return rates.tolist(), np.mean(read, axis=0).tolist(), (1 - rates).tolist()
