"""Drift between the training data and the champion's, and its effect on the verdict."""

from __future__ import annotations

from trainyard import events
from trainyard.contract.artifacts.gate import Threshold, Verdict
from trainyard.contract.champion import version_statistics
from trainyard.contract.statistics.drift import Movement, Statistics, compare
from trainyard.errors import DataError, listed
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import Bounds

_LISTED = 5


def drifted(recipe: Recipe, examples: str, champion: str) -> list[Movement]:
    """Compare preprocess' output `examples` with the data of the version in the folder `champion`.

    [] if there is no champion, or one that does not say what its data were like.
    """
    try:
        before = version_statistics(champion) if champion else None
    except DataError as error:
        events.emit("warning", message=f"no drift is known: {error}")
        return []
    if before is None:
        return []
    movements = compare(before, Statistics.read(examples), recipe.drift)
    for sentence in _sentences(movements):
        events.emit("warning", message=f"the data have drifted from the champion's: {sentence}")
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
