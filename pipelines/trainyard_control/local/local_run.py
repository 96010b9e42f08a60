"""Takes a recipe through every step on this machine: each step in a separate process of this Python environment.

A journal beside the run's logs lets other terminals watch it, and the run's files explain how it ended.
"""

from __future__ import annotations

import fcntl
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self

from trainyard import errors, events
from trainyard.contract import keys, weights
from trainyard.contract.artifacts.gate import REFUSED, recorded_refusal
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.gang import check_input_workers, check_one_cpu, elastic_gang, to_parameter
from trainyard.contract.pipeline import Pipeline, is_blessed
from trainyard.contract.version import Champion
from trainyard.contract.window import day_of
from trainyard.errors import (
    ConfigurationError,
    DataError,
    ExitCode,
    TrainyardError,
    TransientError,
    did_you_mean,
    known_code,
)
from trainyard.graph import OUTPUTS, STEPS, is_from
from trainyard.process import child_process, memory
from trainyard.report import local_runs, summary
from trainyard.report.local_runs import JOURNAL, LocalRunView, recipes_by_run
from trainyard.runtime import step as steps
from trainyard.spec import code, devices, plain_yaml
from trainyard.spec.environment import TRAIN, Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache, disk, storage
from trainyard_control.cluster.explanation import advice, verdict
from trainyard_control.local.step_process import Stop, step_process
from trainyard_control.planning import python_packages

_HAPPENINGS = ("step_started", "step_event", "step_ended", "step_skipped")
_PASSING = ("progress", "epoch")  # events of which only the newest is of interest
_MEMORY_SECONDS = 0.1  # measured: reading it takes 0.1 ms, ten times as long as a line that a module prints
_POLL_SECONDS = 0.3  # chosen: a person does not see it, a processor hardly


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
        self.recipe = python_packages.chosen(self.recipe)
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
            message = "train.image is for clusters; the recipe's code runs in this machine's Python"
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
        self.recipe = self._pipeline.recipe = code.stored(self.recipe, self.root)
        storage.write_text(storage.join(self._folder, "recipe.yaml"), self._recipe_text)
        self._pipeline.day = self.day = day_of(self.day, self.recipe.data)

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
            if step == TRAIN:
                storage.write_text(keys.maker_record(output), self.run_id)
            self._process(step, output, arguments)
        if "checkpoints" in STEPS[step].inputs:
            steps.drop_checkpoints(output)
        self.folders[step], self.unfinished = output, {}
        self.seconds[step] = round(time.monotonic() - start, 2)
        self.listener.step_ended(step, self.seconds[step], reused)
        return output

    def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
        failure: events.Failure | None = None
        killed, peak, measured = memory.oom_kills(), 0, -math.inf
        start = time.monotonic()
        with (
            self._step_files(step) as (recipe, log),
            step_process(step, {"recipe": recipe, **arguments, "output": output}, self.cores, self.stop) as running,
        ):
            for line in running.child.lines:
                log.write(line)
                event = events.parse(line)
                if (now := time.monotonic()) - measured > _MEMORY_SECONDS:
                    peak, measured = max(peak, memory.peak_mib(running.child.pid)), now
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
        if code or storage.committed(output) is None:
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


class Journal:
    """Passes on to `listener` what happens, and writes it down in the run's `folder`, a JSON list a line.

    The file is locked as long as the journal is open, so that readers know if the run is active: the system frees it
    when the process is killed. It is not written into a bucket, which takes no line more in a file, nor on a full disk.
    """

    def __init__(self, folder: str, listener: Listener) -> None:
        self._folder, self._listener = folder, listener
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        if not storage.is_bucket(self._folder):
            folder = Path(self._folder)
            new = folder / f".{JOURNAL}"
            with suppress(OSError):  # the run tells of it when it writes something that matters
                folder.mkdir(parents=True, exist_ok=True)
                self._stream = new.open("w", encoding="utf-8")
                fcntl.flock(self._stream, fcntl.LOCK_EX)
                new.rename(folder / JOURNAL)  # nobody sees it without its lock
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            if self._stream:
                self._stream.close()

    def step_started(self, step: str) -> None:
        """A step begins."""
        self._tell("step_started", step)

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """The step wrote an event."""
        self._tell("step_event", step, event)

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """The step's output is there."""
        self._tell("step_ended", step, seconds, reused)

    def step_skipped(self, step: str, why: str) -> None:
        """The step is left out."""
        self._tell("step_skipped", step, why)

    def _tell(self, method: str, *arguments: Any) -> None:
        with suppress(OSError):
            if self._stream:
                self._stream.write(json.dumps([method, *arguments]) + "\n")
                self._stream.flush()
        getattr(self._listener, method)(*arguments)


