"""Which nodes of a cluster could take the pods of a pool, and which have room now."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.pod_spec import pod_spec
from trainyard.spec.hardware.catalog import Platform
from trainyard.spec.hardware.pools import Pool
from trainyard_control.cluster import scheduling


@dataclass(frozen=True)
class Nodes:
    """How many nodes a pool's selector and tolerations reach, how many of them are ready, and have room for one pod."""

    matching: int
    ready: int
    room: int


def count(pool: Pool, platform: Platform, nodes: list[Manifest], pods: list[Manifest]) -> Nodes:
    """Return how many of the cluster's `nodes` serve the pool, beside all `pods` that are there."""
    spec = pod_spec(pool, platform)
    matching = [node for node in nodes if scheduling.takes(node, spec)]
    ready = [node for node in matching if scheduling.is_open(node)]
    room = sum(scheduling.capacity(spec, node, pods) > 0 for node in ready)
    return Nodes(len(matching), len(ready), room)
