"""The training program of one worker: its folder, environment, output and exit.

Of its output, JSON lines about steps and epochs are events of `trainyard.events`, as `json.dumps` writes them. Their
values are validated because they reach the screen, the report and the planner. Other lines are passed on.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from trainyard import events
from trainyard.contract.artifacts.train import Epoch
from trainyard.errors import CommandFailed, DataError, ExitCode, PeerLost, Preempted
from trainyard.process import memory
from trainyard.process.child_process import end_with_parent, start_program
from trainyard.process.signals import on_sigterm
from trainyard.runtime import recipe_packages
from trainyard.spec import code, packages
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.peers import settings
from trainyard.steps.train.peers.settings import Rank, current_rank
from trainyard.storage import storage
from trainyard.uris import BRACKETS

_Steps = Annotated[int, Field(ge=0, le=1 << 53)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_EPOCHS = TypeAdapter(list[Epoch])
_LAST_LINES = 3  # chosen: shown if no line looks like a Python error
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b.*")
_LONGEST_LINE = 300
_LONGEST_READ = 1 << 20  # chosen: characters of a line; the rest counts as another line
_LAST_WORDS_SECONDS = 5.0  # chosen: a leftover process of the program may hold its output open forever


class _Progress(BaseModel):
    done: _Steps
    total: _Steps
    loss: _Number | None = None
    examples_per_second: _Speed | None = None


class _Resumed(BaseModel):
    step: _Steps


class _Epoch(BaseModel):
    epoch: Annotated[int, Field(ge=1, le=1 << 31)]
    step: _Steps
    train_loss: _Number
    eval_loss: _Number
    metric: _Number
    learning_rate: _Number = 0.0
    examples_per_second: _Speed | None = None


class ProgramRecord:
    """The epochs that all starts of the program reported, and the progress of this start.

    record: URI where the epochs are kept for the next start, '' for none. history: epochs in order; a repeated epoch
    replaces the earlier one. on_epoch: called for each, including those of earlier starts. steps: the last step.
    examples_per_second: as last reported, 0.0 if never. process: its id for memory measurements, 0 before the start.
    """

    def __init__(
        self, past: GangHistory, epochs: int, record: str, on_epoch: Callable[[Epoch], None] | None = None
    ) -> None:
        self._record, self._on_epoch = record, on_epoch
        self.history = _recorded_epochs(record)
        if on_epoch:
            for epoch in self.history:
                on_epoch(epoch)
        self.steps = 0
        self.resumed_from: int | None = None
        self.process = 0
        self.examples_per_second = 0.0
        self._past = past
        self._epochs = epochs
        self._first: tuple[float, int] | None = None
        self._last = (time.monotonic(), 0)
        self._epoch_at = time.monotonic()
        self._warned = False

    @property
    def step_seconds(self) -> float:
        """Mean seconds a step between the first and the last progress line, 0.0 before the second."""
        if self._first is None or self._last[1] <= self._first[1]:
            return 0.0
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])

    def read(self, line: str) -> None:
        """Handle a known event after validation; pass any other `line` on as text."""
        fields = events.parse(line)
        kind = fields.pop("event", "")
        try:
            if kind == "progress":
                self._progress(_Progress.model_validate(fields))
            elif kind == "resumed":
                self.resumed_from = _Resumed.model_validate(fields).step
                events.emit("resumed", step=self.resumed_from)
            elif kind == "epoch":
                self._epoch(_Epoch.model_validate(fields))
            else:
                # A line that only looks like one of our events is not passed on as an event.
                events.write(f"program: {line.rstrip()}" if kind else line.rstrip())
        except ValidationError as error:
            self._warn(kind, error)

    def _progress(self, line: _Progress) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, line.done)
            self._past.note_new_steps(self.resumed_from or 0, current_rank().workers)
        self._last = (now, line.done)
        self.steps = max(self.steps, line.done)
        if line.examples_per_second is not None:
            self.examples_per_second = line.examples_per_second
        fields = line.model_dump(exclude_none=True, exclude={"done", "total"})
        peak = memory.peak_mib(self.process) if self.process else 0
        events.emit("progress", done=line.done, total=line.total, unit="steps", **fields, peak_mib=peak)

    def _epoch(self, line: _Epoch) -> None:
        seconds, self._epoch_at = time.monotonic() - self._epoch_at, time.monotonic()
        self.steps = max(self.steps, line.step)
        if line.examples_per_second is not None:
            self.examples_per_second = line.examples_per_second
        fields = line.model_dump() | {"examples_per_second": self.examples_per_second, "seconds": seconds}
        epoch = Epoch(**fields)
        by_number = {old.epoch: old for old in self.history} | {epoch.epoch: epoch}
        self.history = [by_number[number] for number in sorted(by_number)]
        if self._record:
            storage.write_text(self._record, _EPOCHS.dump_json(self.history).decode())
        events.emit("epoch", of=max(self._epochs, epoch.epoch), **epoch.model_dump())
        if self._on_epoch:
            self._on_epoch(epoch)

    def _warn(self, kind: str, error: ValidationError) -> None:
        if self._warned:
            return
        self._warned = True
        fault = error.errors(include_url=False)[0]
        location = ".".join(map(str, fault["loc"]))
        events.warn(
            f"train.command: a line of {kind} is left out: {location}: {fault['msg']}. "
            "docs/how-to/own-script.md says what it may hold."
        )


def _recorded_epochs(record: str) -> list[Epoch]:
    """Return the epochs in the file `record`; none, with a warning, if it is damaged or another version wrote it."""
    try:
        return _EPOCHS.validate_json((storage.read_text(record) if record else None) or "[]")
    except (ValidationError, DataError) as error:
        events.warn(f"{record}: the epochs of earlier starts are not known ({error}).")
        return []


def prepare(recipe: Recipe, folder: Path) -> None:
    """Write the program's files and recipe.json into the empty working `folder`."""
    code.write(code.program_files(recipe), folder)
    (folder / "recipe.json").write_text(recipe.model_dump_json(exclude={"files", "packages"}), encoding="utf-8")


