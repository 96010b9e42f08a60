"""Ports for servers that are told theirs."""

from __future__ import annotations

import secrets
import socket


def listen(port: int, backlog: int | None = None) -> socket.socket:
    """Return a server on `port` of all addresses of this machine, IPv4 and IPv6."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=backlog, dualstack_ipv6=both)


def is_free(port: int) -> bool:
    """Return True if `port` is free on all addresses of this machine."""
    try:
        listen(port).close()
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
