"""Decides whether a model may be pushed, by the recipe's conditions and the drift of its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from trainyard import events
from trainyard.contract.artifacts.gate import Interval, Threshold, Verdict
from trainyard.contract.statistics.drift import Movement, Statistics, compare
from trainyard.contract.version import version_statistics
from trainyard.errors import DataError, did_you_mean, listed
from trainyard.spec.gates import AREA_EXAMPLES, METRIC_SPECS, ROUNDING, Against, Gate
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import Bounds

_CANNOT_BE_COMPARED = {
    "boosted": "Boosted trees cannot be compared: they were not grown, or have no",
    "baseline": "One answer to every example cannot be compared: it has no",
}
_WITHOUT_CHAMPION = (
    "To push this model all the same, run once without this condition in evaluate.gates; "
    "later runs are then compared with this model."
)


@dataclass(frozen=True)
class Subject:
    """The subject of a condition: a metric over all examples or one slice, and the model to compare with.

    target, class_name: the one of several that it is about; None is all of them. confidence: of the interval.
    gap_between: the feature between whose slices the largest gap is judged.
    """

    metric: str
    slice: str | None = None
    against: Against = "champion"
    target: str | None = None
    class_name: str | None = None
    confidence: float | None = None
    gap_between: str | None = None

    @classmethod
    def from_gate(cls, gate: Gate) -> Self:
        """Return the subject of `gate`."""
        return cls(
            gate.metric,
            gate.slice,
            gate.against,
            gate.target,
            gate.class_name,
            gate.confidence,
            gate.largest_gap_between,
        )


@dataclass(frozen=True)
class MetricPair:
    """This model's value and the baseline's on the same examples.

    rival: the baseline's value. difference: the interval of value - rival. note: a remark on the value.
    """

    value: float
    interval: Interval | None
    rival: float | None = None
    difference: Interval | None = None
    note: str = ""


@dataclass(frozen=True)
class ChampionState:
    """A champion to compare with, if any. fault: why the last pushed model could not answer."""

    present: bool
    fault: str = ""


def judge(
    gates: Sequence[Gate], measured: Mapping[Subject, MetricPair], slices: Sequence[str], champion: ChampionState
) -> Verdict:
    """Return the verdict: blessed if every condition holds.

    What was not measured, or is not a number, refuses, with the reason as the threshold's note. A difference holds if
    there is no champion. `slices` are the names of the slices that have examples.
    """
    thresholds = [_judge(gate, measured.get(Subject.from_gate(gate)), slices, champion) for gate in gates]
    passed = all(threshold.passed for threshold in thresholds)
    return Verdict(verdict="blessed" if passed else "refused", thresholds=thresholds)


def _judge(gate: Gate, measured: MetricPair | None, slices: Sequence[str], champion: ChampionState) -> Threshold:
    if gate.slice is not None and gate.slice not in slices:
        known = f" Slices: {', '.join(slices[:20])}." if slices else " Name its feature in evaluate.slices."
        return _unmeasured(
            gate, f"No example of the split is in the slice '{gate.slice}'.{did_you_mean(gate.slice, slices)}{known}"
        )
    if measured is None or not math.isfinite(measured.value):
        problem = "is not a number" if measured else "is not defined"
        if gate.largest_gap_between is not None:
            why = f": {measured.note}" if measured and measured.note else ""
            return _unmeasured(gate, f"The gap cannot be measured{why}. Remove the condition, or fix the cause.")
        scope = f"the slice '{gate.slice}'" if gate.slice else "the split"
        return _unmeasured(gate, f"{_subject(gate)} {problem} on {scope}. Remove the condition, or fix the cause.")
    if not _is_difference(gate):
        threshold = _threshold(gate, measured.value, measured.interval)
        return threshold.model_copy(update={"note": " ".join(filter(None, (threshold.note, measured.note)))})
    if gate.against != "champion":
        if measured.rival is None or not math.isfinite(measured.rival):
            return _unmeasured(gate, f"{_CANNOT_BE_COMPARED[gate.against]} {_subject(gate)}.")
        return _threshold(gate, measured.value - measured.rival, measured.difference)
    if not champion.present:
        return _unmeasured(gate, "There is no champion yet, so there is nothing to be worse than.", passed=True)
    if champion.fault or measured.rival is None or not math.isfinite(measured.rival):
        fault = champion.fault or f"the champion's {_subject(gate)} is not defined."
        return _unmeasured(gate, f"The champion cannot be compared: {fault.rstrip('.')}. {_WITHOUT_CHAMPION}")
    threshold = _threshold(gate, measured.value - measured.rival, measured.difference)
    return threshold.model_copy(update={"champion": measured.rival})


def _threshold(gate: Gate, value: float, interval: Interval | None) -> Threshold:
    at_least = gate.min is not None or gate.min_difference is not None
    bound = _bound(gate)
    judged, note = value, ""
    if gate.confidence is not None:
        if interval is None:
            spec = next((spec for name, spec in METRIC_SPECS.items() if name == gate.metric), None)
            is_area = gate.class_name is not None and spec is not None and spec.judges_probabilities
            why = f", which needs {AREA_EXAMPLES} examples of the class and of the others" if is_area else ""
            return _unmeasured(gate, f"{_subject(gate)} has no interval here{why}. Leave confidence out.")
        judged = interval.low if at_least else interval.high
        note = f"Judged by the {'lower' if at_least else 'upper'} bound of the interval, {judged:.6g}."
    passed = judged >= bound - ROUNDING if at_least else judged <= bound + ROUNDING
    return Threshold(name=_name(gate), value=value, bound=bound, interval=interval, passed=passed, note=note)


def _unmeasured(gate: Gate, note: str, *, passed: bool = False) -> Threshold:
    return Threshold(name=_name(gate), value=None, bound=_bound(gate), passed=passed, note=note)


def _name(gate: Gate) -> str:
    scope = f" [{gate.slice}]" if gate.slice is not None else ""
    left = f"{_subject(gate)} - {gate.against}" if _is_difference(gate) else _subject(gate)
    if gate.largest_gap_between is not None:
        left = f"largest gap of {left} between {gate.largest_gap_between}"
    comparison = ">=" if gate.min is not None or gate.min_difference is not None else "<="
    interval = f" by its {100 * gate.confidence:g} % interval" if gate.confidence is not None else ""
    return f"{left}{scope} {comparison} {_bound(gate):g}{interval}"


def _subject(gate: Gate) -> str:
    part = gate.target if gate.class_name is None else gate.class_name
    return gate.metric if part is None else f"{gate.metric} of {part}"


def _bound(gate: Gate) -> float:
    return next(bound for bound in (gate.min, gate.max, gate.min_difference, gate.max_difference) if bound is not None)


def _is_difference(gate: Gate) -> bool:
    return gate.min_difference is not None or gate.max_difference is not None


_MISSED = 5
"""Examples of other classes that one answer to everything must miss to be refused.
Chosen: a model that finds half of them misses all five once in 32."""


def judge_one_answer(verdict: Verdict, recipe: Recipe, answer: str, missed: float) -> Verdict:
    """Return `verdict` refused, because the model predicts the class `answer` for every example and misses `missed`.

    It stays as it is without gates, if too few are missed, and if all gates judge probabilities without a threshold.
    """
    gates = recipe.evaluate.gates
    judging_classes = {name for name, spec in METRIC_SPECS.items() if not spec.judges_probabilities}
    decides = recipe.threshold is not None or any(gate.metric in judging_classes for gate in gates)
    if not gates or not decides or missed < _MISSED:
        return verdict
    note = (
        f"The model predicts '{answer}' for every example, also for {missed:,.0f} of other classes. Set threshold, "
        "such as {maximize: f1, class: …}, or train.class_weights: balanced, or gate on roc_auc or pr_auc alone."
    )
    threshold = Threshold(name="predicted classes >= 2", value=1.0, bound=2.0, passed=False, note=note)
    return Verdict(verdict="refused", thresholds=[*verdict.thresholds, threshold])


_LISTED = 5


def drifted(recipe: Recipe, examples: str, champion: str) -> list[Movement]:
    """Compare preprocess' output `examples` with the data of the version in the folder `champion`.

    [] if there is no champion, or one that does not say what its data were like.
    """
    try:
        before = version_statistics(champion) if champion else None
    except DataError as error:
        events.warn(f"no drift is known: {error}")
        return []
    if before is None:
        return []
    movements = compare(before, Statistics.read(examples), recipe.drift)
    for sentence in _sentences(movements):
        events.warn(f"the data have drifted from the champion's: {sentence}")
    return movements


def judge_drift(verdict: Verdict, movements: list[Movement], bounds: Bounds) -> Verdict:
    """Return `verdict` with one condition more if `bounds` say that data which left them refuse a model."""
    if not bounds.refuse:
        return verdict
    sentences = _sentences(movements)
    threshold = Threshold(
        name="features that left the drift bounds <= 0",
        value=float(sum(bool(movement.sentences) for movement in movements)),
        bound=0.0,
        passed=not sentences,
        note=listed(sentences, _LISTED, "; "),
    )
    blessed = verdict.verdict == "blessed" and threshold.passed
    return Verdict(verdict="blessed" if blessed else "refused", thresholds=[*verdict.thresholds, threshold])


def _sentences(movements: list[Movement]) -> list[str]:
    return [sentence for movement in movements for sentence in movement.sentences]
