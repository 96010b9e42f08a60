"""Reads the progress that a training program reports as JSON lines about steps and epochs; passes other lines on.

A line is an event of `trainyard.events`, as `json.dumps` writes it. Its values are validated because they reach the
screen, the report and the planner.
"""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from trainyard import events, memory
from trainyard.contract.artifacts.train import Epoch
from trainyard.steps.train.loop.goodput import Past
from trainyard.steps.train.peers.settings import current_rank
from trainyard.storage import storage

_Steps = Annotated[int, Field(ge=0, le=1 << 53)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_EPOCHS = TypeAdapter(list[Epoch])


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
    replaces the earlier one. steps: the last step. examples_per_second: as last reported, 0.0 if never. process:
    process id for memory measurements, 0 before the start.
    """

    def __init__(self, past: Past, epochs: int, record: str) -> None:
        self._record = record
        self.history: list[Epoch] = _EPOCHS.validate_json((storage.read_text(record) if record else None) or "[]")
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

    def _warn(self, kind: str, error: ValidationError) -> None:
        if self._warned:
            return
        self._warned = True
        fault = error.errors(include_url=False)[0]
        location = ".".join(map(str, fault["loc"]))
        events.emit(
            "warning",
            message=f"train.command: a line of {kind} is left out: {location}: {fault['msg']}. "
            "docs/how-to/own-script.md says what it may hold.",
        )
