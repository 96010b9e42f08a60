"""The verdict of a gate on a model or on exported files, and the reason of a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from trainyard.contract.document import FrozenModel, Time

REFUSED = "the gate refused the model, so it is not pushed"


class Interval(FrozenModel):
    """A confidence interval, of 95 % if nothing else is said."""

    low: float
    high: float


class Threshold(FrozenModel):
    """One condition of a gate and how it ended.

    bound is what `value` is compared with: at least it, or at most it if the metric is better when smaller; `name`
    says which. interval is of 95 %, or of the condition's confidence. champion is the champion's own value if the
    condition is a difference to it; `value` is then the difference. value is None if it could not be measured (no such
    slice, no champion yet); note says why, or which bound of the interval was judged.
    """

    name: str
    value: float | None
    bound: float
    interval: Interval | None = None
    passed: bool
    champion: float | None = None
    note: str = ""


class Override(FrozenModel):
    """The reason to push a refused model. name: the user's on that machine; time: in UTC."""

    name: str
    time: str
    reason: str


class Approval(FrozenModel):
    """A person's approval or rejection of a version. name: as the person gave it; time: in UTC; reason: maybe ''."""

    name: str
    time: Time
    reason: str = ""


class Verdict(FrozenModel):
    """The verdict of a gate, with its reasons."""

    verdict: Literal["blessed", "refused"]
    thresholds: list[Threshold]


def refusal_reason(thresholds: Iterable[Threshold]) -> str:
    """Return the conditions that do not hold, with the values that were measured."""
    return "; ".join(_reason(threshold) for threshold in thresholds if not threshold.passed)


def recorded_refusal(record: Mapping[str, Any]) -> str:
    """Return the reason of the gate's refusal from a run.json `record`; '' if it did not."""
    gate = record.get("gate") or {}
    if gate.get("verdict") != "refused":
        return ""
    known = Threshold.model_fields.keys()  # a record also says the split of each
    rows = [{name: row[name] for name in known & row.keys()} for row in gate["thresholds"]]
    return refusal_reason(map(Threshold.model_validate, rows))


def _reason(threshold: Threshold) -> str:
    note = f": {threshold.note.rstrip('.')}" if threshold.note else ""
    value = "was not measured" if threshold.value is None else f"was {_apart(threshold.value, threshold.bound)}"
    return f"{threshold.name}, {value}{note}"


def _apart(value: float, bound: float) -> str:
    """Format `value` with few digits, or with all if it would look like the `bound` that it misses."""
    text = f"{value:.6g}"
    return repr(value) if value != bound and text == f"{bound:.6g}" else text
