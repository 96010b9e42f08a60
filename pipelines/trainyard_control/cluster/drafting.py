"""Drafts an environment from the nodes of a cluster: one pool per group of equal nodes, to be completed by hand.

Labels are those of GKE, EKS, Karpenter, AKS and the GPU operator; hardware.yaml names their sources.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from trainyard import quantity
from trainyard.errors import ConfigurationError
from trainyard.kubernetes.client import Manifest
from trainyard.spec import plain_yaml
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.catalog import Platform, catalog, hosts, named
from trainyard.spec.hardware.pools import Pool, placement

PRODUCT = "nvidia.com/gpu.product"
TYPE = "node.kubernetes.io/instance-type"
# Labels with the name of a node's pool; the first one that a node has decides.
GROUPS: dict[str, Platform] = {
    "cloud.google.com/gke-nodepool": "gke",
    "karpenter.sh/nodepool": "karpenter",
    "eks.amazonaws.com/nodegroup": "eks",
    "kubernetes.azure.com/agentpool": "aks",
    "agentpool": "aks",
}
# Taints of starting nodes, and of nodes that the platform reserves.
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeletedByClusterAutoscaler")
_KEPT = ("node-role.kubernetes.io/", "CriticalAddonsOnly", "components.gke.io/")
# Chosen: share of the allocatable resources that a pod requests, because the daemons on every node need some.
SHARE = 0.9
_GIB = 1 << 30


@dataclass(frozen=True)
class Group:
    """A group of equal nodes: name, selecting label, first node, and number of nodes."""

    name: str
    selector: dict[str, str]
    node: Manifest
    nodes: int


def draft(nodes: list[Manifest]) -> str:
    """Draft an environment in YAML that reaches every group of `nodes`, with comments for what is left out.

    Raises `ConfigurationError` if no node can train.
    """
    platform = _platform(nodes)
    pools: dict[str, Pool] = {}
    blocks, skipped = [], []
    for group in _groups(nodes):
        try:
            fields = _fields(group, platform)
            pool = Pool.model_validate(fields)
        except (ConfigurationError, ValidationError) as error:
            why = (
                error.errors()[0]["msg"].removeprefix("Value error, ")
                if isinstance(error, ValidationError)
                else str(error)
            )
            note = f"{group.name} ({group.nodes} nodes) is left out: {' '.join(why.split())}"
            skipped.append(plain_yaml.comment(note))
            continue
        if machines.faults(pool, platform):  # the catalog disagrees on this type: trust the nodes
            del fields["machine"]
            pool = pool.model_copy(update={"machine": None})
        pools[group.name] = pool
        blocks.append(_block(group, fields))
    if not pools:
        raise ConfigurationError("no node of this cluster can be used.", *skipped)
    variants = sorted({pool.variant for pool in pools.values()})
    head = [
        "# Drafted by `trainyard pools --from-cluster`. Complete storage and images; "
        "lower requests where pods should be smaller.",
        "target: kubeflow",
        f"platform: {platform}",
        "storage: gs://change-me/trainyard   # or s3://bucket/folder",
        "images:",
        *(f"  {variant}: registry.example.com/trainyard/{variant}:0.1.0   # change me" for variant in variants),
        "pools:",
    ]
    return "\n".join([*head, *blocks, *skipped, plain_yaml.dump({"placement": _placement(pools)})])


def _platform(nodes: list[Manifest]) -> Platform:
    labels = {label for node in nodes for label in _labels(node)}
    return next((platform for label, platform in GROUPS.items() if label in labels), "kubernetes")


def _groups(nodes: list[Manifest]) -> Iterator[Group]:
    """Yield the groups of nodes that pods may use, ordered by name."""
    by_label: dict[tuple[str, str, str], list[Manifest]] = {}
    for node in nodes:
        if any(taint["key"].startswith(_KEPT) for taint in _taints(node)):
            continue
        labels = _labels(node)
        label = next((label for label in GROUPS if label in labels), "")
        memory = quantity.in_bytes(node["status"]["allocatable"]["memory"]) / _GIB
        alike = f"{labels.get(PRODUCT, '')} {labels.get(TYPE, '')} {_count(node)} {memory:.0f}"
        by_label.setdefault((label, labels.get(label, ""), alike), []).append(node)
    names: set[str] = set()
    for (label, value, _), members in sorted(by_label.items()):
        first = members[0]
        product = _labels(first).get(PRODUCT, "")
        title = value or product or ("gpu" if _count(first) else "cpu")
        name = base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "pool"
        while name in names:
            name = f"{base}-{sum(other.startswith(base) for other in names) + 1}"
        names.add(name)
        yield Group(name, {label: value} if label else {}, first, len(members))


def _fields(group: Group, platform: Platform) -> dict[str, Any]:
    """Return the fields of a group's pool."""
    labels, allocatable = _labels(group.node), group.node["status"]["allocatable"]
    fields: dict[str, Any] = {"kind": "cpu"}
    if "google.com/tpu" in allocatable:
        topology = labels.get("cloud.google.com/gke-tpu-topology", "")
        fields = {
            "kind": "tpu",
            "accelerator": labels.get("cloud.google.com/gke-tpu-accelerator"),
            "topology": topology,
        }
        if re.fullmatch(r"\d+(x\d+)+", topology) and (workers := hosts(topology, _count(group.node))) > 1:
            fields["workers"] = workers
    elif "nvidia.com/gpu" in allocatable:
        fields = {"kind": "gpu", "accelerator": _gpu(group.node, platform)}
    if fields["kind"] != "cpu":
        fields["count"] = _count(group.node)
    if machine := labels.get(TYPE):
        fields["machine"] = machine
    spot_labels = [marks.spot.node_selector.items() for marks in catalog().platforms.values()]
    if any(selector and selector <= labels.items() for selector in spot_labels):
        fields["spot"] = True
    fields["nodes"] = group.nodes
    cpu = max(1, math.floor(SHARE * quantity.in_cores(allocatable["cpu"])))
    memory = f"{max(1, math.floor(SHARE * quantity.in_bytes(allocatable['memory']) / _GIB))}Gi"
    fields["resources"] = {"requests": {"cpu": str(cpu), "memory": memory}, "limits": {"memory": memory}}
    if selector := dict(group.selector):
        fields["nodeSelector"] = selector
    elif product := labels.get(PRODUCT):
        fields["nodeSelector"] = {PRODUCT: product}
    if tolerations := _tolerations(group.node, fields, platform):
        fields["tolerations"] = tolerations
    return fields


