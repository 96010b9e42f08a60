"""The summary of a pipeline run, from the folders that its tasks left in storage."""

from __future__ import annotations

from typing import Any

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.graph import BEFORE_SUMMARY, CHECK, OUTPUTS
from trainyard.report.summary import write
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage


def run(recipe: Recipe, root: str, run_id: str, state: str, message: str) -> str:
    """Return the report's HTML; it and run.json are in the run's folder then.

    `state` is KFP's final state of the tasks before this one, `message` what KFP knows of their failure.
    """
    folder = keys.run_folder(root, recipe, run_id)
    notes = {name: note for name in OUTPUTS if (note := storage.read_json(f"{folder}/{name}.json"))}
    outputs = _outputs(root, recipe, {name: note["folder"] for name, note in notes.items()})
    done = {name: uri for name, uri in outputs.items() if storage.committed(uri)}
    ended = _failure([uri for name, uri in outputs.items() if name not in done], folder, message, state)
    seconds = {name: note["seconds"] for name, note in notes.items() if name in done and note["seconds"] is not None}
    checked = storage.read_json(f"{folder}/{CHECK}.json")
    if checked and not checked["due"]:
        ended["not_due"] = checked["why"]
    _, page = write(root, recipe, run_id, done, seconds, ended)
    return page


def _outputs(root: str, recipe: Recipe, noted: dict[str, str]) -> dict[str, str]:
    """Return where each step's output is or would be, in order, as far as that can be known.

    Train and export leave no note, so that KFP can reuse their outputs: preprocess says where train's is, and that of
    export follows from what it reads.
    """
    outputs = dict(noted)
    evaluation = outputs.get("evaluate")
    if evaluation and storage.committed(evaluation) and Evaluation.read(evaluation).gate.verdict == "blessed":
        outputs["export"] = keys.output_after(outputs, root, recipe, "export")
    return {name: outputs[name] for name in OUTPUTS if name in outputs}


def _failure(missing: list[str], folder: str, message: str, state: str) -> dict[str, Any]:
    """Return the sentence of the step that failed, its name and exit code; KFP's sentence if no step left one."""
    failure: dict[str, Any] = {"failure": None, "failed_step": None, "exit_code": 0}
    if state == "SUCCEEDED":
        return failure
    for uri in [*missing, *(f"{folder}/{name}" for name in BEFORE_SUMMARY)]:
        if record := storage.read_json(keys.failure_record(uri)):
            return {"failure": record["message"], "failed_step": record["step"], "exit_code": record["exit_code"]}
    return failure | {"failure": message or f"the run ended as {state}", "exit_code": None}
