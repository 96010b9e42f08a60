"""Finds the label, taint or resource that keeps a pod from every node.

The scheduler only counts the nodes that failed each of its checks. Pure functions over the objects of the Kubernetes
API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trainyard.errors import did_you_mean, listed
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import conditions, name_of
from trainyard.kubernetes.pod_spec import pod_spec
from trainyard.quantity import in_bytes
from trainyard.spec.hardware.catalog import Platform
from trainyard.spec.hardware.pools import Pool

_SHOWN = 3  # names in a sentence
_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_CORDONED = "node.kubernetes.io/unschedulable"
# Faults of a node by the taint with which Kubernetes marks it, and what to do. No pool should tolerate these taints.
# Source: https://kubernetes.io/docs/reference/labels-annotations-taints/
_FAULTS = {
    "node.kubernetes.io/disk-pressure": (
        "is short of disk space",
        "Free disk on {node} (crictl rmi --prune deletes unused images), or give the nodes larger disks",
    ),
    "node.kubernetes.io/memory-pressure": (
        "is short of memory",
        "End what uses the memory of {node} beyond its requests, or add nodes",
    ),
    "node.kubernetes.io/pid-pressure": (
        "is short of process ids",
        "End what starts so many processes on {node}, or raise the node's limit of process ids",
    ),
    "node.kubernetes.io/network-unavailable": (
        "has no network",
        "Look at the pod of the network plugin on {node} (kubectl -n kube-system get pods -o wide)",
    ),
    _NOT_READY: ("is not ready", "Look why (kubectl describe node {node}), or add nodes"),
    _UNREACHABLE: ("does not answer", "Start {node} again, or delete it (kubectl delete node {node})"),
    _CORDONED: ("is cordoned", "Run kubectl uncordon {node}, or add nodes"),
    "node.kubernetes.io/out-of-service": (
        "is marked as out of service",
        "Once it runs again: kubectl taint nodes {node} node.kubernetes.io/out-of-service-",
    ),
    "node.cloudprovider.kubernetes.io/uninitialized": (
        "is not initialized by its cloud yet",
        "Wait; if it stays so, look at the log of the cloud-controller-manager",
    ),
    "ToBeDeletedByClusterAutoscaler": (
        "is being removed by the autoscaler",
        "Wait until the autoscaler adds another node",
    ),
    "karpenter.sh/disrupted": ("is being removed by Karpenter", "Wait until Karpenter adds another node"),
}


@dataclass(frozen=True)
class Obstacle:
    """The obstacle between a pod and the nodes, and if waiting can help."""

    kind: Literal["label", "nodes", "taint", "size", "full"]
    sentence: str
    remedy: str
    hint: str = ""

    @property
    def advice(self) -> str:
        """The problem and its solution, without a full stop."""
        return f"{self.sentence}.{self.hint} {self.remedy}"

    @property
    def permanent(self) -> bool:
        """True if waiting does not help."""
        return self.kind in ("label", "taint", "size")


def requests(spec: Manifest) -> dict[str, float]:
    """Return the requests that the scheduler reserves: the sum of the containers, or the largest init container."""
    total: dict[str, float] = {}
    for container in spec.get("containers", []):
        for name, value in _requested(container).items():
            total[name] = total.get(name, 0) + value
    for container in spec.get("initContainers", []):
        for name, value in _requested(container).items():
            total[name] = max(total.get(name, 0), value)
    return {name: value for name, value in total.items() if value}


def placement_key(spec: Manifest) -> str:
    """Return the parts of `spec` that `find_obstacle` reads: the same for all pods of a gang, whatever their names."""
    rules = [spec.get(name) for name in ("nodeSelector", "affinity", "tolerations")]
    return json.dumps([requests(spec), *rules], sort_keys=True)


def find_obstacle(spec: Manifest, nodes: list[Manifest], pods: Iterable[Manifest] | None = None) -> Obstacle | None:
    """Find what keeps a pod of `spec` from every node; None if it is none of the known obstacles.

    pods: all pods of the cluster, None if they may not be listed; then a full node looks free.
    """
    if not nodes:
        return Obstacle("nodes", "the cluster has no node", "Add nodes, or wait until the autoscaler has")
    fitting = nodes
    for term in _terms(spec):
        if not any(_matches(_labels(node), term) for node in nodes):
            return _label_obstacle(term, nodes)
        fitting = [node for node in fitting if _matches(_labels(node), term)]
    if not fitting:
        selectors = " and ".join(f"{key}={'|'.join(values)}" for key, _, values in _terms(spec))
        return Obstacle("label", f"no single node has {selectors}", "Correct the pool's nodeSelector, or label a node")
    tolerated = [node for node in fitting if not untolerated(node, spec)]
    if not tolerated:
        return _taint_obstacle(fitting, spec)
    open_nodes = [node for node in tolerated if not _faults(node, spec)]
    if not open_nodes:
        return _fault_obstacle(tolerated, spec)
    return _resource_obstacle(requests(spec), open_nodes, pods)


def free(node: Manifest, pods: Iterable[Manifest]) -> dict[str, float]:
    """Return the allocatable resources that the node's `pods` leave."""
    remaining = {name: in_bytes(str(value)) for name, value in node["status"].get("allocatable", {}).items()}
    for pod in pods:
        if pod["spec"].get("nodeName") != name_of(node) or pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        for name, value in (requests(pod["spec"]) | {"pods": 1}).items():
            remaining[name] = remaining.get(name, 0) - value
    return remaining


