"""Training speed, the progress and pace events that report it, and stragglers: workers that the others wait for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.train import Straggler
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.peers.settings import Rank

if TYPE_CHECKING:
    from trainyard.steps.train.engines.steps import Steps
    from trainyard.steps.train.input.input import Input

# Chosen: if real batches are slower than a cached one by this factor, the input is the bottleneck.
INPUT_BOUND = 1.2
# Chosen: how much slower than the others a straggler is in at least how many windows in a row, and beyond how many
# standard errors of the difference in the last of them, because noise passes.
SLOWER, WINDOWS, STANDARD_ERRORS = 1.25, 3, 6.0
# Chosen: the least calls and seconds of a window. A call lasts a quarter of a second, or a step.
WINDOW_CALLS, WINDOW_SECONDS = 10, 5.0


class SpeedMeter:
    """Measures examples a second, without the first call of a process in each phase, which compiles."""

    def __init__(self, batch_size: int) -> None:
        self._batch = batch_size
        self.cold = True
        self.last_step_seconds = 0.0
        self._steps = 0
        self._seconds = 0.0
        self._cold_seconds = 0.0
        self._epoch_start = time.perf_counter()
        self._phases: set[int] = set()

    @property
    def warm(self) -> bool:
        """True if a call of this epoch did not compile."""
        return self._steps > 0

    @property
    def rate(self) -> float:
        """Examples a second in this epoch; from the compiling call if there is no other."""
        steps, seconds = (self._steps, self._seconds) if self._steps else (1, self._cold_seconds)
        return steps * self._batch / max(seconds, 1e-9)

    @property
    def step_seconds_so_far(self) -> float:
        """Mean seconds a step in this epoch, or of the last call at its start."""
        return self._seconds / self._steps if self._steps else self.last_step_seconds

    def begin(self, phase: int) -> None:
        """Note that the next call is in `phase`."""
        self.cold = phase not in self._phases
        self._phases.add(phase)

    def add(self, steps: int, seconds: float) -> None:
        """Add a call of `steps` that took `seconds`."""
        if self.cold:
            self.cold, self._cold_seconds = False, seconds / steps
            return
        self.last_step_seconds = seconds / steps
        self._steps += steps
        self._seconds += seconds

    def end_epoch(self) -> tuple[float, float]:
        """Return the epoch's examples a second and its wall seconds, and start the next epoch."""
        now = time.perf_counter()
        result = self.rate, now - self._epoch_start
        self._steps, self._seconds, self._epoch_start = 0, 0.0, now
        return result


def bottleneck(real: Sequence[float], cached: Sequence[float]) -> Literal["input", "compute", "unclear"]:
    """Return the bottleneck of the steps, from the seconds a step of each epoch and of each cached call.

    unclear: steps on real batches are slower, but the two ranges overlap, as they do on a busy machine.
    """
    if statistics.fmean(real) <= INPUT_BOUND * statistics.median(cached):
        return "compute"
    return "input" if min(real) > max(cached) else "unclear"


def split(real: float, cached: float, all_reduce: float) -> dict[str, float]:
    """Return the parts of a step of `real` seconds; a step on a cached batch takes `cached` seconds."""
    computed = min(real, cached)
    summed = min(all_reduce, computed)
    return {"compute": computed - summed, "all_reduce": summed, "input": real - computed}


# Chosen: how often `progress` and `pace` are emitted.
PROGRESS_SECONDS, PACE_SECONDS = 0.25, 10.0
# Chosen: the calls that are probed: 10 s after the start, and every five minutes.
PROBE_AT_CALL, PROBE_EVERY_CALLS = 40, 1200


