"""A pool of an environment held against the nodes of a cluster: which could take its pods, and which have room now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.spec.hardware import Platform
from trainyard.spec.pools import Pool, placement
from trainyard_control.cluster import scheduling

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Nodes:
    """How many nodes a pool's selector and tolerations reach, how many of them are ready, and have room for one pod."""

    matching: int
    ready: int
    room: int


def count(pool: Pool, platform: Platform, nodes: list[Manifest], pods: list[Manifest]) -> Nodes:
    """Return how many of the cluster's `nodes` serve the pool, beside all `pods` that are there."""
    spec = _pod(pool, platform)
    matching = [node for node in nodes if scheduling.takes(node, spec)]
    ready = [node for node in matching if scheduling.is_open(node)]
    room = sum(scheduling.places(spec, node, pods) > 0 for node in ready)
    return Nodes(len(matching), len(ready), room)


def _pod(pool: Pool, platform: Platform) -> Manifest:
    """Return the spec of one pod as the pool asks for it."""
    needs = placement(pool, platform)
    requests: dict[str, str] = {"cpu": pool.resources.requests.cpu, "memory": pool.resources.requests.memory}
    if needs.resource:
        requests[needs.resource] = str(needs.count)
    return {
        "nodeSelector": needs.node_selector,
        "tolerations": [each.model_dump(exclude_none=True) for each in needs.tolerations],
        "containers": [{"resources": {"requests": requests}}],
    }
