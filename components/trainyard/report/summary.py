"""The record of a run: one JSON object that says what was trained on what, how fast, how well, and what left."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.artifacts import (
    EXPORTS_SPLIT,
    Document,
    Evaluation,
    Examples,
    Exports,
    Pushed,
    Training,
    Verdict,
)
from trainyard.errors import TrainyardError
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_DOCUMENTS: dict[str, type[Document]] = {
    "preprocess": Examples,
    "train": Training,
    "evaluate": Evaluation,
    "export": Exports,
    "push": Pushed,
}
_RECORD_BYTES = 32 << 10  # chosen: several times what a record takes


def reserve(root: str, recipe: Recipe, run_id: str) -> None:
    """Keep room for the record of the run that begins: on a disk that is full by its end, the record says so."""
    storage.reserve(_record(root, recipe, run_id), _RECORD_BYTES)


def write(
    root: str, recipe: Recipe, run_id: str, folders: dict[str, str], seconds: dict[str, float], ended: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the run's record (as `summarize`) and its report's HTML; run.json and report.html hold them then.

    run.json also holds `ended`: at least `failure`, the sentence that the run ended with, or None, and `exit_code`; and
    `not_due`, why a scheduled run had nothing to train, where that is so. Of a run that failed, a report or a record that
    cannot be written is told and no more; else the run fails by it, with what raised it.
    """
    from trainyard.report import report  # with plotly and jinja2, which nothing else needs

    failed, title = ended["failure"] is not None, f"{recipe.name} · {run_id}"
    readable = _readable(folders) if failed else folders
    uri = storage.join(keys.run_folder(root, recipe, run_id), "report.html")
    page, faults = "", []
    for path in (uri, None):  # what has no room for both may have it for the record
        try:
            if path:
                page = report.render(
                    title, recipe, readable, seconds, report.Ending(ended["failure"], ended.get("not_due"))
                )
                storage.write_text(path, page)
            record = summarize(recipe.name, run_id, readable, seconds, path)
            storage.write_text(_record(root, recipe, run_id), json.dumps(record | ended, indent=1))
            break
        except TrainyardError as error:
            faults.append(error)
            with suppress(TrainyardError):
                storage.remove(uri)
            readable = _readable(folders)
            if not failed:
                ended = ended | {"failure": str(faults[0]), "exit_code": int(faults[0].exit_code)}
    if faults and not failed:
        raise faults[0]
    for fault in faults:
        events.emit("unrecorded", reason=fault)
    return record, page


def _record(root: str, recipe: Recipe, run_id: str) -> str:
    return storage.join(keys.run_folder(root, recipe, run_id), "run.json")


def _readable(folders: dict[str, str]) -> dict[str, str]:
    """Return those of the steps' output `folders` whose documents can be read."""
    found = {}
    for step, uri in folders.items():
        with suppress(TrainyardError):
            _DOCUMENTS[step].read(uri)
            found[step] = uri
    return found


def summarize(
    recipe: str, run_id: str, folders: dict[str, str], seconds: dict[str, float], report: str | None
) -> dict[str, Any]:
    """Return the record of the run from the steps' committed output `folders` (by step name, missing ones left out).

    Its keys are those of `trainyard run -o json`; a part whose step did not run is None.
    """
    examples = Examples.read(folders["preprocess"]) if "preprocess" in folders else None
    training = Training.read(folders["train"]) if "train" in folders else None
    evaluation = Evaluation.read(folders["evaluate"]) if "evaluate" in folders else None
    exports = Exports.read(folders["export"]) if "export" in folders else None
    pushed = Pushed.read(folders["push"]) if "push" in folders else None
    return {
        "recipe": recipe,
        "run_id": run_id,
        "data": examples and _data(examples),
        "train": training
        and training.model_dump(
            include={
                "steps",
                "epochs",
                "workers",
                "devices",
                "examples_per_second",
                "bottleneck",
                "resumed_from",
                "warm_start",
            }
        ),
        "metrics": evaluation and evaluation.metrics,
        "gate": evaluation and _gate(evaluation, exports),
        "exports": exports and _exports(exports, folders["export"], examples),
        "pushed": pushed and pushed.model_dump(include={"path", "version"}),
        "report": report,
        "seconds": seconds,
        "folders": folders,
    }


def _data(examples: Examples) -> dict[str, Any]:
    counts: dict[str, Any] = {split: files.examples for split, files in examples.splits.items()}
    return counts | {"quarantined": examples.quarantined, "fingerprint": examples.fingerprint}


def _exports(exports: Exports, folder: str, examples: Examples | None) -> list[dict[str, Any]]:
    """Return the exported files; metric says what their `accuracy` is."""
    metric = "mae" if examples and examples.task == "regression" else "accuracy"
    return [
        export.model_dump() | {"path": storage.join(folder, export.path), "metric": metric}
        for export in exports.exports
    ]


def _gate(evaluation: Evaluation, exports: Exports | None) -> dict[str, Any]:
    gates: list[tuple[str, Verdict]] = [(evaluation.split, evaluation.gate)]
    gates += [(EXPORTS_SPLIT, exports.gate)] if exports else []
    return {
        "verdict": "blessed" if all(gate.verdict == "blessed" for _, gate in gates) else "refused",
        "thresholds": [
            threshold.model_dump() | {"split": split} for split, gate in gates for threshold in gate.thresholds
        ],
    }
