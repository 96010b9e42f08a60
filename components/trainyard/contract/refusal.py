"""Why a gate refused a model, in words: the same wherever a run is told of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.contract.artifacts import Threshold

SENTENCE = "the gate refused the model, so it is not pushed"


def why(thresholds: Iterable[Threshold]) -> str:
    """Return each condition that does not hold, with what was found instead."""
    return "; ".join(_reason(each) for each in thresholds if not each.passed)


def of_record(record: Mapping[str, Any]) -> str:
    """Return why the gate refused the model of the run whose run.json is `record`; '' where it blessed it or judged none."""
    gate = record.get("gate") or {}
    if gate.get("verdict") != "refused":
        return ""
    known = Threshold.model_fields.keys()  # a record says the split of each besides
    return why(
        Threshold.model_validate({name: each[name] for name in known & each.keys()}) for each in gate["thresholds"]
    )


def _reason(threshold: Threshold) -> str:
    if threshold.value is not None:
        return f"{threshold.name}, was {threshold.value:.6g}"
    note = f": {threshold.note.rstrip('.')}" if threshold.note else ""
    return f"{threshold.name}, was not measured{note}"
