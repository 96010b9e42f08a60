"""The verdict of a gate on a model or on exported files."""

from __future__ import annotations

from typing import Literal

from trainyard.contract.document import FrozenModel


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


class Verdict(FrozenModel):
    """The verdict of a gate, with its reasons."""

    verdict: Literal["blessed", "refused"]
    thresholds: list[Threshold]
