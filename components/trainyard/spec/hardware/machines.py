"""Machine types: the capacity and price of a pool's node, and what a pod can use of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard import quantity
from trainyard.errors import did_you_mean
from trainyard.spec import documents
from trainyard.spec.documents import Strict
from trainyard.spec.hardware.catalog import Platform, catalog
from trainyard.spec.hardware.pools import SHARED_MEMORY, Pool
from trainyard.spec.plain_yaml import Location

_GIB = 1 << 30


@dataclass(frozen=True)
class Price:
    """USD for an hour of one node. region is empty for the environment's own price, date then too."""

    usd_per_hour: float
    spot: bool
    region: str = ""
    date: str = ""


class Machine(Strict):
    """One machine type. Prices are in USD an hour; region and date default to the platform's."""

    vcpus: int
    memory_gib: float
    accelerator: str | None = None
    count: int = 0
    network_gbit: float | None = None
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    region: str | None = None
    date: str | None = None


class Attachable(Strict):
    """An accelerator that is attached to any machine of a family, in one of `counts`; prices of one, if known."""

    family: str
    counts: list[int]
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None


class Machines(Strict):
    """The machine types of one platform."""

    date: str
    region: str
    attachable: dict[str, Attachable] = {}
    machines: dict[str, Machine]


class _File(Strict):
    platforms: dict[str, Machines]


@cache
def from_platform(platform: Platform) -> Machines | None:
    """Return the machine types of `platform`, None if unknown."""
    known = documents.load(Path(__file__).with_name("machines.yaml"), _File).platforms
    return known.get("eks" if platform == "karpenter" else platform)


def machine_of(pool: Pool, platform: Platform) -> tuple[str, Machine] | None:
    """Return name and type of the pool's machine: the named one, otherwise the smallest that fits.

    None if it is unknown.
    """
    known = from_platform(platform)
    if known is None:
        return None
    if pool.machine:
        machine = known.machines.get(pool.machine)
        return (pool.machine, machine) if machine else None
    fitting = [
        (name, machine)
        for name, machine in known.machines.items()
        if _carries(known, name, machine, pool) and not _room_faults(name, machine, pool, platform)
    ]
    return min(fitting, key=lambda entry: (entry[1].vcpus, entry[1].memory_gib), default=None)


def price(pool: Pool, platform: Platform) -> Price | None:
    """Return the price of a node hour: the environment's, otherwise the catalog's, None if unknown."""
    if pool.price_per_hour is not None:
        return Price(pool.price_per_hour, pool.spot)
    known, named_machine = from_platform(platform), machine_of(pool, platform)
    if known is None or named_machine is None:
        return None
    machine = named_machine[1]
    usd = machine.spot_usd_per_hour if pool.spot else machine.usd_per_hour
    if usd is None:
        return None
    if pool.accelerator and machine.accelerator is None:
        attached = known.attachable[pool.accelerator]
        usd_of_one = attached.spot_usd_per_hour if pool.spot else attached.usd_per_hour
        if usd_of_one is None:
            return None
        usd += pool.count * usd_of_one
    return Price(usd, pool.spot, machine.region or known.region, machine.date or known.date)


def allocatable(machine: Machine, platform: Platform) -> tuple[float, float]:
    """Return the cores and bytes of a node that pods can use; all of it on platforms without a known rule.

    Source: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes (what GKE reserves).
    """
    if platform != "gke":
        return float(machine.vcpus), machine.memory_gib * _GIB
    reserved_cores = _share(machine.vcpus, ((1, 0.06), (1, 0.01), (2, 0.005), (float("inf"), 0.0025)))
    shares = ((4, 0.25), (4, 0.2), (8, 0.1), (112, 0.06), (float("inf"), 0.02))
    reserved = _share(machine.memory_gib, shares) * _GIB + 100 * (1 << 20)
    return machine.vcpus - reserved_cores, machine.memory_gib * _GIB - reserved


def faults(pool: Pool, platform: Platform) -> list[tuple[Location, str]]:
    """Return the location, reason and nearest possible value of each pool value that its machine cannot have."""
    known = from_platform(platform)
    if known is None:
        return []
    if pool.machine is None:
        return _count_faults(known, pool, platform)
    machine = known.machines.get(pool.machine)
    if machine is None:
        if not _complete(known, pool.machine):
            return []
        near = did_you_mean(pool.machine, known.machines)
        return [(("machine",), f"{platform} has no {pool.machine}.{near}")]
    if not _carries(known, pool.machine, machine, pool):
        return [(("machine",), _mismatch(known, pool.machine, machine, pool, platform))]
    return _room_faults(pool.machine, machine, pool, platform)


