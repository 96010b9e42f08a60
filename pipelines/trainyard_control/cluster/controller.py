"""Whether Argo's workflow controller runs: without it Kubeflow takes runs, starts nothing and ends nothing.

Source: Argo Workflows 4.0.5, cmd/workflow-controller/main.go (the Lease `workflow-controller`, renewed every 5 s).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from trainyard.kubernetes.client import Cluster

_SILENT_SECONDS = 60.0  # chosen: four times the Lease's duration; a controller that is replaced takes it in that time
_RENEWAL_SECONDS = 12.0  # chosen: twice the time between renewals

REMEDY = "Have it started: kubectl -n {namespace} rollout restart deployment workflow-controller"


def silent_since(cluster: Cluster, namespace: str) -> str | None:
    """Return since when the controller has not renewed its Lease, '' if it renews it, None if there is no Lease.

    A Lease that looks old is read again: the clocks of this machine and of the cluster may differ.
    Raises `InfrastructureError` if it may not be read.
    """
    renewed = _renewed(cluster, namespace)
    if not renewed:
        return None
    if (datetime.now(UTC) - datetime.fromisoformat(renewed)).total_seconds() < _SILENT_SECONDS:
        return ""
    time.sleep(_RENEWAL_SECONDS)
    return renewed if _renewed(cluster, namespace) == renewed else ""


def _renewed(cluster: Cluster, namespace: str) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/workflow-controller"
    return str(((cluster.get(path) or {}).get("spec") or {}).get("renewTime") or "")


def sentence(since: str, namespace: str) -> str:
    """Return the sentence about a controller that is silent since then, with its remedy."""
    return (
        f"Kubeflow's workflow controller has not answered since {since}: no step starts and none ends. "
        f"{REMEDY.format(namespace=namespace)}"
    )
