"""Argo's fields in a run's Workflow and pods (deadlines, retries, caches), and the state of its controller.

All but `silent_since` are pure functions over objects of the Kubernetes API. Source: Argo Workflows 4.0.5, operator.go
(processNodeRetries), workflowpod.go (getDeadline) and executor.go (monitorDeadline).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Cluster, Manifest
from trainyard.kubernetes.diagnosis import WAIT
from trainyard.kubernetes.pod_spec import variable
from trainyard.measured import seconds_between

# Advice for when Argo treats backoffMaxDuration as the limit of all attempts together.
BOUND = (
    "all attempts of a step must end within the backoffMaxDuration of its retryPolicy, counted from the first one's "
    "start. Place or compile the pipeline again, for this version sets no such bound, or raise it in set_retry"
)
_ATTEMPT = re.compile(r"\((\d+)\)$")  # suffix of the name of a Retry node's child
# Log lines of the launcher (klog), KFP's executor and Argo's executor. Source: the logs of KFP 2.17.0 and Argo 4.0.5.
_AROUND = re.compile(
    r"[IWEF]\d{4} [\d:.]+ +\d+ \S+\.go:\d+\] |\[KFP Executor |time=\S+ level=\w+ msg=.*\bargo=true|"
    r'\{.*"argo":\s?true|Error: exit status \d+$'
)
_PROGRAM_ENDED = re.compile(r"^F.*\] failed to execute component: exit status (\d+)$", re.MULTILINE)
_FATAL = re.compile(
    r"^F\d{4} [\d:.]+ +\d+ \S+\.go:\d+\] (?:KFP driver: )?(?:driver\.\w+\(.*?\) failed: )?(.+)$", re.MULTILINE
)
_PROGRAM_END = re.compile(r"exit status \d+$|signal: ")
_DEADLINE = "Step exceeded its deadline"  # what the container `wait` wrote that ended the others
_KILLED = re.compile(r"\bError \(exit code (137|143)\)")
# Source of the Lease: Argo Workflows 4.0.5, cmd/workflow-controller/main.go, which renews it every 5 s.
_SILENT_SECONDS = 60.0  # chosen: four times the Lease's duration; a new controller takes over in that time
_RENEWAL_SECONDS = 12.0  # chosen: twice the time between renewals
REMEDY = "Have it started: kubectl -n {namespace} rollout restart deployment workflow-controller"
# Argo's messages for a step whose attempts together took too long.
OUT_OF_TIME = ("Max duration limit exceeded", "Backoff would exceed max duration limit")


def run_ends(workflow: Manifest) -> str:
    """Return the time at which Argo ends the run, as in the pods' environment; '' without a deadline or before the
    start.
    """
    seconds, started = workflow["spec"].get("activeDeadlineSeconds"), workflow.get("status", {}).get("startedAt")
    if not seconds or not started:
        return ""
    end = datetime.fromisoformat(started) + timedelta(seconds=seconds)
    return end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def overdue(workflows: Iterable[Manifest]) -> int | None:
    """Return the deadline in seconds that ended the run, None if none did."""
    for workflow in workflows:
        seconds, status = workflow["spec"].get("activeDeadlineSeconds"), workflow.get("status", {})
        if seconds and status.get("phase") in ("Failed", "Error"):
            lasted = seconds_between(str(status.get("startedAt") or ""), str(status.get("finishedAt") or ""))
            if lasted is not None and lasted >= seconds:
                return int(seconds)
    return None


def cancelled(workflow: Manifest) -> bool:
    """Return True if the run was cancelled: Kubeflow sets a deadline of 0."""
    return bool(workflow["spec"].get("activeDeadlineSeconds") == 0)


def cancelled_nodes(workflows: Iterable[Manifest]) -> set[str]:
    """Return the nodes that ended because their run was cancelled. Their pods may have exit code 0.

    A killed step then reports only the signal's exit code.
    """
    nodes = [workflow.get("status", {}).get("nodes") or {} for workflow in workflows if cancelled(workflow)]
    return {
        name
        for run_nodes in nodes
        for name, node in run_nodes.items()
        if node.get("message") == _DEADLINE or (node.get("type") == "Pod" and _KILLED.search(node.get("message") or ""))
    }


def stop_reasons(workflows: Iterable[Manifest]) -> dict[str, str]:
    """Return Argo's reason for starting no further attempt, by the node of a step's last attempt."""
    nodes = [node for workflow in workflows for node in (workflow.get("status", {}).get("nodes") or {}).values()]
    return {
        node["children"][-1]: str(node.get("message", ""))
        for node in nodes
        if node.get("type") == "Retry" and node.get("phase") in ("Failed", "Error") and node.get("children")
    }


def retried(workflows: Iterable[Manifest]) -> set[str]:
    """Return the nodes of failed attempts that Argo retries."""
    names = set()
    for workflow in workflows:
        nodes = workflow.get("status", {}).get("nodes") or {}
        retrying = [node for node in nodes.values() if node.get("type") == "Retry" and node.get("phase") == "Running"]
        last_attempts = {(node.get("children") or [""])[-1] for node in retrying}
        names |= {name for name in last_attempts if nodes.get(name, {}).get("phase") in ("Failed", "Error")}
    return names


def cached(workflows: Iterable[Manifest]) -> set[str]:
    """Return the tasks, by their names at Kubeflow, that a cached output replaced.

    A workflow whose `templateDefaults` have a retryStrategy wraps each task in a node of type Retry: the container's
    boundary is then an attempt, such as `train(0)`. Source: Kubeflow Pipelines 2.17, argocompiler/container.go (the
    task `executor`, unless `cached-decision` is true).
    """
    nodes = [workflow.get("status", {}).get("nodes") or {} for workflow in workflows]
    return {
        _ATTEMPT.sub("", str(run_nodes.get(node.get("boundaryID"), {}).get("displayName", "")))
        for run_nodes in nodes
        for node in run_nodes.values()
        if node.get("displayName") == "executor" and node.get("phase") == "Skipped"
    }


def program_exit(log: str) -> int | None:
    """Return the exit code of a step's program by Kubeflow's launcher, which ends with 1 itself; None if it has none.

    Source: Kubeflow Pipelines 2.17, backend/src/v2/cmd/launcher-v2/main.go.
    """
    ended = _PROGRAM_ENDED.findall(log)
    return int(ended[-1]) if ended else None


def fatal(log: str) -> str:
    """Return the sentence with which Kubeflow's driver or launcher gave up, '' if its program's end was the reason."""
    sentences = _FATAL.findall(log)
    return "" if not sentences or _PROGRAM_END.search(sentences[-1]) else " ".join(sentences[-1].split())


def step_lines(log: str) -> list[str]:
    """Return the lines of a step's log without those of Kubeflow's launcher and Argo's executor.

    The launcher and KFP's executor write JSON over several lines after some of theirs. A log that is cut may begin
    within one.
    """
    lines, every = [], log.splitlines()
    around = next((line for line in every if not line.startswith(" ")), "") == "}"
    for line in every:
        around = bool(_AROUND.match(line)) or (around and (line in ("{", "}") or line.startswith(" ")))
        if not around:
            lines.append(line)
    return lines


def node_id(pod: Manifest) -> str:
    """Return the id of the pod's Workflow node, '' if it has none."""
    return str((pod["metadata"].get("annotations") or {}).get(labels.NODE_ID, ""))


