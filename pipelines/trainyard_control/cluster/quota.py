"""Finds pods that Kueue can never admit, as pure functions over the objects of Kueue's API, v1beta1 or v1beta2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import conditions, name_of
from trainyard.quantity import in_bytes
from trainyard_control.cluster.checks import Check, bad, good, unknown
from trainyard_control.cluster.scheduling import amount, matches_labels, requests, untolerated


@dataclass(frozen=True)
class Quotas:
    """All ClusterQueues, Cohorts and ResourceFlavors of a cluster."""

    queues: list[Manifest]
    cohorts: list[Manifest]
    flavors: list[Manifest]


def admission(pool: str, pod: Manifest, count: int, local_queue: Manifest, quotas: Quotas) -> Check:
    """Check that the quota behind `local_queue` can ever hold `count` pods like `pod` of the pool."""
    name, cluster_queue = name_of(local_queue), local_queue["spec"].get("clusterQueue", "")
    label = f"quota of queue {name}"
    queue = next((found for found in quotas.queues if name_of(found) == cluster_queue), None)
    if queue is None:
        return bad(
            label, f"there is no ClusterQueue '{cluster_queue}', which it names. Create it, or correct the queue"
        )
    if (inactive := conditions(queue, "False").get("Active")) is not None:
        why = str(inactive.get("message") or inactive.get("reason")).rstrip(".")
        return bad(label, f"ClusterQueue '{cluster_queue}' admits nothing: {why}. Correct it")
    asked = {resource: value * count for resource, value in requests(pod["spec"]).items()} | {"pods": float(count)}
    groups = queue["spec"].get("resourceGroups", [])
    covered = {resource for group in groups for resource in group["coveredResources"]}
    pods = f"the {count} pods" if count > 1 else "a pod"
    for group in groups:
        parts = {resource: asked[resource] for resource in group["coveredResources"] if asked.get(resource)}
        obstacles = [_obstacle(queue, flavor["name"], parts, pod["spec"], quotas) for flavor in group["flavors"]]
        if parts and all(obstacles):
            wanted = ", ".join(amount(resource, value) for resource, value in parts.items())
            return bad(
                label,
                f"Kueue never admits {pods} of pool '{pool}', which ask for {wanted}: in ClusterQueue "
                f"'{cluster_queue}' {'; '.join(obstacles)}. Ask for less, or raise the quota",
            )
    if missing := [resource for resource in asked if resource not in covered and resource != "pods"]:
        return unknown(
            label,
            f"ClusterQueue '{cluster_queue}' covers no {', '.join(missing)}: Kueue admits {pods} of pool '{pool}' only "
            "if its configuration excludes that resource. Add it to the ClusterQueue",
        )
    return good(label, f"ClusterQueue '{cluster_queue}' can hold {pods} of pool '{pool}'")


def pod_integration(config: Manifest | None) -> Check:
    """Check that Kueue queues the pods of steps. config: the ConfigMap of its manager, None if it cannot be read."""
    label = "Kueue's pod integration"
    text = ((config or {}).get("data") or {}).get("controller_manager_config.yaml")
    if text is None:
        return unknown(label, "its configuration cannot be read; without it a step's pod ignores the pool's queue")
    frameworks = ((yaml.safe_load(text) or {}).get("integrations") or {}).get("frameworks") or []
    if "pod" in frameworks:
        return good(label, "is enabled: the pods of steps wait for their queue")
    return bad(
        label,
        "is not enabled, so the pods of steps ignore their pool's queue. Add pod to integrations.frameworks in the "
        "ConfigMap kueue-manager-config, or place the steps on a pool without a queue",
    )


def _obstacle(queue: Manifest, flavor: str, asked: dict[str, float], spec: Manifest, quotas: Quotas) -> str:
    """Return the reason why the flavor can never hold pods of `spec`, '' if it can."""
    known = next((found for found in quotas.flavors if name_of(found) == flavor), None)
    if known is None:
        return f"flavor '{flavor}' does not exist"
    nodes, tolerations = known.get("spec", {}), known.get("spec", {}).get("tolerations", [])
    if not matches_labels(spec, nodes.get("nodeLabels", {})):
        return f"flavor '{flavor}' is for nodes with other labels"
    tolerant = spec | {"tolerations": [*spec.get("tolerations", []), *tolerations]}
    if untolerated({"spec": {"taints": nodes.get("nodeTaints", [])}}, tolerant):
        return f"flavor '{flavor}' has a taint that they do not tolerate"
    for resource, value in asked.items():
        limit = _Resource(flavor, resource, quotas).available(queue)
        if value > limit:
            return f"flavor '{flavor}' has at most {amount(resource, limit)}, borrowed quota included"
    return ""


@dataclass(frozen=True)
class _Resource:
    """The quota of one resource of one flavor, in the tree of Cohorts and ClusterQueues.

    Source: kueue, pkg/cache/scheduler/resource_node.go (potentialAvailable, accumulateFromChild).
    """

    flavor: str
    resource: str
    quotas: Quotas

    def available(self, node: Manifest, below: tuple[int, ...] = ()) -> float:
        """Return the most that the ClusterQueue or Cohort `node` can use while nothing else runs."""
        parent, total = self._parent(node), self._subtree(node)
        if parent is None or id(parent) in below:  # Kueue stops a circle of Cohorts itself
            return total
        limit = self._kept(node) + self.available(parent, (*below, id(parent)))
        borrowed = self._quota(node).get("borrowingLimit")
        return limit if borrowed is None else min(total + in_bytes(str(borrowed)), limit)

    def _subtree(self, node: Manifest, above: tuple[int, ...] = ()) -> float:
        """Return the quota of `node` and what its children lend it."""
        own = in_bytes(str(self._quota(node).get("nominalQuota", "0")))
        return own + sum(
            self._subtree(child, (*above, id(node))) - self._kept(child)
            for child in self._children(node)
            if id(child) not in above
        )

    def _kept(self, node: Manifest) -> float:
        """Return the quota that `node` lends to nobody."""
        lent = self._quota(node).get("lendingLimit")
        return 0.0 if lent is None else max(0.0, self._subtree(node) - in_bytes(str(lent)))

    def _quota(self, node: Manifest) -> Manifest:
        for group in node.get("spec", {}).get("resourceGroups", []):
            for flavor in group["flavors"]:
                for quota in flavor["resources"] if flavor["name"] == self.flavor else []:
                    if quota["name"] == self.resource:
                        return dict(quota)
        return {}

    def _parent(self, node: Manifest) -> Manifest | None:
        """Return the Cohort above `node`; one that only has a name has no quota itself."""
        if not (name := _parent_name(node)):
            return None
        implied: Manifest = {"kind": "Cohort", "metadata": {"name": name}, "spec": {}}
        return next((cohort for cohort in self.quotas.cohorts if name_of(cohort) == name), implied)

    def _children(self, node: Manifest) -> Iterator[Manifest]:
        if any(node is queue for queue in self.quotas.queues):
            return
        for child in (*self.quotas.queues, *self.quotas.cohorts):
            if _parent_name(child) == name_of(node):
                yield child


def _parent_name(node: Manifest) -> str:
    """Return the name of the Cohort above a ClusterQueue (v1beta1: cohort, v1beta2: cohortName) or a Cohort."""
    spec = node.get("spec", {})
    return str(spec.get("cohortName") or spec.get("cohort") or spec.get("parentName") or "")
