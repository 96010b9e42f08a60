"""The events of a training while it runs: how far it is, and what its time goes into."""

from __future__ import annotations

import time
from collections.abc import Mapping

from trainyard import events
from trainyard.steps.train.engines.engine import Steps
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.loop.speed import SpeedMeter
from trainyard.steps.train.peers.rank import Rank

# Chosen: how often `progress` and `pace` are emitted.
PROGRESS_SECONDS, PACE_SECONDS = 0.25, 10.0
# Chosen: the calls that are probed: 10 s after the start, and every five minutes.
PROBE_AT_CALL, PROBE_EVERY_CALLS = 40, 1200


class ProgressReporter:
    """Emits progress and pace of one process's training towards `total` steps.

    prefetched_step_seconds: a step whose input is there already. all_reduce_seconds: the all-reduce of the gradients
    alone. Both are 0 until they were measured. seconds: what the loop's time went into, which the loop adds to.
    """

    def __init__(
        self, steps: Steps, data: Input, rank: Rank, speed: SpeedMeter, total: int, seconds: Mapping[str, float]
    ) -> None:
        self.prefetched_step_seconds = self.all_reduce_seconds = 0.0
        self._steps = steps
        self._data = data
        self._rank = rank
        self._speed = speed
        self._total = total
        self._seconds = seconds
        self._progress_at = self._pace_at = 0.0
        self._calls = 0

    def is_probe_call(self) -> bool:
        """Count a call; return whether it is to be probed. It is the same call on all workers of a gang."""
        self._calls += 1
        return self._calls % PROBE_EVERY_CALLS == PROBE_AT_CALL

    def report(self, done: int, at_once: bool = False) -> None:
        """Emit that `done` steps are done, unless that was emitted just before."""
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_SECONDS or done == self._total or at_once:
            self._progress_at = now
            in_epoch = (done - 1) % self._data.steps_per_epoch + 1
            events.progress(
                done,
                self._total,
                "steps",
                loss=round(self._steps.loss_sum / in_epoch, 4),
                examples_per_second=round(self._speed.rate),
                **(self._data.feed.progress() if self._data.feed else {}),
            )
        if now - self._pace_at >= PACE_SECONDS and self.prefetched_step_seconds:
            self._pace_at = now
            self._emit_pace(done)

    def _emit_pace(self, done: int) -> None:
        """Emit what the time goes into, for `trainyard explain`: ms a step, seconds since this process began."""
        step_seconds = self._speed.step_seconds_so_far
        events.emit(
            "pace",
            step=done,
            steps=self._total,
            examples_per_second=round(self._data.batch_size / max(step_seconds, 1e-9)),
            step_ms=round(1000 * step_seconds, 3),
            rested_step_ms=round(1000 * self.prefetched_step_seconds, 3),
            all_reduce_ms=round(1000 * self.all_reduce_seconds, 3),
            workers=self._rank.workers,
            input_workers=self._data.input_workers,
            **{
                f"{name}_seconds": round(self._seconds.get(name, 0.0), 1)
                for name in ("step", "compile", "input", "eval", "save")
            },
        )
