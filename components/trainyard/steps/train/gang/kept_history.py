"""The gang's history beside its checkpoints, where it survives the loss of worker 0's node."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from trainyard import events
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.storage import storage

LOST = "worker 0 was lost, and started again"
"""The reason of the break that the history ends with when it is read."""


@dataclass(frozen=True)
class KeptHistory:
    """The history at `uri`, '' for nowhere, of the gang with `token`. It is evidence alone: its faults are warnings."""

    uri: str
    token: str
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))  # so that the last is the newest

    def read(self) -> GangHistory:
        """Return the history with the loss of worker 0 as its last break, or a new one.

        The time in between compares the clocks of two machines; no decision depends on it.
        """
        with events.warned(f"{self.uri}: the restarts before this pod are not known"):
            kept = storage.read_json(self.uri) if self.uri else None
            if not kept or kept["token"] != self.token:
                return GangHistory()
            past = GangHistory.model_validate(kept["past"])
            away = max(0.0, time.time() - kept["time"])
            past.started = time.monotonic() - kept["elapsed"] - away
            if past.began_at is not None:
                past.last_break = (LOST, kept["step"], time.monotonic())
            return past
        return GangHistory()

    def write(self, past: GangHistory, step: int) -> None:
        """Write the history and the gang's step in a thread, because the workers wait for answers."""
        if self.uri:
            now = {"elapsed": time.monotonic() - past.started, "time": time.time()}
            kept = {"token": self.token, "past": past.model_dump(), "step": step, **now}
            self._writer.submit(self._write, json.dumps(kept))

    def _write(self, text: str) -> None:
        with events.warned(f"{self.uri}: the gang's restarts were not noted"):
            storage.write_text(self.uri, text)