def _gpu(node: Manifest, platform: Platform) -> str:
    """Return the catalog's name of a node's GPU. Raises `ConfigurationError` if no label names a known GPU."""
    labels = _labels(node)
    if accelerator := labels.get("cloud.google.com/gke-accelerator"):
        return accelerator
    if name := named(labels.get(PRODUCT, "")):
        return name
    known = machines.from_platform(platform)
    machine = known.machines.get(labels.get(TYPE, "")) if known else None
    if machine and machine.accelerator:
        return machine.accelerator
    short = labels.get("karpenter.k8s.aws/instance-gpu-name") or labels.get("eks.amazonaws.com/instance-gpu-name")
    memory = labels.get("karpenter.k8s.aws/instance-gpu-memory") or labels.get("eks.amazonaws.com/instance-gpu-memory")
    fitting = [
        (accelerator.memory_gib or 0, name)
        for name, accelerator in catalog().accelerators.items()
        if short and accelerator.gpu == short
    ]
    if fitting:
        return min(fitting, key=lambda entry: abs(entry[0] - float(memory or 0) / 1024))[1]
    raise ConfigurationError(
        f"its GPU ({labels.get(PRODUCT) or short or labels.get(TYPE, 'unnamed')}) is not in the catalog"
    )


def _tolerations(node: Manifest, fields: dict[str, Any], platform: Platform) -> list[dict[str, str]]:
    """Return tolerations for the node's taints, without those of the platform's profile."""
    brought = {toleration.key for toleration in placement(Pool.model_validate(fields), platform).tolerations}
    return [
        {name: taint[name] for name in ("key", "value", "effect") if taint.get(name)}
        | ({} if taint.get("value") else {"operator": "Exists"})
        for taint in _taints(node)
        if taint["key"] not in brought
        and taint["effect"] != "PreferNoSchedule"
        and not taint["key"].startswith(_PASSING)
    ]


def _placement(pools: dict[str, Pool]) -> dict[str, str]:
    """Return a first placement: everything on a CPU pool, training on the first pool with accelerators."""
    cpus = [name for name, pool in pools.items() if pool.kind == "cpu" and not pool.tolerations]
    accelerated = [name for name, pool in pools.items() if pool.kind != "cpu" and not pool.why_no_training]
    default = next(iter(cpus), next(iter(pools)))
    return {"default": default} | ({"train": accelerated[0]} if accelerated else {})


def _block(group: Group, fields: dict[str, Any]) -> str:
    text = yaml.safe_dump({group.name: fields}, sort_keys=False, default_flow_style=None, width=200)
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines())


def _count(node: Manifest) -> int:
    allocatable = node["status"]["allocatable"]
    return int(allocatable.get("google.com/tpu") or allocatable.get("nvidia.com/gpu") or 0)


def _labels(node: Manifest) -> dict[str, str]:
    return dict(node["metadata"].get("labels") or {})


def _taints(node: Manifest) -> list[dict[str, str]]:
    return list(node["spec"].get("taints") or [])
