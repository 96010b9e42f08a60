"""Whether a scheduled run has anything to train: decided in seconds, from names and statistics in the storage alone."""

from __future__ import annotations

from datetime import datetime

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.champion import Champion, champion, version_statistics
from trainyard.contract.statistics.drift import Statistics, drift
from trainyard.contract.training import warm_start
from trainyard.contract.version import content
from trainyard.errors import listed
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import When
from trainyard.storage import storage

_LISTED = 3  # ways in which data have drifted, in a sentence


def run(recipe: Recipe, root: str, destination: str, when: When, now: datetime, examples: str = "") -> tuple[bool, str]:
    """Return whether to go on, and why, in a sentence. `destination` is the folder of the pushed versions, `now`
    the time in UTC that the run is for.

    `examples` is the output of preprocess for the data as they are now. If it is not known and drift is a condition,
    data that nobody has counted yet are a reason to go on: to preprocess, and to look again.

    Reads no record of the data and writes nothing. Raises as `keys.fingerprint`.
    """
    best = champion(destination)
    if best is None:
        return True, f"nothing was pushed to {destination} yet"
    why = _too_old(best, when, now)
    if not why and (when.new_data or when.drift):
        examples = examples or keys.output_uri(root, recipe, "preprocess", keys.fingerprint(recipe, now.isoformat()))
        model = warm_start.plan(root, recipe, examples, best).model
        trained = storage.committed(model) is not None
        why = _left(root, recipe, examples, model, best) if trained else _new(best, recipe, examples, when)
    return bool(why), why or f"version {best.version} stands: no condition of the schedule holds"


def _too_old(best: Champion, when: When, now: datetime) -> str:
    if when.hours is None:
        return ""
    if not best.pushed:
        return f"version {best.version} does not say when it was pushed"
    age = (now - datetime.fromisoformat(best.pushed)).total_seconds() / 3600
    if age <= when.hours:
        return ""
    return f"version {best.version} was pushed {age:.0f} h ago, more than {when.champion_older_than}"


def _new(best: Champion, recipe: Recipe, examples: str, when: When) -> str:
    """Return why to train on `examples`, which no model has learnt from yet."""
    if when.new_data:
        return "nothing was trained yet from the data as they are now, by this recipe and code"
    before = version_statistics(best.path)
    if before is None:
        return f"version {best.version} does not say what its data were like"
    if storage.committed(examples) is None:
        return "the data are new, and were not compared with those of the champion yet"
    moved = drift(before, Statistics.read(examples), recipe.drift)
    if not moved:
        return ""
    return f"the data have drifted from those of version {best.version}: {listed(moved, _LISTED, '; ')}"


def _left(root: str, recipe: Recipe, examples: str, model: str, best: Champion) -> str:
    """Return why to go on with `model`, which is trained: an earlier run ended before it was refused or pushed."""
    judged = keys.output_uri(root, recipe, "evaluate", examples, model, best.digest)
    exported = keys.output_uri(root, recipe, "export", examples, model)
    files = storage.committed(exported)
    gates = [Evaluation.read(judged).gate] if storage.committed(judged) else []
    gates += [Exports.read(exported).gate] if files else []
    if any(gate.verdict != "blessed" for gate in gates) or (files and content(files).digest in _pushed(root, recipe)):
        return ""
    return "the newest model is trained, and was neither refused nor pushed"


def _pushed(root: str, recipe: Recipe) -> set[str]:
    """Return the digests of all that was ever pushed, so that a version which was taken back is not pushed again."""
    folder = storage.join(root, recipe.name, "push")
    return {
        Pushed.read(uri).digest
        for name in storage.children(folder)
        if storage.committed(uri := storage.join(folder, name))
    }
