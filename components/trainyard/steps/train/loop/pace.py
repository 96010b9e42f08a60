"""What a training says while it goes on: how far it is, and what its time goes into."""

from __future__ import annotations

import time
from collections.abc import Mapping

from trainyard import events
from trainyard.steps.train.engines.engine import Steps
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.loop.speed import Speed

# Chosen: progress is told that often, and what the time goes into.
PROGRESS_SECONDS, PACE_SECONDS = 0.25, 10.0
# Chosen: in which calls is looked at what the time goes into: 10 s after the start, and every five minutes.
LOOKS_AT, LOOKS_EVERY = 40, 1200


class Pace:
    """Tells progress and pace of one process's training towards `total` steps.

    rested_step_seconds: a step when the input is ahead. all_reduce_seconds: the gradients' sum over the replicas alone.
    Both are 0 until they were looked at. seconds: what the loop's time went into, which the loop adds to.
    """

    def __init__(self, steps: Steps, data: Input, speed: Speed, total: int, seconds: Mapping[str, float]) -> None:
        self.rested_step_seconds = self.all_reduce_seconds = 0.0
        self._steps = steps
        self._data = data
        self._speed = speed
        self._total = total
        self._seconds = seconds
        self._told = self._pace_told = 0.0
        self._calls = 0

    def looks(self) -> bool:
        """Whether to look in the next call what a step takes. It is the same call on all workers of a gang."""
        self._calls += 1
        return self._calls % LOOKS_EVERY == LOOKS_AT

    def tell(self, done: int, at_once: bool = False) -> None:
        """Say that `done` steps are done, unless it was said just before."""
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS or done == self._total or at_once:
            self._told = now
            in_epoch = (done - 1) % self._data.steps_per_epoch + 1
            events.progress(
                done,
                self._total,
                "steps",
                loss=round(self._steps.loss_sum / in_epoch, 4),
                examples_per_second=round(self._speed.rate),
            )
        if now - self._pace_told >= PACE_SECONDS and self.rested_step_seconds:
            self._pace_told = now
            self._tell_pace(done)

    def _tell_pace(self, done: int) -> None:
        """Say what the time goes into, as `trainyard explain` reads it: ms a step, seconds since this process began."""
        each = self._speed.step_seconds_so_far
        events.emit(
            "pace",
            step=done,
            steps=self._total,
            examples_per_second=round(self._data.batch_size / max(each, 1e-9)),
            step_ms=round(1000 * each, 3),
            rested_step_ms=round(1000 * self.rested_step_seconds, 3),
            all_reduce_ms=round(1000 * self.all_reduce_seconds, 3),
            **{
                f"{name}_seconds": round(self._seconds.get(name, 0.0), 1)
                for name in ("step", "compile", "input", "eval", "save")
            },
        )
