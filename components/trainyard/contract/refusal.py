"""The reason of a gate's refusal, as one sentence for every page that shows a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.contract.artifacts.gate import Threshold

SENTENCE = "the gate refused the model, so it is not pushed"


def why(thresholds: Iterable[Threshold]) -> str:
    """Return the conditions that do not hold, with the values that were measured."""
    return "; ".join(_reason(threshold) for threshold in thresholds if not threshold.passed)


def from_record(record: Mapping[str, Any]) -> str:
    """Return the reason of the gate's refusal from a run.json `record`; '' if it did not."""
    gate = record.get("gate") or {}
    if gate.get("verdict") != "refused":
        return ""
    known = Threshold.model_fields.keys()  # a record also says the split of each
    rows = [{name: row[name] for name in known & row.keys()} for row in gate["thresholds"]]
    return why(map(Threshold.model_validate, rows))


def _reason(threshold: Threshold) -> str:
    note = f": {threshold.note.rstrip('.')}" if threshold.note else ""
    value = "was not measured" if threshold.value is None else f"was {_apart(threshold.value, threshold.bound)}"
    return f"{threshold.name}, {value}{note}"


def _apart(value: float, bound: float) -> str:
    """Format `value` with few digits, or with all if it would look like the `bound` that it misses."""
    text = f"{value:.6g}"
    return repr(value) if value != bound and text == f"{bound:.6g}" else text
