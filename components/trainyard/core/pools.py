"""Node pools: what an environment says of one, and what a pod needs to land there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from trainyard.core.documents import Strict
from trainyard.core.errors import did_you_mean
from trainyard.core.hardware import Kind, Platform, Toleration, catalog


@dataclass(frozen=True)
class Placement:
    """What a pod must carry to land on a pool: labels it selects, taints it tolerates, accelerators it asks for."""

    node_selector: dict[str, str]
    tolerations: list[Toleration]
    resource: str | None
    count: int


def placement(pool: Pool, platform: Platform) -> Placement:
    """Return what a pod needs to land on `pool`; what the pool says itself comes last and wins."""
    marks = catalog().platforms[platform]
    layers = [catalog().kinds[pool.kind]]
    if pool.kind != "cpu":
        layers.append(marks.gpu if pool.kind == "gpu" else marks.tpu)
    if pool.spot:
        layers.append(marks.spot)
    names = {"accelerator": pool.accelerator, "topology": pool.topology}
    selector = {key: value.format(**names) for layer in layers for key, value in layer.node_selector.items()}
    return Placement(
        node_selector=selector | pool.node_selector,
        tolerations=[*(each for layer in layers for each in layer.tolerations), *pool.tolerations],
        resource=layers[0].resource,
        count=pool.count,
    )


def _written(value: object) -> object:
    """YAML reads `cpu: 2` as a number; Kubernetes takes it as the quantity "2"."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# The spellings that KFP's set_cpu_request and set_memory_request take.
Cpu = Annotated[str, BeforeValidator(_written), StringConstraints(pattern=r"^([0-9]*[.])?[0-9]+m?$")]
Memory = Annotated[
    str, BeforeValidator(_written), StringConstraints(pattern=r"^[0-9]+(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)?$")
]


class Requests(Strict):
    """What the scheduler sets aside for a pod."""

    cpu: Cpu
    memory: Memory


class Limits(Strict):
    """What a pod may use at most; no cpu limit lets it use what is idle."""

    cpu: Cpu | None = None
    memory: Memory


class Resources(Strict):
    """Kubernetes resources of one pod on the pool."""

    requests: Requests
    limits: Limits

    @model_validator(mode="after")
    def _memory(self) -> Self:
        if self.requests.memory != self.limits.memory:
            raise ValueError(
                f"requests.memory ({self.requests.memory}) and limits.memory ({self.limits.memory}) differ: "
                "a pod above its request is killed first when the node fills up. Give the same"
            )
        return self


class Pool(Strict):
    """Nodes of one sort. count is accelerators a node; a step gets all of them."""

    kind: Kind
    accelerator: str | None = Field(None, description="gpu and tpu: its name at GKE, such as nvidia-l4.")
    count: Annotated[int, Field(ge=0)] = Field(0, description="gpu and tpu: accelerators a node (TPU: chips a host).")
    topology: str | None = Field(None, description="tpu: shape of the slice, such as 2x4.")
    spot: bool = Field(False, description="The nodes may be taken back at any time.")
    resources: Resources
    node_selector: dict[str, str] = Field({}, alias="nodeSelector")
    tolerations: list[Toleration] = []

    @model_validator(mode="after")
    def _hardware(self) -> Self:
        known = {name: entry for name, entry in catalog().accelerators.items() if entry.kind == self.kind}
        if self.kind == "cpu":
            if self.accelerator or self.count or self.topology:
                raise ValueError("a cpu pool has no accelerator, count or topology")
            return self
        if self.accelerator not in known:
            raise ValueError(
                f"accelerator: no {self.kind} '{self.accelerator}'. Known: {', '.join(known)}."
                f"{did_you_mean(self.accelerator or '', known)}"
            )
        if not self.count:
            raise ValueError("count: is required: how many accelerators a node has")
        if self.kind == "tpu":
            _check_slice(self.topology, self.count, known[self.accelerator].topologies)
        elif self.topology:
            raise ValueError("topology: is for tpu pools")
        return self


def _check_slice(topology: str | None, count: int, known: dict[str, list[int]]) -> None:
    """A slice that does not exist stays Pending for ever, so it is refused here."""
    if topology not in known:
        raise ValueError(
            f"topology: no slice '{topology}'. Known: {', '.join(known)}.{did_you_mean(topology or '', known)}"
        )
    if count not in known[topology]:
        raise ValueError(
            f"count: a host of {topology} has {' or '.join(map(str, known[topology]))} chips, {count} was given"
        )
    hosts = math.prod(map(int, topology.split("x"))) // count
    if hosts > 1:
        raise ValueError(
            f"topology: {topology} with {count} chips a host is {hosts} hosts, and a step runs in one pod. "
            "Name a slice of one host"
        )
