"""From probabilities to classes: the rule of evaluation, exported files, predictions and servers, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LIKELY = 0.5
"""A class of multi_label whose probability is above it is predicted, if the class has no threshold."""

# This module is part of preprocess.py, so it needs NumPy alone, and Python 3.9.


def decided_class(probabilities: np.ndarray[Any, Any], thresholds: Mapping[int, float]) -> np.ndarray[Any, Any]:
    """Return the ids of the predicted classes (n,) int64: of the most probable ones; ties go to the lower id.

    probabilities: (n, classes). thresholds: at most one, by its class id; that class is predicted exactly if its
    probability is above the threshold, otherwise the most probable of the other classes.

    >>> decided_class(np.array([[0.7, 0.3], [0.9, 0.1]], np.float32), {1: 0.25}).tolist()
    [1, 0]
    """
    for id_, threshold in thresholds.items():
        rest = np.array(probabilities)
        rest[:, id_] = -1
        chosen = np.where(probabilities[:, id_] > np.float32(threshold), id_, np.argmax(rest, axis=1))
        return chosen.astype(np.int64)
    return np.asarray(np.argmax(probabilities, axis=1), np.int64)


def decided_classes(probabilities: np.ndarray[Any, Any], thresholds: Mapping[int, float]) -> np.ndarray[Any, Any]:
    """Return the predicted classes of multi_label, (n, classes) bool: those above their thresholds.

    >>> decided_classes(np.array([[0.7, 0.3], [0.4, 0.1]], np.float32), {1: 0.25}).tolist()
    [[True, True], [False, False]]
    """
    bounds = [thresholds.get(id_, LIKELY) for id_ in range(probabilities.shape[1])]
    return np.asarray(probabilities > np.array(bounds, np.float32), np.bool_)
