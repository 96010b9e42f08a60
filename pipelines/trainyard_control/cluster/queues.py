"""The checks of `doctor` on Kueue's queues (v1beta1, v1beta2), as pure functions of its objects."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import yaml

from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import conditions, name_of
from trainyard.quantity import in_bytes
from trainyard_control.cluster.checks import Check, bad, good, unknown
from trainyard_control.cluster.scheduling import amount, flavor_obstacle, requests, selects


@dataclass(frozen=True)
class Quota:
    """The objects that give a LocalQueue its quota.

    cluster_queue: the one that it names, None if there is none. flavors: its ResourceFlavors by name, as far as they
    may be read. lenders: the other ClusterQueues of its cohort; None if they are unknown, or others may lend too.
    """

    cluster_queue: Manifest | None
    flavors: dict[str, Manifest] = field(default_factory=dict)
    lenders: list[Manifest] | None = None

    def sizes(self, flavor: str, resource: str) -> tuple[float, float]:
        """Return the quota of the ClusterQueue itself, and that with all that it can borrow."""
        spec = (self.cluster_queue or {})["spec"]
        own = _find(spec, flavor, resource)
        nominal, lent = _number(own, "nominalQuota", 0.0), math.inf
        if not cohort_of(spec):
            return nominal, nominal
        if self.lenders is not None:
            lent_by = [_find(lender["spec"], flavor, resource) for lender in self.lenders]
            lent = sum(min(_number(other, "nominalQuota", 0.0), _number(other, "lendingLimit")) for other in lent_by)
        return nominal, nominal + min(lent, _number(own, "borrowingLimit"))


def cohort_of(spec: Manifest) -> str:
    """Return the name of a ClusterQueue's cohort, '' if it has none."""
    return str(spec.get("cohortName") or spec.get("cohort") or "")  # v1beta2, v1beta1


def flavors_of(spec: Manifest) -> list[str]:
    """Return the names of a ClusterQueue's flavors."""
    return [flavor["name"] for group in spec.get("resourceGroups", []) for flavor in group["flavors"]]


def admission(
    pool: str,
    pod: Manifest,
    count: int,
    local_queue: Manifest,
    quota: Quota,
    namespace_labels: dict[str, str] | None = None,
) -> Check:
    """Check that Kueue calls both queues active, and that flavors of the pool's nodes can hold `count` pods like `pod`.

    namespace_labels: the labels of the queue's namespace, None if they are unknown.
    """
    label, named = f"quota of queue {name_of(local_queue)}", local_queue["spec"].get("clusterQueue", "")
    if quota.cluster_queue is None:
        return bad(label, f"there is no ClusterQueue '{named}', which it names. Create it, or correct the queue")
    for kind, queue in (("ClusterQueue", quota.cluster_queue), ("LocalQueue", local_queue)):
        if inactive := conditions(queue, "False").get("Active"):
            why = str(inactive.get("message") or inactive.get("reason")).rstrip(".")
            remedy = "Set its stopPolicy to None" if inactive.get("reason") == "Stopped" else "Correct it"
            return bad(label, f"{kind} '{name_of(queue)}' admits nothing: {why}. {remedy}")
    spec = quota.cluster_queue["spec"]
    if not selects(spec.get("namespaceSelector"), namespace_labels):
        return bad(
            label,
            f"ClusterQueue '{named}' admits nothing from this namespace, which its namespaceSelector does not "
            "select. Change the selector; {} selects all namespaces",
        )
    asked = {resource: value * count for resource, value in requests(pod["spec"]).items()} | {"pods": float(count)}
    pods = f"{f'the {count} pods' if count > 1 else 'a pod'} of pool '{pool}'"
    borrows, missing = False, set(asked) - {"pods"}
    for group in spec.get("resourceGroups", []):
        missing -= {*group["coveredResources"]}
        if wanted := {name: asked[name] for name in group["coveredResources"] if name in asked}:
            found = _flavor(group, wanted, quota, pod["spec"])
            if isinstance(found, str):
                return bad(label, f"Kueue never admits {pods}{found}")
            borrows = borrows or found
    if missing:
        return unknown(
            label,
            f"ClusterQueue '{named}' covers no {', '.join(sorted(missing))}: Kueue admits {pods} only "
            "if its configuration excludes or ignores that resource. Add it to the ClusterQueue",
        )
    if borrows:
        return unknown(label, f"ClusterQueue '{named}' can hold {pods} only with quota that it borrows")
    return good(label, f"ClusterQueue '{named}' can hold {pods}")


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


def _flavor(group: Manifest, wanted: dict[str, float], quota: Quota, pod: Manifest) -> bool | str:
    """Return True if a flavor holds `wanted` with borrowed quota alone, or the end of a sentence if none ever does."""
    named = name_of(quota.cluster_queue or {})
    obstacles = {
        flavor["name"]: flavor_obstacle(quota.flavors.get(flavor["name"], {}), pod) for flavor in group["flavors"]
    }
    fitting = [name for name, obstacle in obstacles.items() if not obstacle]
    if not fitting:
        why = "; ".join(f"'{name}' {obstacle}" for name, obstacle in obstacles.items())
        return (
            f": ClusterQueue '{named}' has no flavor of the pool's nodes for {', '.join(wanted)} ({why}). "
            "Correct the pool's nodeSelector and tolerations, or add a flavor"
        )
    sizes = {(name, resource): quota.sizes(name, resource) for name in fitting for resource in wanted}
    lacking = {name: [one for one, value in wanted.items() if value > sizes[name, one][1]] for name in fitting}
    best = min(fitting, key=lambda name: (len(lacking[name]), [-sizes[name, one][1] for one in lacking[name]]))
    if lacking[best]:
        short = (f"{amount(one, wanted[one])} of {amount(one, sizes[best, one][1])}" for one in lacking[best])
        lent = " with what it can borrow" if cohort_of((quota.cluster_queue or {})["spec"]) else ""
        return (
            f", which ask for {', '.join(short)}, the quota of flavor '{best}' in ClusterQueue '{named}'{lent}. "
            "Ask for less, or raise the quota"
        )
    return not any(all(value <= sizes[name, one][0] for one, value in wanted.items()) for name in fitting)


def _find(spec: Manifest, flavor: str, resource: str) -> Manifest:
    """Return the quota that a ClusterQueue has of a flavor's resource, {} if it has none."""
    flavors = (each for group in spec.get("resourceGroups", []) for each in group["flavors"] if each["name"] == flavor)
    return next((quota for each in flavors for quota in each["resources"] if quota["name"] == resource), {})


def _number(quota: Manifest, name: str, absent: float = math.inf) -> float:
    return absent if quota.get(name) is None else in_bytes(str(quota[name]))
