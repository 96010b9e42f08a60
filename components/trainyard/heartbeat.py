"""Heartbeats: small things that are done again and again, so that others do not take this process for dead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from trainyard import events


class Heartbeat(threading.Thread):
    """Calls `beat` every `seconds` until it is stopped. An error of a beat becomes a warning, and the next one comes
    all the same: a fault that nobody thought of must not end the work that the heartbeat stands for.

    warning: how the warning begins.
    """

    def __init__(self, warning: str, seconds: float, beat: Callable[[], None]) -> None:
        super().__init__(name=warning, daemon=True)
        self._warning, self._seconds, self._beat = warning, seconds, beat
        self._stopped = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        while not self._stopped.wait(self._seconds):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - see the class
                with suppress(Exception):
                    events.warn(f"{self._warning}: {str(error) or type(error).__name__}")

    def stop(self) -> None:
        """Let no further beat begin."""
        self._stopped.set()