def variables(recipe: Recipe, rank: Rank, addresses: list[str], own_variables: dict[str, str]) -> dict[str, str]:
    """Return the program's environment: this process's, the addresses of all workers, and `own_variables`.

    addresses: host:port of each worker, a free port. TF_CONFIG is for TensorFlow's strategies, MASTER_ADDR and its
    companions for torch.distributed (docs.pytorch.org/docs/stable/distributed.html), JAX_COORDINATOR_ADDRESS for
    jax.distributed.initialize. PYTHONPATH names the recipe's packages, none of which is installed here.
    """
    host, _, port = addresses[0].rpartition(":")
    env = {name: value for name, value in os.environ.items() if name not in (settings.GANG_TOKEN, settings.RECIPE)}
    if rank.workers == 1:
        env.pop("TF_CONFIG", None)
    threads = {"OMP_NUM_THREADS": env["TF_NUM_INTRAOP_THREADS"]} if "TF_NUM_INTRAOP_THREADS" in env else {}
    if wheels := packages.wheels(recipe):
        startup = recipe_packages.startup(recipe_packages.folder(wheels))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(startup), env.get("PYTHONPATH")]))
    return {
        **threads,
        **env,
        # `python` is Trainyard's interpreter.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank.index),
        "WORLD_SIZE": str(rank.workers),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": host.strip(BRACKETS),
        "MASTER_PORT": port,
        "JAX_COORDINATOR_ADDRESS": addresses[0],
        **own_variables,
    }


@dataclass(frozen=True)
class Ended:
    """The exit of a program: exit code, whether it got SIGTERM, and its last words."""

    name: str
    code: int
    stopped: bool
    last_words: str

    def check(self) -> None:
        """Return if the exit status was 0.

        Raises `CommandFailed` for any other status, `PeerLost` for 75, `Preempted` after SIGTERM. A signal that ended
        the program ends this process too.
        """
        if not self.code:
            return
        if self.stopped:
            raise Preempted
        if self.code < 0:
            if -self.code != signal.SIGKILL:
                signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
        if self.code == ExitCode.PEER_LOST:
            raise PeerLost(f"train.command: '{self.name}' asked to be started again (exit status {self.code}).")
        raise CommandFailed(
            f"train.command: '{self.name}' ended with exit status {self.code}: {self.last_words}. Correct the program; "
            "the log of train has all that it wrote."
        )


def run(command: list[str], folder: Path, environment: dict[str, str], record: ProgramRecord) -> Ended:
    """Run `command` in `folder` to its end; `record` reads each output line.

    Passes SIGTERM on. Raises `CommandFailed` if the program could not be started.
    """
    try:
        program = start_program(command, environment, folder, own_session=False, first=end_with_parent())
    except OSError as error:
        raise CommandFailed(
            f"train.command: '{command[0]}' could not be started ({error.strerror}). "
            "Name a program that the machine or the image has."
        ) from error
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        program.terminate()

    events.emit("program", process=program.pid, command=" ".join(command))
    record.process = program.pid
    last: deque[str] = deque(maxlen=_LAST_LINES)
    faults: list[Exception] = []
    named = ""

    def read() -> None:
        nonlocal named
        try:
            for line in iter(lambda: program.stdout.readline(_LONGEST_READ) if program.stdout else "", ""):
                last.append(line.strip()[:_LONGEST_LINE])
                named = last[-1] if _ERROR.match(line) else named
                record.read(line)
        except Exception as error:  # noqa: BLE001 - raised below: else the program would wait for a reader
            faults.append(error)
            program.kill()

    reader = threading.Thread(target=read, daemon=True)
    with on_sigterm(stop):
        reader.start()
        code = program.wait()
    reader.join(_LAST_WORDS_SECONDS)
    if faults:
        raise faults[0]
    return Ended(command[0], code, stopped, named or " | ".join(filter(None, last)) or "it wrote nothing")
