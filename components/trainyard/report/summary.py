"""The record of a run: one JSON object with data, training speed, metrics, gates and files."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Prediction
from trainyard.contract.time_to_accuracy import time_to_accuracy
from trainyard.errors import ExitCode, TrainyardError, bug_sentence
from trainyard.report import index, notify
from trainyard.report.outputs import Outputs, read
from trainyard.spec.gates import MAIN_METRIC
from trainyard.spec.notify import Notify
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_TRAINING: dict[str, Any] = {
    "steps": True,
    "epochs": True,
    "gang": {"workers", "worker_counts", "stragglers"},
    "machine": {"devices"},
    "speed": {"examples_per_second", "bottleneck", "input_workers"},
    "start": {"resumed_from", "warm_start", "weights", "teacher"},
    "command": True,
}
_RECORD_BYTES = 32 << 10  # chosen: several times what a record takes


def reserve(root: str, recipe: Recipe, run_id: str) -> None:
    """Reserve space for the record of a starting run, so that a full disk cannot prevent it."""
    storage.reserve(_record(root, recipe, run_id), _RECORD_BYTES)


def write(
    root: str,
    recipe: Recipe,
    run_id: str,
    folders: dict[str, str],
    seconds: dict[str, float],
    ended: dict[str, Any],
    usd_per_hour: float | None = None,
    webhook: Notify | None = None,
) -> tuple[dict[str, Any], str]:
    """Write run.json, report.html and the index of the storage; return the record (as in `summarize`) and the HTML.

    run.json also holds the time (`ended`, in UTC) and the fields of `ended`: at least `failure`, the sentence that the
    run ended with, or None, and `exit_code`; `not_due`, why a scheduled run had nothing to train; `predicted`, the
    forecast of its training as in `Prediction`; and `attempts` of the steps on lists of pools, each as
    `StepTask.note_attempts`. usd_per_hour: of all workers of the training together, if known. webhook: receives a
    message about the run's end. If report or record cannot be written, a run that failed already logs it, and any other
    run fails with that error. The record is written even after a bug in Trainyard.
    """
    from trainyard.report import report  # with plotly and jinja2, which nothing else needs

    failed = ended["failure"] is not None
    folder = keys.run_folder(root, recipe.name, run_id)
    uri = storage.join(folder, keys.REPORT)
    page = ""
    try:
        outputs = read(folders, skip_unreadable=failed)
        predicted = ended.get("predicted")
        forecast = Prediction.model_validate(predicted) if predicted else None
        ending = report.Ending(ended["failure"], ended.get("not_due"), forecast, ended.get("attempts", ()))
        page = report.render(run_title(recipe, run_id), recipe, outputs, seconds, ending, usd_per_hour)
        storage.write_text(uri, page)
        record = summarize(recipe, run_id, outputs, seconds, uri, usd_per_hour)
        _write_record(root, recipe, run_id, record | ended)
        index.write(root)
        notify.send_end(webhook, folder, record | ended, outputs)
        return record, page
    except Exception as error:  # noqa: BLE001 - raised or logged below
        faults = [error]
    # The disk may have room for the record alone.
    if not failed:
        ended = ended | _failure(faults[0])
    try:
        record = summarize(recipe, run_id, read(folders, skip_unreadable=True), seconds, None, usd_per_hour)
    except Exception:  # noqa: BLE001 - the error above was in the outputs
        record = summarize(recipe, run_id, read({}), seconds, None, None)
    try:
        with suppress(TrainyardError):
            storage.remove(uri)
        _write_record(root, recipe, run_id, record | ended)
    except TrainyardError as error:
        faults.append(error)
    index.write(root)
    notify.send_end(webhook, folder, record | ended, read({}))
    if not failed:
        raise faults[0]
    for fault in faults:
        events.emit("unrecorded", reason=fault)
    return record, page


def _failure(error: Exception) -> dict[str, Any]:
    """Return the record's fields for a run that `error` ended."""
    if isinstance(error, TrainyardError):
        return {"failure": str(error), "exit_code": int(error.exit_code)}
    return {"failure": bug_sentence(error), "exit_code": int(ExitCode.BUG)}


def run_title(recipe: Recipe, run_id: str) -> str:
    """Return the title of a run's report."""
    return f"{recipe.name} · {run_id}"


def reopen(root: str, recipe: Recipe, run_id: str) -> None:
    """Delete the record of a failed attempt, because the run continues."""
    storage.remove(_record(root, recipe, run_id))


def _record(root: str, recipe: Recipe, run_id: str) -> str:
    return storage.join(keys.run_folder(root, recipe.name, run_id), "run.json")


def _flat(training: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `training` and of its parts in one dict."""
    parts = [field if isinstance(field, dict) else {name: field} for name, field in training.items()]
    return {name: value for part in parts for name, value in part.items()}


def _write_record(root: str, recipe: Recipe, run_id: str, record: dict[str, Any]) -> None:
    record = record | {"ended": datetime.now(UTC).isoformat(timespec="seconds")}
    storage.write_text(_record(root, recipe, run_id), json.dumps(record, indent=1))


def summarize(
    recipe: Recipe,
    run_id: str,
    outputs: Outputs,
    seconds: dict[str, float],
    report: str | None,
    usd_per_hour: float | None,
) -> dict[str, Any]:
    """Build the record of a run. report: the URI of its report.

    Its keys are those of `trainyard run -o json`; parts of steps that did not run are None.
    """
    training, evaluation = outputs.training, outputs.evaluation
    reached = training and time_to_accuracy(training, recipe.evaluate.time_to, usd_per_hour, outputs.examples)
    return {
        "recipe": recipe.name,
        "run_id": run_id,
        "data": outputs.examples and _data(outputs.examples),
        "train": training and _flat(training.model_dump(include=_TRAINING)),
        "metrics": evaluation and evaluation.metrics,
        "remark": evaluation and evaluation.remark,
        "gate": evaluation and _gate(outputs),
        "time_to": reached and reached.model_dump(),
        "exports": outputs.exports and _exports(outputs.exports, outputs),
        "pushed": outputs.pushed and outputs.pushed.model_dump(include={"path", "version", "override", "waits"}),
        "report": report,
        "seconds": seconds,
        "folders": outputs.folders,
    }


def _data(examples: Examples) -> dict[str, Any]:
    counts: dict[str, Any] = {split: files.examples for split, files in examples.splits.items()}
    left_out = {"quarantined": examples.quarantined, "unselected": examples.unselected}
    return counts | left_out | {"fingerprint": examples.fingerprint}


def _exports(exports: Exports, outputs: Outputs) -> list[dict[str, Any]]:
    """Return the exported files. metric: the name of what their `accuracy` is."""
    metric = MAIN_METRIC[outputs.examples.task if outputs.examples else "classification"]
    return [
        export.model_dump() | {"path": storage.join(outputs.folders["export"], export.path), "metric": metric}
        for export in exports.exports
    ]


def _gate(outputs: Outputs) -> dict[str, Any]:
    return {
        "verdict": outputs.verdict,
        "thresholds": [
            threshold.model_dump() | {"split": split}
            for _, split, gate in outputs.gates
            for threshold in gate.thresholds
        ],
    }
