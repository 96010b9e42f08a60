"""The attempts of a training on a list of pools or an elastic one: where each ran, how long it waited, and its cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, PrivateAttr, TypeAdapter


class Attempt(BaseModel):
    """The training on one pool, as its launcher sees it.

    waited_seconds: without enough running workers. worker_seconds: of all running workers together. usd_per_hour: of
    one worker. preempted: names of pods. why: the reason why the next pool was tried, '' for the last attempt. running,
    waits, seen: what the launcher last saw, and when in Unix time: another launcher continues from there.
    """

    pool: str = ""
    spot: bool = False
    workers: int = 1
    usd_per_hour: float | None = None
    waited_seconds: float = 0.0
    worker_seconds: float = 0.0
    preempted: list[str] = []
    why: str = ""
    running: int = 0
    waits: bool = True
    seen: float | None = None
    _on_change: Callable[[], None] | None = PrivateAttr(default=None)

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called when an observation changes more than the time."""
        self._on_change = call

    def observe(self, running: int, waits: bool, preempted: set[str]) -> None:
        """Count the time since the last observation, and the pods that were `preempted` since then.

        running: number of running workers. waits: True if they are too few to train.
        """
        lost = sorted(preempted.difference(self.preempted))
        changed = bool(lost) or self.seen is None or (running, waits) != (self.running, self.waits)
        now = time.time()
        passed = max(0.0, now - (now if self.seen is None else self.seen))
        self.worker_seconds += passed * self.running
        self.waited_seconds += passed * self.waits
        self.preempted += lost
        self.running, self.waits, self.seen = running, waits, now
        if changed and self._on_change:
            self._on_change()

    @property
    def cost_usd(self) -> float | None:
        """The cost of its workers, None without a price."""
        return None if self.usd_per_hour is None else self.worker_seconds / 3600 * self.usd_per_hour

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `attempts` in a run's record."""
        return {
            **self.model_dump(include={"pool", "spot", "workers", "why"}),
            "waited_seconds": round(self.waited_seconds, 1),
            "worker_seconds": round(self.worker_seconds, 1),
            "preemptions": len(self.preempted),
            "cost_usd": None if self.cost_usd is None else round(self.cost_usd, 4),
        }


ATTEMPTS = TypeAdapter(dict[str, list[Attempt]])
"""Attempts by the name of their gang: a later run that trains the same model begins with the first pool again."""
