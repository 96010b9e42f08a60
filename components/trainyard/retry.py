"""Calls again what fails for a moment: a busy server, a lost connection, a peer that is not up yet."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def retry(
    call: Callable[[], T],
    transient: Callable[[Exception], bool],
    *,
    seconds: float,
    first_pause: float,
    longest_pause: float,
    on_retry: Callable[[Exception, float], None] | None = None,
) -> T:
    """Call `call`, again after `transient` errors until `seconds` have passed, and return its result.

    The pauses double from `first_pause` to `longest_pause` seconds, with jitter of half their length either way.
    on_retry: called before each pause with the error and the seconds that have passed. Raises the last error as it
    came.
    """
    start, pause = time.monotonic(), first_pause
    while True:
        try:
            return call()
        except Exception as error:
            passed, wait = time.monotonic() - start, pause * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
            if not transient(error) or passed + wait > seconds:
                raise
            if on_retry:
                on_retry(error, passed)
        time.sleep(wait)
        pause = min(2 * pause, longest_pause)
