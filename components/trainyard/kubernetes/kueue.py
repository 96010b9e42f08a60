"""Reads from Kueue why a Job or a pod waits in a queue."""

from __future__ import annotations

import re

from trainyard.kubernetes.client import Cluster, Manifest
from trainyard.kubernetes.diagnosis import conditions, name_of, one_line

VERSIONS = ("apis/kueue.x-k8s.io/v1beta2", "apis/kueue.x-k8s.io/v1beta1")
"""The versions of its API: the newer is asked first."""
_GATES = "kueue.x-k8s.io/"
_UID = "kueue.x-k8s.io/job-uid"
_UIDS = re.compile(r" \(UID: [^)]*\)")  # of the Workload that preempted it


def why_waiting(cluster: Cluster, uid: str) -> str:
    """Return Kueue's reason not to admit the Job or pod with this `uid`, '' if it is unknown.

    Raises `InfrastructureError` if Workloads may not be read.
    """
    for group in VERSIONS:
        for workload in cluster.items("workloads", selector=f"{_UID}={uid}", group=group):
            return _why(workload)
    return ""


def is_queued(pod: Manifest) -> bool:
    """Return True if Kueue keeps the pod from being scheduled, by gates such as kueue.x-k8s.io/admission."""
    return any(str(gate["name"]).startswith(_GATES) for gate in pod["spec"].get("schedulingGates") or [])


def _why(workload: Manifest) -> str:
    unmet = conditions(workload, "False")
    condition = unmet.get("QuotaReserved") or unmet.get("Admitted") or {}
    evicted = conditions(workload).get("Evicted") or {}
    texts = [str(each.get("message") or "") for each in (evicted, condition)]
    messages = [one_line(_UIDS.sub("", text)).rstrip(".") for text in texts]
    if workload["spec"].get("active") is False:
        name = name_of(workload)
        messages.append(
            f"""It is deactivated: kubectl patch workload {name} --type=merge -p '{{"spec":{{"active":true}}}}'"""
        )
    return ". ".join(dict.fromkeys(filter(None, messages)))
