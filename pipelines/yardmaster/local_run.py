"""Takes a recipe through every step on this machine: each step a process of its own, in this very environment."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from trainyard.core import errors, keys, storage
from trainyard.core.artifacts import Evaluation, Exports
from trainyard.core.champion import champion
from trainyard.core.environment import Environment
from trainyard.core.errors import ExitCode, TrainyardError
from trainyard.core.recipe import Recipe
from yardmaster.step_process import step_process


class Listener(Protocol):
    """Is told what happens while a run goes on."""

    def step_started(self, step: str) -> None:
        """A step begins."""

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """The step said one thing (see `trainyard.core.events`)."""

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """The step's output is there."""

    def step_skipped(self, step: str, why: str) -> None:
        """The step is left out."""


@dataclass
class LocalRun:
    """A run and what is known of it so far. `folders` and `seconds` grow step by step."""

    recipe: Recipe
    environment: Environment
    run_id: str
    from_step: str | None
    listener: Listener
    folders: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    startup_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """The storage of the environment."""
        return self.environment.storage

    @property
    def folder(self) -> Path:
        """Where the run's recipe, logs, record and report are."""
        return Path(self.root) / self.recipe.name / "runs" / self.run_id

    @property
    def destination(self) -> str:
        """The folder of model versions that a server polls."""
        return self.recipe.push.path or storage.join(self.root, self.recipe.name, "models")

    def execute(self) -> None:
        """Run what is not done yet. A step that the gate leaves out is told to the listener.

        Raises the error class of the step that failed, with its sentence.
        """
        text = yaml.safe_dump(self.recipe.model_dump(mode="json"), sort_keys=False)
        storage.write_text(str(self.folder / "recipe.yaml"), text)
        examples = self._step("preprocess", keyed_by=(keys.fingerprint(self.recipe),))
        model = self._step("train", examples=examples)
        best = champion(self.destination)
        evaluation = self._step("evaluate", examples=examples, model=model, champion=best.path if best else "")
        if Evaluation.read(evaluation).gate.verdict != "blessed":
            return self._skip(("export", "push"), "the gate refused the model")
        exported = self._step("export", examples=examples, model=model)
        if Exports.read(exported).gate.verdict != "blessed":
            return self._skip(("push",), "the gate refused an exported file")
        self._step("push", evaluation=evaluation, exported=exported, destination=self.destination)

    def _skip(self, steps: tuple[str, ...], why: str) -> None:
        for step in steps:
            self.listener.step_skipped(step, why)

    def _step(self, step: str, keyed_by: tuple[str, ...] = (), **inputs: str) -> str:
        output = keys.output_uri(self.root, self.recipe, step, *keyed_by, *inputs.values())
        arguments = dict(inputs)
        if step == "train":
            arguments["checkpoints"] = f"{output}.checkpoints"
        if step == "preprocess":
            arguments["beam-options"] = self.environment.beam.command_line
        if self.from_step and keys.STEPS.index(step) >= keys.STEPS.index(self.from_step):
            with storage.lease(output):
                for uri in (output, *(uri for name, uri in arguments.items() if name == "checkpoints")):
                    storage.remove(uri)
        self.listener.step_started(step)
        start = time.monotonic()
        reused = step not in keys.ALWAYS_RUN and storage.committed(output) is not None
        if not reused:
            self._process(step, output, arguments)
        self.folders[step] = output
        self.seconds[step] = round(time.monotonic() - start, 2)
        self.listener.step_ended(step, self.seconds[step], reused)
        return output

    def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
        options = {"recipe": str(self.folder / "recipe.yaml"), **arguments, "output": output}
        failure: dict[str, Any] = {}
        start = time.monotonic()
        with step_process(step, options) as running, (self.folder / f"{step}.log").open("w", encoding="utf-8") as log:
            for line in running.lines:
                log.write(line)
                event = _event(line)
                if event.get("event") == "started":
                    self.startup_seconds[step] = round(time.monotonic() - start, 2)
                elif event.get("event") == "failed":
                    failure = event
                if event:
                    self.listener.step_event(step, event)
            code = running.wait()
        if code in (ExitCode.INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if code or storage.committed(output) is None:
            raise self._error(step, code, failure)

    def _error(self, step: str, code: int, failure: dict[str, Any]) -> TrainyardError:
        log = self.folder / f"{step}.log"
        known = {kind.__name__: kind for kind in TrainyardError.__subclasses__()}
        if failure.get("error") in known:
            return known[failure["error"]](failure["message"])
        if code == -signal.SIGKILL:
            return errors.TransientError(
                f"{step}: was killed (SIGKILL), perhaps for want of memory. Run the same command again to go on; log: {log}."
            )
        sentence = failure.get("message") or f"{step}: ended with exit status {code} and no committed output"
        return TrainyardError(f"{sentence}. This is a fault of Trainyard or of the recipe's module; log: {log}.")


def _event(line: str) -> dict[str, Any]:
    try:
        return json.loads(line) if line.startswith('{"event"') else {}
    except ValueError:
        return {}
