"""Each example's part of the main metric, `spec.gates.MAIN_METRIC`, in NumPy: what evaluate and export judge by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.statistics.decision import decided_class, decided_classes
from trainyard.spec.gates import Task

_NONE: Mapping[int, float] = MappingProxyType({})


def example_scores(
    task: Task, labels: NDArray[Any], outputs: NDArray[Any], thresholds: Mapping[int, float] = _NONE
) -> NDArray[np.float64]:
    """Return (n,) float64, of several targets (n, targets), whose mean is the main metric.

    labels: class ids (n,), bool (n, classes) of multi_label, or targets (n,) or (n, targets). outputs: probabilities
    (n, classes), or predictions in the shape of the targets. thresholds: as of `decided_class`. The score is 1 if the
    class is right; F1 of the classes, 1 if there are none and none is predicted; or the absolute error.

    >>> example_scores("multi_label", np.array([[True, True, False]]), np.array([[0.9, 0.2, 0.1]])).round(2).tolist()
    [0.67]
    """
    scores: NDArray[Any]
    if task == "classification":
        scores = decided_class(outputs, thresholds) == labels
    elif task == "multi_label":
        predicted = decided_classes(outputs, thresholds)
        total = predicted.sum(axis=1) + labels.sum(axis=1)
        scores = np.where(total > 0, 2 * (predicted & labels).sum(axis=1) / np.maximum(total, 1), 1.0)
    elif task == "regression":
        scores = np.abs(outputs.astype(np.float64) - labels)
    else:
        assert_never(task)
    return scores.astype(np.float64)
