"""A step as a task of a pipeline: the code that every `component.py` runs around its step.

KFP reports every failure as exit code 1 and passes data between tasks as URIs in parameters. So a task finds its output
folder, records its failures, and notes its folder for the run record.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trainyard import events, uris
from trainyard.contract import gang, keys
from trainyard.contract.pipeline import Pipeline, TrainingPlan
from trainyard.errors import ConfigurationError, TrainyardError, TransientError
from trainyard.graph import ARGUMENTS, LAUNCHER, STEPS, is_from
from trainyard.process.signals import handle_sigterm, on_arrival, on_sigterm
from trainyard.report import notify, pipeline_run, summary
from trainyard.runtime import step
from trainyard.runtime.step import remove_for
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_RECORD_SECONDS = 20.0  # chosen: a silent storage may be the reason for the failure


class Artifact(Protocol):
    """An output of a task as kfp gives it, which its page shows by `metadata`."""

    path: str
    metadata: dict[str, Any]


@dataclass
class StepTask:
    """One step of the run `run_id`, '' if the task must not know it, so that KFP may reuse its outputs."""

    name: str
    recipe: Recipe
    root: str
    run_id: str
    uri: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.root, self.recipe)

    def assign(self, run_id: str) -> None:
        """Assign the task to the run `run_id`, which KFP does not pass to it; '' for none.

        Only for a task that makes its output: a task that finds its output may have the maker's `run_id`.
        """
        self.run_id = run_id
        self.begin()
        self._note(None)

    def begin(self) -> None:
        """Remove the run's end as recorded by a failed attempt of this step."""
        if self.run_id:
            summary.reopen(self.root, self.recipe, self.run_id)

    def report(self) -> str:
        """Return the run's report at the end of this step, as `pipeline_run.write_end`; '' for an unknown run."""
        return pipeline_run.write_end(self.recipe, self.root, self.run_id, self.name) if self.run_id else ""

    def record_failure(self, output: str) -> None:
        """Write the record of a run that ends with the failure recorded beside `output`."""
        with suppress(TrainyardError), storage.deadline(_RECORD_SECONDS):
            if self.run_id:
                pipeline_run.write_failure(self.recipe, self.root, self.run_id, output)

    def tell_stopped(self) -> None:
        """Tell the webhook that the step was stopped, as `notify.send_stopped`."""
        if self.run_id:
            folder = keys.run_folder(self.root, self.recipe.name, self.run_id)
            notify.send_stopped(folder, self.recipe.name, self.run_id, self.name)

    def place(self, first: str = "", **read: str) -> str:
        """Return the folder of the step's output, which the outputs that it `read` lead to, by argument.

        first: as `redo`.
        """
        self._read(read)
        uri, self.arguments = self.pipeline.place(self.name)
        if "run_folder" in STEPS[self.name].inputs and self.run_id:
            self.arguments["run_folder"] = keys.run_folder(self.root, self.recipe.name, self.run_id)
        self.output_at(uri)
        self.redo(self.name, first, uri)
        return uri

    def _read(self, outputs: dict[str, str]) -> None:
        self.pipeline.outputs |= {ARGUMENTS[name]: uri for name, uri in outputs.items()}

    def output_at(self, uri: str) -> str:
        """Set the folder of the step's output to `uri` and return it."""
        self.uri = uri
        self._note(None)
        return self.uri

    def unfinished(self) -> bool:
        """Return True if the step's code must run; a task with a committed output need not even import it."""
        if STEPS[self.name].always_run or storage.committed(self.uri) is None:
            return True
        events.emit("reused", step=self.name, output=self.uri)
        self._note(0.0)
        return False

    def execute(self, run: Callable[..., None], **arguments: Any) -> None:
        """Leave the committed folder that `place` returned, as `step.execute`; `arguments` are those beside its own.

        On a list of pools another pod executes it.
        """
        start, arguments = time.monotonic(), self.arguments | arguments
        if not launched(self.name, self.uri, arguments, self.recipe, self.note_attempts):
            step.execute(run, self.uri, recipe=self.recipe, **arguments)
        self._note(round(time.monotonic() - start, 2))

    def delegate(self, run: Callable[..., None], **arguments: Any) -> None:
        """Have others commit the folder that `place` returned; `run(output=<its URI>, **arguments)` waits for them.

        This process takes no lease on the folder; the writer does.
        """
        start = time.monotonic()
        _delegate(self.name, self.uri, run, recipe=self.recipe, **arguments)
        self._note(round(time.monotonic() - start, 2))

    def plan_training(self, examples: str, first: str) -> TrainingPlan:
        """Return the plan for training on `examples`, and note it in the run record. `first`: as in `redo`.

        Decided before train, because KFP must know the plan to reuse a model.
        """
        self._read({"examples": examples})
        model, arguments = self.pipeline.place("train", again=is_from("train", first))
        self.redo("train", first, model, arguments["checkpoints"])
        self._write_note("train", {"folder": model, "seconds": 0.0})
        return TrainingPlan(model=model, start=arguments["start"], maker=self.maker(model))

    def plan_export(self, examples: str, model: str, evaluation: str, first: str) -> str:
        """Return the function that writes the exported files of `model`. `first`: as `redo`."""
        self._read({"examples": examples, "model": model, "evaluation": evaluation})
        uri, _ = self.pipeline.place("export")
        self.redo("export", first, uri)
        return self.maker(uri)

    def redo(self, step: str, first: str, *uris: str) -> None:
        """Remove the outputs `uris` of `step` if the run recomputes everything from the step `first` on; '' is none.

        Called by a step that ends before `step` starts, or by `step` itself, so that no output of this run is removed.
        """
        if is_from(step, first):
            remove_for(first, *uris)
            events.emit("removed", step=step, output=uris[0], reason=f"all from {first} on is recomputed")

    def maker(self, uri: str) -> str:
        """Return the run that made the output `uri`, or this run if the output is missing.

        KFP reuses a task's outputs forever if its arguments are the same, without looking at the outputs. A step with
        this argument runs again if its output is gone.
        """
        record = keys.maker_record(uri)
        if storage.committed(uri) is None:
            storage.write_text(record, self.run_id)
        return storage.read_text(record) or ""

    def decided(self, due: bool, why: str) -> str:
        """Return the answer of a check, 'due' or 'not due', and note it in the run record."""
        events.emit("checked", step=self.name, due=due, why=why)
        self._write_note(self.name, {"due": due, "why": why})
        return "due" if due else "not due"

    def note_attempts(self, attempts: list[dict[str, Any]]) -> None:
        """Note the attempts on a list of pools in the run record, as in `pods.run_in_pods`."""
        self.attempts = attempts
        self._note(None)

    def _note(self, seconds: float | None) -> None:
        note = {"folder": self.uri, "seconds": seconds}
        self._write_note(self.name, note | ({"attempts": self.attempts} if self.attempts else {}))

    def _write_note(self, name: str, note: dict[str, Any]) -> None:
        if self.run_id:
            write_note(keys.run_folder(self.root, self.recipe.name, self.run_id), name, note)