def capacity(spec: Manifest, node: Manifest, pods: Iterable[Manifest]) -> int:
    """Return the number of pods of `spec` that fit on the node beside its `pods`."""
    remaining = free(node, pods)
    asked = requests(spec) | {"pods": 1.0}
    return max(0, min(int(remaining.get(name, 0) // value) for name, value in asked.items() if value))


def amount(resource: str, value: float) -> str:
    """Format an amount of a resource: `2.5 cpu`, `15.9 GiB of memory`, `4 google.com/tpu`."""
    if resource in ("memory", "ephemeral-storage"):
        return f"{value / 1024**3:.3g} GiB of {resource}"
    return f"{round(value, 3):,g} {resource}"


Term = tuple[str, str, list[str]]


def _terms(spec: Manifest) -> list[Term]:
    """Return the required node labels as (key, operator, values), without alternatives of an affinity."""
    terms: list[Term] = [(key, "In", [value]) for key, value in (spec.get("nodeSelector") or {}).items()]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", {}
    )
    choices = affinity.get("nodeSelectorTerms", [])
    if len(choices) == 1:
        terms += [_term(expression) for expression in choices[0].get("matchExpressions", [])]
    return terms


def _term(expression: Manifest) -> Term:
    return expression["key"], expression["operator"], expression.get("values") or []


def _labels(node: Manifest) -> dict[str, str]:
    labels: dict[str, str] = node["metadata"].get("labels", {})
    return labels


def _matches(labels: dict[str, str], term: Term) -> bool:
    key, operator, values = term
    value = labels.get(key)
    known = {"In": value in values, "NotIn": value not in values, "Exists": value is not None}
    return known.get(operator, value is None if operator == "DoesNotExist" else True)


def _label_obstacle(term: Term, nodes: list[Manifest]) -> Obstacle:
    key, _, values = term
    selector = f"{key}={'|'.join(values)}" if values else key
    labels = [_labels(node) for node in nodes]
    values_there = sorted({label[key] for label in labels if key in label})
    if values_there:
        near = did_you_mean(values[0], values_there) if values else ""
        sentence = f"no node has the label {selector}; there is {listed(values_there, _SHOWN)}"
    else:
        near = did_you_mean(key, {name for label in labels for name in label})
        sentence = f"no node has a label {key}, and {selector} is asked for"
    remedy = "Correct the pool's accelerator, topology or nodeSelector, or add such nodes"
    return Obstacle("label", sentence, remedy, hint=near)


def _taint_obstacle(nodes: list[Manifest], spec: Manifest) -> Obstacle:
    taints = sorted({_taint(taint) for node in nodes for taint in untolerated(node, spec)})
    node_names = listed([name_of(node) for node in nodes], _SHOWN)
    return Obstacle(
        "taint",
        f"{node_names} would do, but the pod does not tolerate the taint {listed(taints, _SHOWN)}",
        "Add the toleration to the pool in the environment, or take the taint off the nodes",
    )


def _fault_obstacle(nodes: list[Manifest], spec: Manifest) -> Obstacle:
    faults = [(name_of(node), fault) for node in nodes for fault in _faults(node, spec)]
    why = "; ".join(f"{node} {_FAULTS[fault][0]}" for node, fault in faults[:_SHOWN])
    first = {fault: node for node, fault in reversed(faults)}
    remedies = [_FAULTS[fault][1].format(node=node) for fault, node in reversed(first.items())]
    return Obstacle("nodes", f"the nodes it may use take no pods ({why})", ". ".join(remedies))


def _resource_obstacle(
    requested: dict[str, float], nodes: list[Manifest], pods: Iterable[Manifest] | None
) -> Obstacle | None:
    for name, value in requested.items():
        largest = max(in_bytes(node["status"].get("allocatable", {}).get(name, "0")) for node in nodes)
        if value > largest:
            return Obstacle(
                "size",
                f"it asks for {amount(name, value)}, and the largest of the {len(nodes)} nodes that it may use "
                f"has {amount(name, largest)} to give",
                "Ask for less in the pool's resources or count, or add larger nodes",
            )
    if pods is None:
        return None
    everything = list(pods)
    lacking: dict[str, float] = {}
    for node in nodes:
        free_resources = free(node, everything)
        short = [name for name, value in (requested | {"pods": 1}).items() if value > free_resources.get(name, 0)]
        if not short:
            return None
        for name in short:
            lacking[name] = max(lacking.get(name, 0), free_resources.get(name, 0))
    name = next(iter(lacking))
    shortage = f"it needs {amount(name, requested.get(name, 1))}, and at most {amount(name, lacking[name])} is free"
    holders = _holders(name, nodes, everything)
    by = f" (used by {listed(holders, _SHOWN)})" if holders else ""
    return Obstacle(
        "full",
        f"the {len(nodes)} nodes that it may use are full: {shortage}{by}",
        "It starts when something there ends; or add nodes to the pool",
    )


def _holders(resource: str, nodes: list[Manifest], pods: list[Manifest]) -> list[str]:
    names = {name_of(node) for node in nodes}
    using = [
        (requests(pod["spec"]).get(resource, 0), f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        for pod in pods
        if pod["spec"].get("nodeName") in names and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    return [name for amount, name in sorted(using, reverse=True) if amount]


def _faults(node: Manifest, spec: Manifest) -> list[str]:
    """Return the keys in `_FAULTS` of what keeps pods of `spec` from the node, apart from the taints of pools."""
    found = [taint["key"] for taint in _untolerated(node, spec) if taint["key"] in _FAULTS]
    if node["spec"].get("unschedulable"):
        found.append(_CORDONED)
    for status, fault in (("False", _NOT_READY), ("Unknown", _UNREACHABLE)):
        if "Ready" in conditions(node, status):
            found.append(fault)
    return list(dict.fromkeys(found))


def selects(selector: Manifest | None, labels: dict[str, str] | None) -> bool:
    """Return True if a label selector can match `labels` (None: unknown); without a selector nothing matches."""
    if selector is None or labels is None:
        return selector is not None
    terms: list[Term] = [(key, "In", [value]) for key, value in selector.get("matchLabels", {}).items()]
    terms += [_term(expression) for expression in selector.get("matchExpressions", [])]
    return all(_matches(labels, term) for term in terms)


def flavor_obstacle(flavor: Manifest, spec: Manifest) -> str:
    """Return the label or taint of a ResourceFlavor of Kueue that excludes pods of `spec`, '' if none does.

    Source: https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/.
    """
    own = flavor.get("spec") or {}
    node_labels, added = own.get("nodeLabels") or {}, own.get("tolerations") or []
    for term in _terms(spec):
        if term[0] in node_labels and not _matches(node_labels, term):
            return f"is of nodes with {term[0]}={node_labels[term[0]]}"
    node = {"spec": {"taints": own.get("nodeTaints")}}
    taints = _untolerated(node, spec | {"tolerations": [*(spec.get("tolerations") or []), *added]})
    return f"has the taint {_taint(taints[0])}" if taints else ""


def untolerated(node: Manifest, spec: Manifest) -> list[Manifest]:
    """Return the taints of `node` that keep pods of `spec` away, without those that name a fault of the node."""
    return [taint for taint in _untolerated(node, spec) if taint["key"] not in _FAULTS]


def _untolerated(node: Manifest, spec: Manifest) -> list[Manifest]:
    tolerations = spec.get("tolerations") or []
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    return [taint for taint in taints if not any(_tolerates(toleration, taint) for toleration in tolerations)]


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _taint(taint: Manifest) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _requested(container: Manifest) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})  # a limit alone is the request too
    return {name: in_bytes(str(value)) for name, value in asked.items()}


@dataclass(frozen=True)
class Nodes:
    """Counts of nodes: those that a pool's selector and tolerations match, those ready, and those with room."""

    matching: int
    ready: int
    room: int


def count_nodes(pool: Pool, platform: Platform, nodes: list[Manifest], pods: list[Manifest]) -> Nodes:
    """Count the nodes that serve the pool, with room computed beside all `pods`."""
    spec = pod_spec(pool, platform)
    labeled = [node for node in nodes if all(_matches(_labels(node), term) for term in _terms(spec))]
    matching = [node for node in labeled if not untolerated(node, spec)]
    ready = [node for node in matching if not _faults(node, spec)]
    room = sum(capacity(spec, node, pods) > 0 for node in ready)
    return Nodes(len(matching), len(ready), room)
