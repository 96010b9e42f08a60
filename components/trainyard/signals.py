"""What SIGTERM means to a process of Trainyard, apart from everything else, so that it is heard from the first moment on."""

from __future__ import annotations

import math
import time
from types import FrameType

from trainyard.errors import Preempted

_AGAIN_SECONDS = 1.0  # chosen: `timeout` sends SIGTERM twice, at once; a person who sends it again means it
_told: list[float] = [-math.inf]


def told_to_stop(_signal: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM: raises `Preempted` where the process is at work, once for a signal that comes twice at once."""
    before, _told[0] = _told[0], time.monotonic()
    if _told[0] - before > _AGAIN_SECONDS:
        raise Preempted("told to stop (SIGTERM). Run the same command again to go on.")