def watch(root: str, run: LocalRunView, listener: Listener) -> LocalRunView:
    """Tell `listener` what has happened in `run`, and what happens until it ends, and return it as it is then.

    Raises `TransientError` if it was killed, `ConfigurationError` if it wrote nothing down, `DataError` if the
    journal is damaged.
    """
    path = Path(run.folder) / JOURNAL
    if not path.is_file():
        raise ConfigurationError(
            f"{run.name}: there is nothing to watch it by: its storage is a bucket, or it is of an older version. "
            f"See `trainyard runs show {run.name}`."
        )
    with path.open(encoding="utf-8") as stream:
        rest, over, first = "", False, True
        while not over:
            over = not local_runs.is_written(stream)  # asked before reading, so that the last lines are not missed
            try:
                *lines, rest = (rest + stream.read()).split("\n")
                happenings = [(method, arguments) for method, *arguments in map(json.loads, lines)]
            except (TypeError, ValueError) as error:
                raise DataError(f"{path}: is damaged ({error}). See `trainyard runs show {run.name}`.") from error
            for number, (method, arguments) in enumerate(happenings, 1):
                passed = first and number < len(happenings) and method == "step_event"
                if method in _HAPPENINGS and not (passed and arguments[1].get("event") in _PASSING):
                    getattr(listener, method)(*arguments)
            first = False
            if not over:
                time.sleep(_POLL_SECONDS)
    ended = local_runs.view(root, run.recipe, run.name)
    if not ended.record:
        raise TransientError(f"{run.name}: was killed. Run the same command again: it resumes.")
    return ended


def explain_folder(root: str, run: str) -> tuple[str, ExitCode]:
    """Return one sentence on the run `run` below the storage `root`, the newest if it is '', and its exit code.

    Raises `ConfigurationError` if there is no such run.
    """
    folders = {name: storage.join(root, recipe, "runs", name) for name, recipe in sorted(recipes_by_run(root).items())}
    if not folders or (run and run not in folders):
        newest = ", ".join(list(folders)[-5:]) or "none"
        raise ConfigurationError(f"no run '{run or 'at all'}' in {root}. There: {newest}.{did_you_mean(run, folders)}")
    name = run or list(folders)[-1]
    record = local_runs.read_record(folders[name])
    if record and not record.get("failure") and not record.get("exit_code"):
        refused = recorded_refusal(record)
        ended = f"has ended: {REFUSED} ({refused})" if refused else "has succeeded"
        return f"{name} {ended}. Report: {record['report']}", ExitCode.DONE
    sentence, code = _failure(name, folders[name], str(record.get("failure") or ""), record.get("exit_code"))
    return f"{sentence} Report: {record['report']}" if record.get("report") else sentence, code


def _failure(name: str, folder: str, sentence: str, number: int | None) -> tuple[str, ExitCode]:
    """Return the sentence of the last step that wrote a log, with what to do."""
    files = set(storage.children(folder))
    steps = [step for step in OUTPUTS if f"{step}.log" in files]
    if not steps and not sentence:
        return f"{name} has not begun a step", ExitCode.TRANSIENT
    event = None
    if steps:
        log = storage.join(folder, f"{steps[-1]}.log")
        text = storage.read_text(log, errors="replace") or ""
        event = events.failure(text)
        if event:
            number, sentence = event.code, event.message
        if not sentence:
            pace = verdict(text, one_machine=True).sentence
            pace_note = f" ({pace})" if pace else ""
            return f"{name} is in {steps[-1]}{pace_note}, or was killed there; log: {log}", ExitCode.TRANSIENT
    code = known_code(number, ExitCode.BUG)
    place = f" in {steps[-1]}" if event else ""
    parts = [f"{name} failed{place}: {sentence.rstrip('.')}", advice(code, "run again")]
    return ". ".join(filter(None, parts)) + ".", code
