"""Messages between the processes of a gang: JSON objects, one a line, over one TCP connection."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

HEARTBEAT_SECONDS = 1.0
"""Chosen: interval of `beat` messages."""
SILENCE_SECONDS = 10.0
"""Chosen: a side that is silent for this long counts as lost."""
_MAX_LINE = 1 << 20
_STALL_SECONDS = 1.0  # chosen: a longer turn of this side's loop is a stall of this side

Message = dict[str, Any]


class MessageStream:
    """One side of a connection, which sends and receives whole messages."""

    def __init__(self, connection: socket.socket) -> None:
        # A duplicate descriptor, because sending may block and receiving must not.
        self._out = connection.dup()
        self._out.settimeout(2)
        connection.setblocking(False)
        self.socket = connection
        self._sending = threading.Lock()
        self.last_received = time.monotonic()
        self._partial = b""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.socket.fileno()

    def send(self, kind: str, **fields: Any) -> bool:
        """Send a message; return False if the other side is gone or no longer reads."""
        try:
            with self._sending:
                self._out.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Return the messages since the last call, None if the other side closed or sent anything else."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data or len(self._partial) > _MAX_LINE:
            return None
        self.last_received = time.monotonic()
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) and "type" in message for message in messages) else None

    def is_silent(self) -> bool:
        """Return True if the other side has been silent for too long."""
        return time.monotonic() - self.last_received > SILENCE_SECONDS

    def excuse(self, seconds: float) -> None:
        """Subtract `seconds` in which this side did not read (a paused machine, a stalled process) from the silence."""
        self.last_received += seconds

    def close(self) -> None:
        """Close the connection."""
        self._out.close()
        self.socket.close()


class StallGuard:
    """Detects stalls of this side, so that silence counts only while this side reads."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def excuse(self, streams: list[MessageStream]) -> None:
        """Subtract a stall since the last call from the silence of `streams`; call it once a turn."""
        now = time.monotonic()
        if now - self._last > _STALL_SECONDS:
            for stream in streams:
                stream.excuse(now - self._last)
        self._last = now
