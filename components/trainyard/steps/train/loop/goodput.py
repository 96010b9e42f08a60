"""The restarts of a gang, and the share of its time that went into useful steps."""

from __future__ import annotations

import time

from pydantic import BaseModel, Field

from trainyard import events
from trainyard.contract.artifacts.train import Goodput, Restart, Straggler, WorkerCount

_MAX_STRAGGLERS = 100  # chosen: the newest; the history is sent in one message
_START = frozenset({"import", "join", "build", "compile"})


class GangHistory(BaseModel):
    """The history of a gang before this start.

    started: when the gang started. began_at: the step that it resumed from at first, None before its first new step.
    last_break: reason, last step and time of the last break. spent: seconds by name. max_workers: the number that an
    elastic gang asks for, 0 for a gang of a fixed number; worker_counts: the numbers that it had. team: number and
    node of each worker that trains, by rank; empty without supervisors. reads_since: time.time() when this process
    first read examples. Other times are time.monotonic() on the chief's machine, where worker 0's supervisor runs too.
    """

    started: float = Field(default_factory=time.monotonic)
    began_at: int | None = None
    restarts: list[Restart] = []
    last_break: tuple[str, int, float] | None = None
    spent: dict[str, float] = {}
    max_workers: int = 0
    worker_counts: list[WorkerCount] = []
    stragglers: list[Straggler] = []
    team: list[tuple[int, str]] = []
    reads_since: float = Field(default_factory=time.time)

    def note_new_steps(self, resumed_at: int, workers: int) -> None:
        """Note that `workers` took new steps after the checkpoint of step `resumed_at`."""
        before = self.worker_counts[-1].workers if self.worker_counts else 0
        if self.max_workers and workers != before:
            seconds = round(time.monotonic() - self.started, 3)
            count = WorkerCount(workers=workers, maximum=self.max_workers, step=resumed_at, seconds=seconds)
            self.worker_counts.append(count)
            events.emit("workers", **count.model_dump())
        if self.began_at is None:
            self.began_at = resumed_at
            events.emit("began", began_at=resumed_at)
        if self.last_break is None:
            return
        reason, step, at = self.last_break
        self.last_break = None
        seconds = round(time.monotonic() - at, 3)
        step = max(step, resumed_at)  # it may have saved a step that it had not told
        lost = step - resumed_at
        restart = Restart(reason=reason, step=step, resumed_at=resumed_at, lost_steps=lost, seconds=seconds)
        self.restarts.append(restart)
        events.emit("recovered", **restart.model_dump())

    def note_straggler(self, straggler: Straggler) -> None:
        """Note a straggler, or, if it has `until`, that it is none any more."""
        self.keep_straggler(straggler)
        events.emit("straggler", **straggler.model_dump())
        more = straggler.advice if straggler.until is None else f"That ended at step {straggler.until}"
        events.warn(f"{straggler}. {more}.")

    def keep_straggler(self, straggler: Straggler) -> None:
        """Add a straggler to the history, or replace it by its end."""
        found = (straggler.worker, straggler.step)
        kept = [one for one in self.stragglers if (one.worker, one.step) != found]
        self.stragglers = [*kept, straggler][-_MAX_STRAGGLERS:]

    def end_stragglers(self, step: int) -> None:
        """Note that a new start of the training ends the stragglers, which it finds again if they still are."""
        for straggler in self.stragglers:
            if straggler.until is None:
                self.keep_straggler(straggler.model_copy(update={"until": step}))

    def goodput(self, step: int, step_seconds: float, spent: dict[str, float], queue: float | None = None) -> Goodput:
        """Return the seconds since the start by use, and the share of `step`, which is useful; `other` is the rest.

        step: the final step of the training. spent: seconds of this process by name. queue: seconds before the start,
        if known.
        """
        seconds = {"step": (step - (step if self.began_at is None else self.began_at)) * step_seconds}
        spent = {**self.spent, **spent}
        if self.restarts:
            # The starts after a break are in the restarts' own seconds.
            spent = {name: value for name, value in spent.items() if name not in _START}
            seconds["restart"] = sum(restart.seconds for restart in self.restarts)
            seconds["lost_work"] = sum(restart.lost_steps for restart in self.restarts) * step_seconds
        seconds |= {name: value for name, value in spent.items() if name != "step"}
        other = time.monotonic() - self.started - sum(seconds.values())
        seconds |= {} if queue is None else {"queue": queue}
        seconds = {name: round(value, 3) for name, value in {**seconds, "other": max(0.0, other)}.items()}
        return Goodput(share=seconds["step"] / max(1e-9, sum(seconds.values())), seconds=seconds)
