"""How far preprocessing is and what memory it took, every few seconds: a process that is killed leaves no other word."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from trainyard import events

Unit = Literal["files", "records", "examples"]

SECONDS = 2.0  # chosen: memory may fill within seconds, and a day's log of it stays below 10 MB
_PIPELINES = 2

_lock = threading.Lock()
_counted: Counter[Unit] = Counter()


def count(unit: Unit) -> None:
    """Take note of one more `unit` that is done: in the step's own process where its runner works there, else in vain."""
    with _lock:
        _counted[unit] += 1


@contextmanager
def told(pipeline: int, total: int, unit: Unit) -> Iterator[None]:
    """Write a line every few seconds while the block goes on, and one at its end: how many of `total` units are done.

    The block is the first or the second `pipeline` of the step; while nothing was counted, as where workers elsewhere
    do it, the line tells how many of these are done.
    """
    with _lock:
        _counted.clear()
    over = threading.Event()

    def tell() -> None:
        while not over.wait(SECONDS):
            _tell(pipeline - 1, total, unit)

    teller = threading.Thread(target=tell, daemon=True, name="progress")
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
    _tell(pipeline, total, unit)


def _tell(pipelines: int, total: int, unit: Unit) -> None:
    with _lock:
        counts = dict(_counted)
    # A bundle that Beam does again is counted again.
    done = min(counts.pop(unit, 0), total)
    if done:
        events.progress(done, total, unit, **counts)
    else:
        events.progress(pipelines, _PIPELINES, "pipelines", **counts)
