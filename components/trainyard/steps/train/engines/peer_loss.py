"""Errors of a framework that say that another worker is lost."""

from __future__ import annotations

import re

_LOST = ("UNAVAILABLE", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED")
_PERHAPS_LOST = ("INTERNAL", "UNKNOWN", "FAILED_PRECONDITION")
PEER_STATUSES = (*_LOST, *_PERHAPS_LOST)
"""The statuses of errors that a lost worker causes; a bug causes only the last three."""
# Seen when workers were killed; `PeerLost` is the ring's own error, which TensorFlow passes on.
_CONNECTION = re.compile(
    r"PeerLost|connection|connect failed|socket|stream removed|rst_stream|heartbeat|coordination service|gloo"
    r"|remote process|network error|incarnation",
    re.IGNORECASE,
)


def is_peer_loss(status: str, message: str) -> bool:
    """Return True if an error of this `status` and `message` says that another worker, or its connection, is lost.

    An error that says neither may still be a consequence: see `Rendezvous`, which knows whether a worker is lost.
    """
    said = "\n".join(line for line in message.splitlines() if not line.startswith("  "))  # and no line of a traceback
    return status in _LOST or (status in _PERHAPS_LOST and _CONNECTION.search(said) is not None)