def write_note(run_folder: str, step: str, note: dict[str, Any]) -> None:
    """Write the note of `step` into the folder of a run, for its record."""
    note = note | {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    storage.write_text(f"{run_folder}/{step}.json", json.dumps(note))


def launched(
    name: str,
    output: str,
    arguments: dict[str, str],
    recipe: Recipe | None = None,
    note: Callable[[list[dict[str, Any]]], None] | None = None,
) -> bool:
    """Have a pod execute the step `name` on the first pool of its list that has nodes.

    Returns False if it has no list, or if its `output` is committed.

    arguments: those of the step's `run` besides `recipe` and `output`. note: as in `pods.run_in_pods`.
    """
    plan = os.environ.get(gang.VARIABLE)
    if not plan or storage.committed(output) is not None:
        return False
    run = importlib.import_module(LAUNCHER).run_step_in_pod
    code = keys.code_digest()
    _delegate(name, output, run, recipe=recipe, plan=plan, code=code, arguments=arguments, note=note)
    return True


def _delegate(name: str, output: str, run: Callable[..., None], **arguments: Any) -> None:
    step.assume_killed(name, output)
    run(output=output, **arguments)
    if storage.committed(output) is None:
        raise TransientError(f"{output}: was not committed by its workers. Run the same command again.")
    storage.remove(keys.failure_record(output))


@contextmanager
def opened(name: str, recipe: str, root: str, code: str, run_id: str = "") -> Iterator[StepTask]:
    """Yield the task of the step `name`; record an error in the block and exit with its exit code.

    recipe: YAML text of the resolved recipe. code: digest of the code that compiled the pipeline, '' if it is not
    pinned; an image with other code is refused.
    """
    root = uris.resolve(Path(), root)
    fallback = storage.join(root, name)
    task: StepTask | None = None

    def output() -> str:
        return task.uri if task and task.uri else fallback

    def tell() -> None:
        if task:
            task.tell_stopped()

    try:
        # Kubeflow ends a step at the run's deadline, or if it is cancelled, by SIGTERM to all processes of the pod.
        terminate = partial(handle_sigterm, signal.SIGTERM, None)
        with on_arrival(tell), on_sigterm(terminate), step.recorded(name, output):
            parsed = documents.parse(recipe, Recipe, name="recipe")
            if run_id:
                fallback = storage.join(keys.run_folder(root, parsed.name, run_id), name)
            task = StepTask(name, parsed, root, run_id)
            task.begin()
            check_code(name, code, parsed)
            yield task
    except SystemExit:
        if task:
            task.record_failure(output())
        raise


def write_previews(*artifacts: Artifact) -> None:
    """Write each artifact's log to a file, whose beginning Kubeflow's page shows."""
    for artifact in artifacts:
        Path(artifact.path).write_text(json.dumps(artifact.metadata, indent=1), encoding="utf-8")


def check_code(name: str, code: str, recipe: Recipe | None = None) -> None:
    """Raise `ConfigurationError` unless `code` is the digest of this code. recipe: of the step `name`."""
    actual = keys.code_digest()
    if code and code != actual:
        remedy = "name the image of the pipeline's version in the environment"
        if recipe and recipe.train.image and STEPS[name].hook and (name == "train" or recipe.module):
            remedy = "build train.image again FROM the image of the pipeline's version"
        raise ConfigurationError(
            f"{name}: the pipeline was compiled by code {code[:12]}, this image holds {actual[:12]}. "
            f"Compile the pipeline again with the image's version, or {remedy}."
        )
