"""The record of a run: one JSON object that says what was trained on what, how fast, how well, and what left."""

from __future__ import annotations

import json
from typing import Any

from trainyard.core import keys, storage
from trainyard.core.artifacts import EXPORTS_SPLIT, Evaluation, Examples, Exports, Pushed, Training, Verdict
from trainyard.core.recipe import Recipe


def write(
    root: str, recipe: Recipe, run_id: str, folders: dict[str, str], seconds: dict[str, float], ended: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the run's record (as `summarize`) and its report's HTML; run.json and report.html hold them then.

    run.json also holds `ended`: at least `failure`, the sentence that the run ended with, or None; and `not_due`, why a
    scheduled run had nothing to train, where that is so.
    """
    from trainyard.core import report  # with plotly and jinja2, which nothing else needs

    folder = keys.run_folder(root, recipe, run_id)
    path = storage.join(folder, "report.html")
    title = f"{recipe.name} · {run_id}"
    ending = report.Ending(ended["failure"], ended.get("not_due"))
    page: str = report.render(title, recipe, folders, seconds, ending)
    storage.write_text(path, page)
    record = summarize(recipe.name, run_id, folders, seconds, path)
    storage.write_text(storage.join(folder, "run.json"), json.dumps(record | ended, indent=1))
    return record, page


def summarize(
    recipe: str, run_id: str, folders: dict[str, str], seconds: dict[str, float], report: str
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
