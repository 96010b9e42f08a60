"""Logs progress and memory every few seconds, because a killed process leaves no other trace."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from trainyard import events
from trainyard.heartbeat import Heartbeat

Unit = Literal["files", "records", "examples"]

SECONDS = 2.0  # chosen: memory may fill within seconds, and a day's log stays below 10 MB

_lock = threading.Lock()
_counted: Counter[Unit] = Counter()


def count(unit: Unit, more: int = 1) -> None:
    """Add `more` to the count of `unit`. Visible only if Beam's runner works in the step's own process."""
    with _lock:
        _counted[unit] += more


@contextmanager
def reported(total: int, unit: Unit, finished: Callable[[], int]) -> Iterator[None]:
    """Log the progress towards `total` units every few seconds while the block runs, and at its end.

    Progress is the count of this process, or `finished()`, the results that exist, if other workers or an earlier
    attempt did more.
    """
    with _lock:
        _counted.clear()
    reporter = Heartbeat("progress", SECONDS, lambda: _report(total, unit, finished()))
    reporter.start()
    try:
        yield
    finally:
        reporter.stop()
        reporter.join()
    _report(total, unit, finished())


def _report(total: int, unit: Unit, finished: int) -> None:
    with _lock:
        counts = dict(_counted)
    # A bundle that Beam retries is counted again.
    done = min(max(counts.pop(unit, 0), finished), total)
    events.progress(done, total, unit, **counts)
