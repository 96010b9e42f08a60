"""Takes a recipe through every step on this machine: each step in a separate process of this Python environment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self

from trainyard import child_process, errors, events, memory
from trainyard.contract import keys, weights
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.gang import check_input_workers, check_one_cpu, elastic_gang, to_parameter
from trainyard.contract.pipeline import Pipeline, is_blessed
from trainyard.contract.version import Champion
from trainyard.contract.window import day_of
from trainyard.errors import ExitCode, TrainyardError
from trainyard.graph import OUTPUTS, STEPS, is_from
from trainyard.report import summary
from trainyard.runtime import step as steps
from trainyard.spec import devices, plain_yaml
from trainyard.spec.environment import TRAIN, Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache, disk, storage
from trainyard_control.local.step_process import Stop, step_process


class Listener(Protocol):
    """Receives what happens in a run."""

    def step_started(self, step: str) -> None:
        """A step begins."""

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """The step wrote an event (see `trainyard.events`)."""

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """The step's output is there."""

    def step_skipped(self, step: str, why: str) -> None:
        """The step is left out."""


@dataclass
class LocalRun:
    """A run and what is known of it so far; `folders` and `seconds` grow step by step.

    day: as `window.day_of` reads it. unfinished: the output that a step is writing, by step. folder: where the
    recipe's copy and the steps' logs go, by default the folder of the run. push: whether a blessed model is pushed.
    override: why a refused one is pushed, too; '' if it is not. cores: those that the steps may use, by default all.
    stop: what ends a run outside of the main thread. on_event: called with each event of a step before the listener,
    and may raise.
    """

    recipe: Recipe
    environment: Environment
    run_id: str
    from_step: str | None
    listener: Listener
    day: str = ""
    folder: str = ""
    push: bool = True
    override: str = ""
    cores: frozenset[int] | None = None
    stop: Stop | None = None
    on_event: Callable[[str, dict[str, Any]], None] | None = None
    folders: dict[str, str] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    startup_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pipeline = Pipeline(self.root, self.recipe, self.folders)

    @property
    def root(self) -> str:
        """The storage of the environment."""
        return self.environment.storage

    @property
    def _pool(self) -> Pool | None:
        """The pool that train is placed on, if one is."""
        return self.environment.pools.get(self.environment.pool_name(TRAIN))

    @property
    def usd_per_hour(self) -> float | None:
        """The hourly price of this machine as the pool of the training, None if it has none."""
        price = machines.price(self._pool, self.environment.platform) if self._pool else None
        return price.usd_per_hour if price else None

    @property
    def _folder(self) -> str:
        return self.folder or keys.run_folder(self.root, self.recipe.name, self.run_id)

    @property
    def _recipe_text(self) -> str:
        return plain_yaml.dump(self.recipe.model_dump(mode="json"))

    def execute(self) -> None:
        """Run what is not done yet. The listener receives the steps that the gate leaves out.

        Raises the error class of the step that failed, with its sentence.
        """
        with storage.reading(storage.join(self.root, self.recipe.name)):
            self._execute()

    def _execute(self) -> None:
        check_input_workers(self.recipe, self.environment.input_count)
        check_one_cpu(self.recipe, self.environment)
        elastic_gang(self.recipe, self._pool)
        devices.require(self.recipe.export.devices, "export.devices: ")
        summary.reserve(self.root, self.recipe, self.run_id)
        if self.recipe.train.image:
            message = "train.image is for clusters; the program runs in this machine's Python"
            self.listener.step_event("train", events.fields_of("warning", message=message))
        for step in OUTPUTS:
            if step == Pushed.made_by and not self.push:
                return self._skip_rest("no push was asked for")
            output = self._step(step)
            if not is_blessed(step, output):
                refused = f"the gate refused {STEPS[step].judges}"
                if not self.override:
                    return self._skip_rest(refused)
                message = f"{refused}; the run continues because it is overridden: {self.override}"
                self.listener.step_event(step, events.fields_of("warning", message=message))

    def preprocess(self) -> str:
        """Make the examples, and return their folder."""
        return self._step("preprocess")

    def train(self, best: Champion | None) -> str:
        """Train a model of the examples, from the weights of `best` if the recipe says so, and return its folder."""
        self._pipeline.best = best
        return self._step("train")

    def evaluate(self, best: Champion | None) -> str:
        """Judge the model, beside `best`, and return the folder of the verdict."""
        self._pipeline.best = best
        return self._step("evaluate")

    def _begin(self) -> None:
        weights.digest(self.recipe)  # those that are not there end the run before its data are read
        storage.write_text(storage.join(self._folder, "recipe.yaml"), self._recipe_text)
        self._pipeline.day = self.day = day_of(self.day)

    def _skip_rest(self, why: str) -> None:
        for step in OUTPUTS:
            if STEPS[step].optional and step not in self.folders:
                self.listener.step_skipped(step, why)

    def _step(self, step: str) -> str:
        """Have `step` commit its output, and return that."""
        if not self.folders:
            self._begin()
        again = is_from(step, self.from_step)
        output, arguments = self._pipeline.place(step, again)
        settings = {
            "input_workers": str(self.environment.input_count),
            "elastic": to_parameter(elastic_gang(self.recipe, self._pool)),
            "beam_options": self.environment.beam_options,
            "override": self.override,
            "run_folder": self._folder,
            "usd_per_hour": "" if self.usd_per_hour is None else str(self.usd_per_hour),
        }
        arguments |= {name: settings[name] for name in STEPS[step].inputs if name in settings}
        self.unfinished = {step: output}
        if again:
            steps.remove_for(
                self.from_step or "", output, *(uri for name, uri in arguments.items() if name == "checkpoints")
            )
        self.listener.step_started(step)
        start = time.monotonic()
        reused = not STEPS[step].always_run and storage.committed(output) is not None
        if not reused:
            self._process(step, output, arguments)
        if "checkpoints" in STEPS[step].inputs:
            steps.drop_checkpoints(output)
        self.folders[step], self.unfinished = output, {}
        self.seconds[step] = round(time.monotonic() - start, 2)
        self.listener.step_ended(step, self.seconds[step], reused)
        return output

    def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
        failure: events.Failure | None = None
        killed, peak = memory.oom_kills(), 0
        start = time.monotonic()
        with (
            self._step_files(step) as (recipe, log),
            step_process(step, {"recipe": recipe, **arguments, "output": output}, self.cores, self.stop) as running,
        ):
            for line in running.child.lines:
                log.write(line)
                event = events.parse(line)
                peak = max(peak, memory.peak_mib(running.child.pid))
                if event.get("event") == "started":
                    self.startup_seconds[step] = round(time.monotonic() - start, 2)
                failure = events.failure(line) or failure
                if event:
                    if self.on_event:
                        self.on_event(step, event)
                    self.listener.step_event(step, event)
            code = running.wait()
        running.require_undisturbed(step)
        if code == -signal.SIGKILL and memory.oom_kills() > killed:
            raise errors.InfrastructureError(f"{step}: was killed{memory.oom_message(peak, step)}.")
        # If the fork server was killed, only the committed output says how the step ended; one of push may be older.
        unknown = code == child_process.LOST and not STEPS[step].always_run
        if (code and not unknown) or storage.committed(output) is None:
            raise self._error(step, code, failure)

    @contextmanager
    def _step_files(self, step: str) -> Iterator[tuple[str, _Log]]:
        """Yield the local path of the recipe, and the step's log, which is in the run's folder when the block ends."""
        bucket = storage.is_bucket(self._folder)
        with cache.temporary_folder() as temporary:
            folder = temporary if bucket else Path(self._folder)
            recipe, log = folder / "recipe.yaml", folder / f"{step}.log"
            if bucket:
                with disk.os_errors(recipe):
                    recipe.write_text(self._recipe_text, encoding="utf-8")
            try:
                with _Log(log) as lines:
                    yield str(recipe), lines
            finally:
                if bucket:
                    lines.upload(storage.join(self._folder, log.name))
            if lines.fault:
                message = f"its log ends early: {lines.fault}"
                self.listener.step_event(step, events.fields_of("warning", message=message))

    def _error(self, step: str, code: int, failure: events.Failure | None) -> TrainyardError:
        log = storage.join(self._folder, f"{step}.log")
        if failure and failure.code != ExitCode.BUG:
            return errors.from_code(*failure)
        if code in (-signal.SIGKILL, child_process.LOST):
            how = child_process.describe_exit(code)
            return errors.TransientError(f"{step}: {how}. Run the same command again to resume; log: {log}.")
        sentence = failure.message if failure else f"{step}: ended with exit status {code} and no committed output"
        return TrainyardError(f"{sentence}. This is a fault of Trainyard or of the recipe's module; log: {log}.")


class _Log:
    """A step's log. A disk that takes no more of it is the `fault`, and no reason to end the step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: TrainyardError | None = None
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        self._try(lambda: setattr(self, "_stream", self.path.open("w", encoding="utf-8")))
        return self

    def __exit__(self, *_: object) -> None:
        stream, self._stream = self._stream, None
        if stream:
            self._try(stream.close)

    def write(self, line: str) -> None:
        """Append `line`, so that a reader of the active run sees it at once."""
        stream = self._stream
        if stream and not self.fault:
            self._try(lambda: stream.write(line) and stream.flush())

    def upload(self, uri: str) -> None:
        """Leave what was written at `uri`."""
        try:
            storage.write_text(uri, storage.read_text(str(self.path), errors="replace") or "")
        except TrainyardError as error:
            self.fault = self.fault or error

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self.fault = self.fault or disk.fault(error, self.path)
