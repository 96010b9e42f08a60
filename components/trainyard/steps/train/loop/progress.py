"""The events of a training while it runs: how far it is, and what its time goes into."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainyard import events
from trainyard.steps.train.engines.engine import Steps
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.loop.speed import SpeedMeter
from trainyard.steps.train.peers.rank import Rank

# Chosen: how often `progress` and `pace` are emitted.
PROGRESS_SECONDS, PACE_SECONDS = 0.25, 10.0
# Chosen: the calls that are probed: 10 s after the start, and every five minutes.
PROBE_AT_CALL, PROBE_EVERY_CALLS = 40, 1200


@dataclass
class ProgressReporter:
    """Emits progress and pace of one process's training towards `total` steps.

    prefetched_step_seconds: a step whose input is there already. all_reduce_seconds: the all-reduce of the gradients
    alone. Both are 0 until they were measured. seconds: what the loop's time went into, which the loop adds to.
    """

    steps: Steps
    data: Input
    rank: Rank
    speed: SpeedMeter
    total: int
    seconds: Mapping[str, float]
    prefetched_step_seconds: float = 0.0
    all_reduce_seconds: float = 0.0
    _progress_at: float = 0.0
    _pace_at: float = 0.0
    _calls: int = 0

    def is_probe_call(self) -> bool:
        """Count a call; return whether it is to be probed. It is the same call on all workers of a gang."""
        self._calls += 1
        return self._calls % PROBE_EVERY_CALLS == PROBE_AT_CALL

    def report(self, done: int, at_once: bool = False) -> None:
        """Emit that `done` steps are done, unless that was emitted just before."""
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_SECONDS or done == self.total or at_once:
            self._progress_at = now
            in_epoch = (done - 1) % self.data.steps_per_epoch + 1
            events.progress(
                done,
                self.total,
                "steps",
                loss=round(self.steps.loss_sum / in_epoch, 4),
                examples_per_second=round(self.speed.rate),
                **(self.data.feed.progress() if self.data.feed else {}),
            )
        if now - self._pace_at >= PACE_SECONDS and self.prefetched_step_seconds:
            self._pace_at = now
            self._emit_pace(done)

    def _emit_pace(self, done: int) -> None:
        """Emit what the time goes into, for `trainyard explain`: ms a step, seconds since this process began."""
        step_seconds = self.speed.step_seconds_so_far
        events.emit(
            "pace",
            step=done,
            steps=self.total,
            examples_per_second=round(self.data.batch_size / max(step_seconds, 1e-9)),
            step_ms=round(1000 * step_seconds, 3),
            rested_step_ms=round(1000 * self.prefetched_step_seconds, 3),
            all_reduce_ms=round(1000 * self.all_reduce_seconds, 3),
            workers=self.rank.workers,
            input_workers=self.data.input_workers,
            **{
                f"{name}_seconds": round(self.seconds.get(name, 0.0), 1)
                for name in ("step", "compile", "input", "eval", "save")
            },
        )
