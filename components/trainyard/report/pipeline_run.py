"""The record and report of a pipeline's run: the step that ends the run writes both.

No step runs whatever happens. Kubeflow Pipelines 2.17 has two ways to run a task after a failure. An exit handler draws
all other steps as one closed box. `ignore_upstream_failure` starts the task once for each step that it waits for, and
the second start fails the run ("two tasks have the same task name").
Source: kubeflow/pipelines 2.17.0, backend/src/v2/compiler/argocompiler/dag.go (taskToExitTemplate) and
backend/src/v2/metadata/client.go (GetExecutionsInDAG).
"""

from __future__ import annotations

from typing import Any

from trainyard.contract import keys
from trainyard.contract.pipeline import Pipeline
from trainyard.graph import CHECK, LAST, OUTPUTS, STEPS
from trainyard.report import notify
from trainyard.report.outputs import read
from trainyard.report.summary import run_title, write
from trainyard.spec import plain_yaml
from trainyard.spec.environment import LISTED
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage


def write_end(recipe: Recipe, root: str, run_id: str, step: str) -> str:
    """Return the report as of the end of `step`; run.json and report.html are written if the run ends with it.

    A run ends when it has nothing to train, when a gate refuses, and after the last step.
    """
    folder = keys.run_folder(root, recipe.name, run_id)
    done, seconds = _finished(recipe, root, folder)
    ended: dict[str, Any] = {"failure": None, "failed_step": None, "exit_code": 0} | _attempts(folder)
    checked = storage.read_json(f"{folder}/{CHECK}.json")
    if checked and not checked["due"]:
        ended["not_due"] = checked["why"]
    outputs = read(done)
    if step == LAST or "not_due" in ended or (outputs.evaluation and outputs.verdict == "refused"):
        return _write(root, recipe, run_id, done, seconds, ended)
    from trainyard.report import report  # with plotly and jinja2, which nothing else needs

    ending = report.Ending(attempts=ended.get("attempts", ()))
    return report.render(run_title(recipe, run_id), recipe, outputs, seconds, ending)


def write_failure(recipe: Recipe, root: str, run_id: str, output: str) -> None:
    """Write run.json and report.html of a run that ends with the failure recorded beside `output`."""
    record = storage.read_json(keys.failure_record(output))
    if not record:
        return
    folder = keys.run_folder(root, recipe.name, run_id)
    done, seconds = _finished(recipe, root, folder)
    failure = {"failure": record["message"], "failed_step": record["step"], "exit_code": record["exit_code"]}
    _write(root, recipe, run_id, done, seconds, failure | _attempts(folder))


def _write(
    root: str, recipe: Recipe, run_id: str, done: dict[str, str], seconds: dict[str, float], ended: dict[str, Any]
) -> str:
    """Write the recipe, the record and the report of a run, and return the report."""
    file = storage.join(keys.run_folder(root, recipe.name, run_id), "recipe.yaml")
    storage.write_text(file, plain_yaml.dump(recipe.model_dump(mode="json")))
    return write(root, recipe, run_id, done, seconds, ended, webhook=notify.from_variables())[1]


def _attempts(folder: str) -> dict[str, Any]:
    """Return `attempts` of the record of the run with this `folder`, nothing without a list of pools."""
    notes = (storage.read_json(f"{folder}/{name}.json") or {} for name in LISTED)
    attempts = [attempt for note in notes for attempt in note.get("attempts", [])]
    return {"attempts": attempts} if attempts else {}


def _finished(recipe: Recipe, root: str, folder: str) -> tuple[dict[str, str], dict[str, float]]:
    """Return the committed outputs of a run by step, in order, and the seconds that each took: 0 if it was reused.

    A step whose last attempt was killed when its output was there has none: nobody noted them.

    A step that Kubeflow's cache answers leaves no note. Its output follows from those that it reads, and preprocess
    notes that of train, which may follow from the champion too.
    """
    notes = {name: note for name in OUTPUTS if (note := storage.read_json(f"{folder}/{name}.json"))}
    pipeline = Pipeline(root, recipe)
    for name in OUTPUTS:
        output = str(notes[name]["folder"]) if name in notes else ""
        if not output and STEPS[name].cached and pipeline.reaches(name):
            output = pipeline.place(name).output
        if output and storage.committed(output):
            pipeline.outputs[name] = output
    done = pipeline.outputs
    seconds = {name: notes.get(name, {"seconds": 0.0})["seconds"] for name in done}
    return done, {name: float(spent) for name, spent in seconds.items() if spent is not None}
