"""Ends a training process that stands still, so that whoever started it can start it again."""

from __future__ import annotations

import faulthandler
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOKS = 10  # chosen: how often the clock is looked at within the allowed time


class Watchdog:
    """Looks on from a thread of its own while `watching`; `alive` says that there was progress."""

    def __init__(self, seconds: float, on_stall: Callable[[float], None]) -> None:
        self.seconds = seconds
        self.on_stall = on_stall
        self._alive = time.monotonic()

    def alive(self) -> None:
        """Take note of progress."""
        self._alive = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write every thread's stack and call `on_stall` where the block makes no progress for `seconds`."""
        done = threading.Event()
        self.alive()
        if math.isfinite(self.seconds):
            threading.Thread(target=self._watch, args=(done,), daemon=True, name="watchdog").start()
        try:
            yield
        finally:
            done.set()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(self.seconds / _LOOKS):
            if time.monotonic() - self._alive > self.seconds:
                faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
                self.on_stall(self.seconds)
                return
