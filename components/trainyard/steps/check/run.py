"""Decides in seconds whether a scheduled run has to train, from stored names and statistics and a server's log."""

from __future__ import annotations

from datetime import datetime

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.artifacts.train import Training
from trainyard.contract.origin import recorded
from trainyard.contract.pipeline import Pipeline, is_blessed
from trainyard.contract.statistics.drift import Statistics, drift
from trainyard.contract.version import Champion, content, digest, version_statistics
from trainyard.errors import listed
from trainyard.spec.schedule import When
from trainyard.storage import storage

_LISTED = 3  # ways in which data have drifted, in a sentence
_SERVED_ROWS = 1000
"""Answers that drift is judged by. Chosen: if nothing drifts, some of 20 columns still leave the default bounds in 25 %
of the checks of 300 answers, and in 0.3 % of those of 1,000 (simulated)."""


def run(pipeline: Pipeline, when: When, now: datetime, examples: str = "") -> tuple[bool, str]:
    """Decide whether the steps of `pipeline` run, with the reason in a sentence.

    `now` is the time in UTC that the run is for.

    `examples` is the output of preprocess for the data as they are now. If it is not known and drift is a condition,
    data that nobody has counted yet are a reason to go on: to preprocess, and to look again.

    Reads no record of the data and writes nothing. Raises as `keys.fingerprint`, and `DataError` for a log that cannot
    be read.
    """
    best = pipeline.best
    if best is None:
        return True, f"nothing was pushed to {pipeline.destination} yet"
    why, note = _too_old(best, when, now), ""
    if not why and (when.new_data or when.drift or when.served_drift):
        pipeline.day = pipeline.day or now.isoformat()
        pipeline.outputs[Examples.made_by] = examples or pipeline.place(Examples.made_by).output
        pipeline.outputs[Training.made_by] = model = pipeline.place(Training.made_by).output
        trained = storage.committed(model) is not None
        why = _left(pipeline) if trained else _new(best, pipeline, when)
        if not why and when.served_drift:
            moved, sentence = _served(best, pipeline, when.served_drift)
            why = "" if trained else moved
            note = f"; {sentence}" + (", and these data were trained on already" if moved else "")
    return bool(why), why or f"version {best.version} stands: no condition of the schedule holds{note}"


def _too_old(best: Champion, when: When, now: datetime) -> str:
    if when.hours is None:
        return ""
    if not best.pushed:
        return f"version {best.version} does not say when it was pushed"
    age = (now - datetime.fromisoformat(best.pushed)).total_seconds() / 3600
    if age <= when.hours:
        return ""
    return f"version {best.version} was pushed {age:.0f} h ago, more than {when.champion_older_than}"


def _new(best: Champion, pipeline: Pipeline, when: When) -> str:
    """Return the reason to train on the examples, which no model has used yet."""
    if when.new_data:
        return "nothing was trained yet from the data as they are now, by this recipe and code"
    if not when.drift:
        return ""
    before = version_statistics(best.path)
    if before is None:
        return f"version {best.version} does not say what its data were like"
    examples = pipeline.outputs[Examples.made_by]
    if storage.committed(examples) is None:
        return "the data are new, and were not compared with those of the champion yet"
    moved = drift(before, Statistics.read(examples), pipeline.recipe.drift)
    if not moved:
        return ""
    return f"the data have drifted from those of version {best.version}: {listed(moved, _LISTED, '; ')}"


def _served(best: Champion, pipeline: Pipeline, log: str) -> tuple[str, str]:
    """Return the reason to train, '' without one, and a sentence about the champion's answers in the server's `log`."""
    from trainyard.quality.inspect import served_statistics  # with NumPy and PyArrow: a second

    before, data = version_statistics(best.path), pipeline.recipe.data
    if before is None:
        why = f"version {best.version} does not say what its data were like"
        return why, why
    served = served_statistics(log, best.digest, before, data, _SERVED_ROWS)
    rows = served.rows if served else 0
    if served is None or rows < _SERVED_ROWS:
        return "", f"{log} has {rows:,} answers of version {best.version}, and {_SERVED_ROWS:,} are needed"
    moved = drift(served.before, served.now, pipeline.recipe.drift)
    if not moved:
        return "", f"{rows:,} answers in {log} are within the drift bounds"
    why = f"the requests have drifted from the data of version {best.version}: {listed(moved, _LISTED, '; ')}"
    return why, why


def _left(pipeline: Pipeline) -> str:
    """Return the reason to continue with a trained model: an earlier run ended before it was refused or pushed."""
    judged = [(Evaluation.made_by, pipeline.place(Evaluation.made_by).output)]
    for decisions in _decisions(pipeline):
        pipeline.decisions = decisions
        judged.append((Exports.made_by, pipeline.place(Exports.made_by).output))
    refused = any(storage.committed(uri) and not is_blessed(step, uri) for step, uri in judged)
    files = [files for step, uri in judged if step == Exports.made_by and (files := storage.committed(uri))]
    if refused or (files and not _pushed(pipeline).isdisjoint(digest(content(each)) for each in files)):
        return ""
    return "the newest model is trained, and was neither refused nor pushed"


def _decisions(pipeline: Pipeline) -> set[str]:
    """Return the decision thresholds that exports were written with.

    The evaluation that they come from may have another key: it was made beside the champion of then.
    """
    if pipeline.recipe.threshold is None:
        return {""}
    folder = keys.outputs_folder(pipeline.root, pipeline.recipe, Exports.made_by)
    found = [recorded(storage.join(folder, name)) for name in storage.children(folder) if "." not in name]
    return {each.inputs["thresholds"] for each in found if each and "thresholds" in each.inputs}


def _pushed(pipeline: Pipeline) -> set[str]:
    """Return the digests of every version that was ever pushed, so that a reverted one is not pushed again."""
    folder = storage.join(pipeline.root, pipeline.recipe.name, Pushed.made_by)
    return {
        Pushed.read(uri).digest
        for name in storage.children(folder)
        if storage.committed(uri := storage.join(folder, name))
    }