def is_retry(pod: Manifest) -> bool:
    """Return True for a second or later attempt, by the number at the end of the node's name."""
    name = (pod["metadata"].get("annotations") or {}).get(labels.NODE_NAME, "")
    return bool((attempt := _ATTEMPT.search(name)) and attempt[1] != "0")


def ended_at_deadline(pod: Manifest) -> bool:
    """Return True if Argo's own container ended the step at a deadline."""
    for status in pod.get("status", {}).get("containerStatuses", []):
        if status["name"] == WAIT:
            return str((status.get("state", {}).get("terminated") or {}).get("message") or "").strip() == _DEADLINE
    return False


def deadline_sentence(pod: Manifest, run_ends: str) -> str:
    """Say which deadline ended the pod: that of the run, `run_ends`, or that of all attempts of the step."""
    time = variable(pod["spec"], "ARGO_DEADLINE")
    if time == run_ends or not (run_ends or is_retry(pod)):
        return f"was ended at {time}, the deadline of its run. Raise deadline_seconds in the environment"
    return f"was ended by Argo at {time}: {BOUND}"


def silent_since(cluster: Cluster, namespace: str) -> str | None:
    """Return the time of the controller's last renewal of its Lease if it is silent, '' if it runs, None without a
    Lease.

    Without a controller Kubeflow accepts runs, but starts and ends nothing. An old Lease is read twice, because the
    clocks of this machine and of the cluster may differ. Raises `InfrastructureError` if it may not be read.
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


def silence_sentence(since: str, namespace: str) -> str:
    """Format the sentence about a silent controller, with its remedy."""
    return (
        f"Kubeflow's workflow controller has not answered since {since}: no step starts and none ends. "
        f"{REMEDY.format(namespace=namespace)}"
    )
