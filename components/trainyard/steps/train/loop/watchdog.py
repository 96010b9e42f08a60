"""Ends a stalled training process, so that its supervisor or caller can start it again.

The watchdog limits each call that trains or evaluates. The first call of a kind compiles, and a start, a checkpoint or
an export depends on machine and storage, so these get an hour.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainyard.errors import PeerLost, TransientError
from trainyard.runtime.step import end_with
from trainyard.steps.train.peers.settings import Rank

_CHECKS_PER_LIMIT = 10  # chosen: how often the clock is read within the allowed time
_CALL_SECONDS = 300.0  # chosen: calls are cut to a quarter of a second, or to one step
_OTHER_SECONDS = 3600.0  # chosen: the largest network here compiles in a minute


def call_seconds() -> float:
    """Return the limit for all but the first call of a kind: TRAINYARD_STALL_SECONDS."""
    return float(os.environ.get("TRAINYARD_STALL_SECONDS", _CALL_SECONDS))


def training_watchdog(rank: Rank) -> Watchdog:
    """Return the watchdog of this process's training, which ends the process on a stall."""
    seconds = call_seconds()
    other_seconds = max(seconds, float(os.environ.get("TRAINYARD_COMPILE_SECONDS", _OTHER_SECONDS)))

    def stalled(allowed: float) -> None:
        who = f"worker {rank.index} made" if rank.workers > 1 else "train:"
        text = f"{who} no progress for {allowed:g} s; every thread's stack is in the log. Run the same command again."
        # The main thread hangs in a call that nothing interrupts.
        end_with(PeerLost(text) if rank.workers > 1 else TransientError(text))

    return Watchdog(seconds, other_seconds, stalled)


class Watchdog:
    """Watches the calls of a training from its own thread, inside `watching`.

    seconds: limit of a `call`, except the first of its kind, which has `other_seconds` like everything else.
    """

    def __init__(self, seconds: float, other_seconds: float, on_stall: Callable[[float], None]) -> None:
        self._seconds, self._other_seconds = seconds, other_seconds
        self._on_stall = on_stall
        self._compiled: set[str] = set()
        self._now = (time.monotonic(), other_seconds)

    def note_progress(self) -> None:
        """Restart the current time limit."""
        self._now = (time.monotonic(), self._now[1])

    @contextmanager
    def call(self, kind: str) -> Iterator[None]:
        """Watch one call of this `kind`."""
        self._now = (time.monotonic(), self._seconds if kind in self._compiled else self._other_seconds)
        try:
            yield
        finally:
            self._compiled.add(kind)
            self._now = (time.monotonic(), self._other_seconds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write all thread stacks and call `on_stall` if the block exceeds a time limit."""
        done = threading.Event()
        self.note_progress()
        threading.Thread(target=self._watch, args=(done,), daemon=True, name="watchdog").start()
        try:
            yield
        finally:
            done.set()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(self._seconds / _CHECKS_PER_LIMIT):
            since, allowed = self._now
            if time.monotonic() - since > allowed:
                faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
                self._on_stall(allowed)
                return
