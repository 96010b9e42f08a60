"""Which hosts gRPC reaches without the environment's proxy, which is for the outside."""

from __future__ import annotations

import os
from collections.abc import Iterable

# For gRPC alone, which then reads no `no_proxy`. Source: grpc, doc/environment_variables.md.
_VARIABLE, _OTHERWISE = "no_grpc_proxy", "no_proxy"


def bypass(addresses: Iterable[str] = ()) -> None:
    """Have gRPC ask no proxy for this machine and the hosts of `addresses`, each host:port.

    Call it before a channel is made. What a user set for other hosts stays, and other libraries see no change.
    """
    known = os.environ.get(_VARIABLE) or os.environ.get(_OTHERWISE) or ""
    hosts = [*known.split(","), "localhost", "127.0.0.1", *(address.rpartition(":")[0] for address in addresses)]
    os.environ[_VARIABLE] = ",".join(dict.fromkeys(filter(None, hosts)))