def _complete(known: Machines, name: str) -> bool:
    """Return True if the catalog lists every size of the family of `name`: true for machines with accelerators."""
    family = name.rpartition("-")[0]
    return any(m.accelerator for other, m in known.machines.items() if family and other.startswith(f"{family}-"))


def _carries(known: Machines, name: str, machine: Machine, pool: Pool) -> bool:
    """Return True if nodes of this type have the pool's accelerators."""
    if pool.kind == "cpu":
        return machine.accelerator is None
    if machine.accelerator:
        return (machine.accelerator, machine.count) == (pool.accelerator, pool.count)
    attachable = known.attachable.get(pool.accelerator or "")
    return bool(attachable and name.startswith(f"{attachable.family}-") and pool.count in attachable.counts)


def _mismatch(known: Machines, name: str, machine: Machine, pool: Pool, platform: Platform) -> str:
    has = f"{machine.count} {machine.accelerator}" if machine.accelerator else "no accelerator"
    pool_has = f"{pool.count} {pool.accelerator}" if pool.accelerator else "none"
    fitting = machine_of(pool.model_copy(update={"machine": None}), platform)
    advice = f"Name {fitting[0]}" if fitting else _nearest_count(known, pool)
    return f"a {name} has {has}, and the pool says {pool_has}. {advice}."


def _count_faults(known: Machines, pool: Pool, platform: Platform) -> list[tuple[Location, str]]:
    """Return the reason why no node has the pool's number of GPUs; only GKE's machines are all known."""
    accelerator = catalog().accelerators.get(pool.accelerator or "")
    if accelerator is None or pool.kind != "gpu":
        return []
    counts = _counts(known, pool) if platform == "gke" else set()
    limit = max(counts, default=accelerator.per_machine)
    if pool.count <= limit:
        return []
    nodes = math.ceil(pool.count / limit) * pool.max_workers
    why = f"no machine of {platform} has {pool.count} {pool.accelerator}, at most {limit}"
    return [(("count",), f"{why}. Give {limit} and workers: {nodes}.")]


def _counts(known: Machines, pool: Pool) -> set[int]:
    counts = {machine.count for machine in known.machines.values() if machine.accelerator == pool.accelerator}
    return counts | set(known.attachable[pool.accelerator].counts if pool.accelerator in known.attachable else [])


def _nearest_count(known: Machines, pool: Pool) -> str:
    counts = _counts(known, pool)
    if not counts:
        return "Leave machine out"
    nearest = min(counts, key=lambda count: (abs(count - pool.count), -count))
    return f"No machine has {pool.count} of them; the nearest number is {nearest}"


def _room_faults(name: str, machine: Machine, pool: Pool, platform: Platform) -> list[tuple[Location, str]]:
    """Return the reasons why no pod with the pool's requests fits a node of this type."""
    cores, memory = allocatable(machine, platform)
    requests = pool.resources.requests
    result: list[tuple[str, str]] = []
    shared = quantity.in_bytes(pool.shared_memory or SHARED_MEMORY) if pool.max_workers > 1 else 0
    if (asked := quantity.in_cores(requests.cpu)) > cores:
        result.append(("cpu", f"{requests.cpu} on a {name}, of whose {machine.vcpus} a pod has {cores:.2f}"))
    if quantity.in_bytes(requests.memory) > memory:
        room = f"of whose {machine.memory_gib:g}Gi a pod has {memory / _GIB:.1f}Gi"
        result.append(("memory", f"{requests.memory} on a {name}, {room}"))
    known = from_platform(platform)
    if not result or known is None:
        return []
    larger = [
        (other.vcpus, other_name)
        for other_name, other in known.machines.items()
        if other_name.rpartition("-")[0] == name.rpartition("-")[0]
        and (other.accelerator, other.count) == (machine.accelerator, machine.count)
        and allocatable(other, platform)[0] >= asked
        and allocatable(other, platform)[1] >= quantity.in_bytes(requests.memory) + shared
    ]
    advice = f"Give less, or name {min(larger)[1]}" if larger else "Give less"
    return [(("resources", "requests", key), f"{why}. {advice}.") for key, why in result]


def _share(amount: float, shares: tuple[tuple[float, float], ...]) -> float:
    """Return the reserved amount: the sum over the tiers of `shares` (size of the tier, share of it)."""
    total = 0.0
    for step, share in shares:
        part = min(amount, step)
        total, amount = total + part * share, amount - part
    return total
