"""Free ports for servers that are told theirs: below those that systems give outgoing connections (32,768 on Linux)."""

from __future__ import annotations

import itertools
import os
import random
import socket

_BEHIND = 3  # a gang's servers use the ports behind theirs
_own = 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)  # no two pytest workers give the same port
_candidates = itertools.cycle(random.sample(range(10_000 + _own, 11_000 + _own, 10), 100))


def free_port() -> int:
    """Return a port that is free with the three behind it, on every address."""
    for port in _candidates:
        try:
            for each in range(port, port + 1 + _BEHIND):
                socket.create_server(("", each)).close()
        except OSError:
            continue
        return port
    raise AssertionError
