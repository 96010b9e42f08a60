"""What one and the same answer to every example would reach: the least that a model has to be better than."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainyard.contract.artifacts.evaluate import Baseline
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.steps.evaluate.metrics import Predictions, measure


def baseline(candidate: Predictions, examples: Examples) -> Baseline:
    """Return the metrics of the training split's most frequent class, or of the mean of the judged targets.

    The mean is that of the examples that are judged, which no other constant beats in its squared error.
    """
    counts = examples.splits["train"].class_counts
    if not examples.labels or not counts:
        mean = candidate.mean(candidate.labels.astype(np.float64))
        constant = replace(candidate, outputs=np.full(len(candidate.labels), mean, np.float32))
        values = measure("regression", constant)
        return Baseline(answer=f"the mean, {mean:.6g}", metrics={name: values[name] for name in ("mae", "rmse")})
    most = int(np.argmax(counts))
    return Baseline(answer=f"'{examples.labels[most]}'", metrics={"accuracy": candidate.mean(candidate.labels == most)})
