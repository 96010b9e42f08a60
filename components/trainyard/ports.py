"""Ports for servers that are told theirs."""

from __future__ import annotations

import secrets
import socket


def is_free(port: int) -> bool:
    """Return True if `port` is free on all addresses of this machine."""
    both = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        ).close()
    except OSError:
        return False
    return True


def free_ports(number: int, following: int = 0) -> list[int]:
    """Return `number` free ports, each with as many free ones behind it, until somebody else takes them.

    They are below those that systems give outgoing connections: 32,768 on Linux.
    """
    ports: list[int] = []
    while len(ports) < number:
        port = 20_000 + 10 * secrets.randbelow(1_000)
        if port not in ports and all(is_free(port + more) for more in range(following + 1)):
            ports.append(port)
    return ports
