"""Logs the progress and memory of preprocessing every few seconds: a process that is killed leaves no other trace."""

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


def count(unit: Unit, more: int = 1) -> None:
    """Count so many `more` of `unit` done. It shows only if Beam's runner works in the step's own process."""
    with _lock:
        _counted[unit] += more


@contextmanager
def reported(pipeline: int, total: int, unit: Unit) -> Iterator[None]:
    """Log every few seconds while the block runs, and at its end, how many of `total` units are done.

    The block is the first or the second `pipeline` of the step. If nothing was counted, because workers elsewhere do
    the work, the number of finished pipelines is logged instead.
    """
    with _lock:
        _counted.clear()
    over = threading.Event()

    def report() -> None:
        while not over.wait(SECONDS):
            _report(pipeline - 1, total, unit)

    reporter = threading.Thread(target=report, daemon=True, name="progress")
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()
    _report(pipeline, total, unit)


def _report(pipelines: int, total: int, unit: Unit) -> None:
    with _lock:
        counts = dict(_counted)
    # A bundle that Beam does again is counted again.
    done = min(counts.pop(unit, 0), total)
    if done:
        events.progress(done, total, unit, **counts)
    else:
        events.progress(pipelines, _PIPELINES, "pipelines", **counts)
