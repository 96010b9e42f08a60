"""Documents of steps with nothing in the fields that a test does not give."""

from __future__ import annotations

from typing import Any

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.preprocess import Examples


def evaluation(**given: Any) -> Evaluation:
    empty: dict[str, Any] = {key: [] for key in ("classes", "confusion", "roc", "slices", "worst")}
    return Evaluation(
        **{"split": "test", "examples": 1, "metrics": {}, "intervals": {}, "champion": None} | empty | given
    )


def examples(**given: Any) -> Examples:
    empty: dict[str, Any] = {"splits": {}, "features": [], "raw_features": [], "quarantine": {}, "warnings": []}
    named = {"label": "label", "labels": None, "image": None, "quarantined": 0, "fingerprint": "0"}
    return Examples(**empty | named | given)