@dataclass
class ProgressReporter:
    """Emits the progress and pace events of a training towards `total` steps.

    prefetched_step_seconds: a step that does not wait for input. all_reduce_seconds: the all-reduce of the gradients
    alone. Both are 0 until measured. seconds: the loop's time by use, which the loop updates. max_workers: the number
    that an elastic gang asks for, 0 for any other.
    """

    steps: Steps
    data: Input
    rank: Rank
    speed: SpeedMeter
    total: int
    seconds: Mapping[str, float]
    stragglers: Stragglers
    max_workers: int = 0
    prefetched_step_seconds: float = 0.0
    all_reduce_seconds: float = 0.0
    _progress_at: float = 0.0
    _pace_at: float = 0.0
    _calls: int = 0

    def is_probe_call(self) -> bool:
        """Count a call and return whether to probe it, in the same call on all workers."""
        self._calls += 1
        return self._calls % PROBE_EVERY_CALLS == PROBE_AT_CALL

    def report(self, done: int, at_once: bool = False) -> None:
        """Emit the number of finished steps, unless it was emitted just before.

        Other workers than the chief emit each: if the chief is lost, they alone know how far the gang was.
        """
        now, is_due = time.monotonic(), done == self.total or at_once or not self.rank.chief
        if is_due or now - self._progress_at >= PROGRESS_SECONDS:
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
        """Emit the use of time for `trainyard explain`: ms a step, and seconds since the process started."""
        step_seconds, straggler = self.speed.step_seconds_so_far, self.stragglers.slowest
        events.emit(
            "pace",
            step=done,
            steps=self.total,
            examples_per_second=round(self.data.batch_size / max(step_seconds, 1e-9)),
            step_ms=round(1000 * step_seconds, 3),
            prefetched_step_ms=round(1000 * self.prefetched_step_seconds, 3),
            all_reduce_ms=round(1000 * self.all_reduce_seconds, 3),
            workers=self.rank.workers,
            max_workers=max(self.rank.workers, self.max_workers),
            input_workers=self.data.input_workers,
            **{
                f"{name}_seconds": round(self.seconds.get(name, 0.0), 1)
                for name in ("step", "compile", "input", "eval", "save")
            },
            **({"straggler": straggler.model_dump()} if straggler else {}),
        )


class Stragglers:
    """The stragglers of a training. The chief notes them in `past`.

    values: what this worker adds to the control values of the next call, whose means over the gang are each worker's
    own seconds a step: 0 for another worker, or if unknown.
    """

    def __init__(self, rank: Rank, past: GangHistory, measured: bool) -> None:
        self._rank, self._past = rank, past
        self.values = [0.0] * (rank.workers if measured and rank.workers > 1 else 0)
        self._calls: list[Sequence[float]] = []
        self._seconds = 0.0
        self._excesses: list[list[np.ndarray]] = [[] for _ in self.values]  # of its last slow windows
        self._found: dict[int, Straggler] = {}

    @property
    def slowest(self) -> Straggler | None:
        """The slowest of the present stragglers."""
        return max(self._found.values(), key=lambda found: found.own_ms, default=None)

    def note_own(self, step_seconds: float) -> None:
        """Note this worker's own seconds a step in the last call, 0 if unknown."""
        if self.values:
            self.values[self._rank.index] = step_seconds * self._rank.workers

    def note_call(self, own_seconds: Sequence[float], seconds: float, step: int) -> None:
        """Note every worker's own seconds a step, and the duration of the call, which ended with `step`."""
        if not (self._rank.chief and own_seconds and all(own_seconds)):
            return
        self._calls.append(own_seconds)
        self._seconds += seconds
        if len(self._calls) < WINDOW_CALLS or self._seconds < WINDOW_SECONDS:
            return
        calls = np.array(self._calls)
        self._calls, self._seconds = [], 0.0
        means = calls.mean(axis=0)
        for rank, own in enumerate(means.tolist()):
            if own <= SLOWER * means.min():
                self._note_fast(rank, step)
                continue
            usual = np.median(np.delete(calls, rank, axis=1), axis=1)
            if own <= SLOWER * usual.mean():
                self._note_fast(rank, step)
            else:
                self._note_slow(rank, calls[:, rank] - usual, own, float(usual.mean()), step)

    def _note_fast(self, rank: int, step: int) -> None:
        """Note a window in which a worker was as fast as the others."""
        self._excesses[rank] = []
        if found := self._found.pop(rank, None):
            self._past.note_straggler(found.model_copy(update={"until": step}))

    def _note_slow(self, rank: int, excess: np.ndarray, own: float, usual: float, step: int) -> None:
        """Note a window in which a worker took `own` seconds a step, and the others `usual`."""
        self._excesses[rank] = [*self._excesses[rank], excess][-4 * WINDOWS :]
        excesses = np.concatenate(self._excesses[rank])
        sure = excesses.mean() > STANDARD_ERRORS * excesses.std() / len(excesses) ** 0.5
        if sure and len(self._excesses[rank]) >= WINDOWS and rank not in self._found:
            worker, node = self._past.team[rank] if self._past.team else (rank, "")
            own_ms, others_ms = round(1000 * own, 3), round(1000 * usual, 3)
            self._found[rank] = Straggler(worker=worker, node=node, step=step, own_ms=own_ms, others_ms=others_ms)
            self._past.note_straggler(self._found[rank])
