"""Finds stragglers: workers of a gang that the others wait for.

Each worker sends its own time a step, outside the all-reduces, with the control values of a training call, so finding
a straggler costs no message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.contract.artifacts.train import Straggler
from trainyard.steps.train.loop.goodput import Past
from trainyard.steps.train.peers.settings import Rank

# Chosen: how much slower than the others a straggler is, beyond how many standard errors of the difference, and in how
# many windows in a row, because noise passes.
SLOWER, STANDARD_ERRORS, WINDOWS = 1.25, 3.0, 3
# Chosen: the least calls and seconds of a window. A call lasts a quarter of a second, or a step.
WINDOW_CALLS, WINDOW_SECONDS = 10, 5.0


class Stragglers:
    """The stragglers of a training. The chief notes them in `past`.

    values: what this worker adds to the control values of the next call, whose means over the gang are each worker's
    own seconds a step: 0 for another worker, or if unknown.
    """

    def __init__(self, rank: Rank, past: Past, measured: bool) -> None:
        self._rank, self._past = rank, past
        self.values = [0.0] * (rank.workers if measured and rank.workers > 1 else 0)
        self._calls: list[Sequence[float]] = []
        self._seconds = 0.0
        self._windows = [0] * len(self.values)
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
            usual = np.median(np.delete(calls, rank, axis=1), axis=1) if own > SLOWER * means.min() else calls[:, rank]
            excess = calls[:, rank] - usual
            sure = excess.mean() > STANDARD_ERRORS * excess.std() / len(excess) ** 0.5
            self._note_window(rank, own, float(usual.mean()), step, sure=sure)

    def _note_window(self, rank: int, own: float, usual: float, step: int, *, sure: bool) -> None:
        self._windows[rank] = self._windows[rank] + 1 if sure and own > SLOWER * usual else 0
        found = self._found.get(rank)
        if found and not self._windows[rank]:
            self._past.note_straggler(self._found.pop(rank).model_copy(update={"until": step}))
        elif not found and self._windows[rank] >= WINDOWS:
            worker, node = self._past.team[rank] if self._past.team else (rank, "")
            own_ms, others_ms = round(1000 * own, 3), round(1000 * usual, 3)
            self._found[rank] = Straggler(worker=worker, node=node, step=step, own_ms=own_ms, others_ms=others_ms)
            self._past.note_straggler(self._found[rank])
