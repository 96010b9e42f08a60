"""Signs of life: small things that are done again and again, so that others do not take this process for dead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from trainyard import events


class Pulse(threading.Thread):
    """Calls `beat` every `seconds` until it is stopped. Whatever a beat raises is told, and the next one comes all the same:
    a fault that nobody thought of must not end the work that the sign stands for.
    """

    def __init__(self, what: str, seconds: float, beat: Callable[[], None]) -> None:
        super().__init__(name=what, daemon=True)
        self._what, self._seconds, self._beat = what, seconds, beat
        self._ended = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        while not self._ended.wait(self._seconds):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - see the class
                with suppress(Exception):
                    events.emit("warning", message=f"{self._what}: {str(error) or type(error).__name__}")

    def stop(self) -> None:
        """Let no further beat begin."""
        self._ended.set()
