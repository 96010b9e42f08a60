"""Examples by falling score, as areas under curves and decision thresholds need them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.steps.evaluate.metrics.predictions import Floats, full_weights


class Ranking(NamedTuple):
    """The examples of a class and of the others by falling score; examples of one score share a threshold.

    order: (n,), the places of the examples. threshold: (n,), that of each example in this order. Of each threshold:
    scores, its score; counted and found, the weights of the examples, and of those of the class, that are not below it.
    """

    order: NDArray[np.int64]
    threshold: NDArray[np.int64]
    scores: Floats
    counted: Floats
    found: Floats


def rank(scores: Floats, is_positive: NDArray[np.bool_], weights: Floats | None) -> Ranking:
    """Rank examples by `scores` (n,); is_positive: (n,), whether each has the class; weights: (n,) or None."""
    order = np.argsort(-scores)
    ordered = scores[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    ends = np.flatnonzero(is_last)
    own = full_weights(weights, len(scores))
    counted, found = np.cumsum(own[order])[ends], np.cumsum((own * is_positive)[order])[ends]
    return Ranking(order, np.cumsum(is_last) - is_last, ordered[ends], counted, found)
