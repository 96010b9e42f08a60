"""How fast a training goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Literal

# Chosen: real batches slower than a cached one by more than this say that the input is the bottleneck.
INPUT_BOUND = 1.2


class SpeedMeter:
    """Examples a second, without a process's first call in each phase, which compiles."""

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
        """Whether a call of this epoch did not compile."""
        return self._steps > 0

    @property
    def rate(self) -> float:
        """Examples a second in this epoch, by the call that compiled if it had no other."""
        steps, seconds = (self._steps, self._seconds) if self._steps else (1, self._cold_seconds)
        return steps * self._batch / max(seconds, 1e-9)

    @property
    def step_seconds_so_far(self) -> float:
        """Mean seconds a step in this epoch, or of the last call if it has just begun."""
        return self._seconds / self._steps if self._steps else self.last_step_seconds

    def begin(self, phase: int) -> None:
        """Note that the next call is in `phase`."""
        self.cold = phase not in self._phases
        self._phases.add(phase)

    def add(self, steps: int, seconds: float) -> None:
        """Count a call of `steps` that took `seconds`."""
        if self.cold:
            self.cold, self._cold_seconds = False, seconds / steps
            return
        self.last_step_seconds = seconds / steps
        self._steps += steps
        self._seconds += seconds

    def end_epoch(self) -> tuple[float, float]:
        """Return the epoch's examples a second and its wall seconds, and begin another."""
        now = time.perf_counter()
        result = self.rate, now - self._epoch_start
        self._steps, self._seconds, self._epoch_start = 0, 0.0, now
        return result


def bottleneck(real: Sequence[float], cached: Sequence[float]) -> Literal["input", "compute", "unclear"]:
    """Return what limits the steps, by the seconds a step of each epoch and of each call on a cached batch.

    unclear: they are slower on real batches, but both differ so much, as on a busy machine, that they overlap.
    """
    if statistics.fmean(real) <= INPUT_BOUND * statistics.median(cached):
        return "compute"
    return "input" if min(real) > max(cached) else "unclear"


def split(real: float, cached: float, all_reduce: float) -> dict[str, float]:
    """Return the parts of a step of `real` seconds, which add up to it: one on a cached batch takes `cached`."""
    computed = min(real, cached)
    summed = min(all_reduce, computed)
    return {"compute": computed - summed, "all_reduce": summed, "input": real - computed}
