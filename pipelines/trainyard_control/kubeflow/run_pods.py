"""Reads the pods of a run for `explanation`, with their events, nodes and the ends of their logs."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.contract.gang import STEP as TRAIN
from trainyard.errors import InfrastructureError, TransientError
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import JOBS, Cluster, Manifest
from trainyard.kubernetes.diagnosis import (
    DRIVER,
    WAIT,
    PodTask,
    conditions,
    diagnose,
    main_container,
    name_of,
    owner_uids,
    task_of,
)
from trainyard.kubernetes.pod_spec import variable
from trainyard.steps.train.peers import settings
from trainyard_control.cluster import argo
from trainyard_control.cluster.explanation import Evidence, Finding, explain, refused
from trainyard_control.planning.expectation import Expectation

_LOG_LINES = 200  # chosen: a Python traceback and the lines around it
_WORKFLOWS = "apis/argoproj.io/v1alpha1"


def workflows(cluster: Cluster, run_id: str) -> list[Manifest]:
    """Return the Workflow of the run, while Argo keeps it."""
    return cluster.items("workflows", selector=f"{labels.KUBEFLOW_RUN}={run_id}", group=_WORKFLOWS)


def gangs(cluster: Cluster, owners: list[Manifest]) -> list[Manifest]:
    """Return the Jobs that belong to any of `owners`, and the Jobs of their input workers."""
    jobs = cluster.items("jobs", selector=f"{labels.APPLICATION}=trainyard", group=JOBS)
    own = _owned(jobs, owners)
    return own + _owned(jobs, own)


def run_objects(cluster: Cluster, run_id: str) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """Return the run's pods (gangs included, oldest first), the Jobs of its gangs, and its Workflow."""
    flows, pods = workflows(cluster, run_id), cluster.items("pods", selector=f"{labels.KUBEFLOW_RUN}={run_id}")
    jobs = gangs(cluster, [*flows, *pods])
    for job in jobs:
        pods += pods_of_job(cluster, name_of(job))
    return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])), jobs, flows


def _owned(jobs: list[Manifest], owners: list[Manifest]) -> list[Manifest]:
    uids = {owner["metadata"]["uid"] for owner in owners}
    return [job for job in jobs if uids & owner_uids(job)]


def pods_of_job(cluster: Cluster, job: str) -> list[Manifest]:
    """Return the pods of one Job."""
    return cluster.items("pods", selector=f"{labels.JOB}={job}")


def launcher_heartbeat(job: Manifest) -> str:
    """Return the URI of the launcher's heartbeat, '' if it has none."""
    return variable(job["spec"]["template"]["spec"], settings.LAUNCHER_HEARTBEAT)


def evidence(
    cluster: Cluster,
    pods: list[Manifest],
    expected: Expectation | None = None,
    workflows: Sequence[Manifest] = (),
    jobs: Sequence[Manifest] = (),
) -> list[Evidence]:
    """Collect the evidence on each of `pods`, as far as the caller may read it."""
    ends = next((text for workflow in workflows if (text := argo.run_ends(workflow))), "")
    stop_reasons = argo.stop_reasons(workflows)
    replacing = {name_of(job): job for job in jobs if _replaces(job)}
    retried, cancelled = argo.retried(workflows), argo.cancelled_nodes(workflows)
    unscheduled = any(not pod["spec"].get("nodeName") for pod in pods)
    nodes = _allowed(cluster, "/api/v1/nodes")
    silent_nodes = {name_of(node) for node in nodes or () if "Ready" not in conditions(node)}
    everything = _allowed(cluster, "/api/v1/pods") if unscheduled else None
    return [
        Evidence(
            pod=pod,
            events=_events(cluster, pod["metadata"]["uid"]),
            nodes=nodes,
            pods=everything,
            log=_log(cluster, pod, silent_nodes),
            expected=expected,
            run_ends=ends,
            stop_reason=stop_reasons.get(argo.node_id(pod), ""),
            again=_again(pod, replacing, retried),
            cancelled=_ended_with_run(pod, workflows, cancelled),
        )
        for pod in pods
    ]


def findings(
    cluster: Cluster,
    pods: list[Manifest],
    jobs: list[Manifest],
    expected: Expectation | None = None,
    workflows: Sequence[Manifest] = (),
) -> list[Finding]:
    """Explain every pod, and every Job of `jobs` that lacks pods."""
    explained = [explain(pod_evidence) for pod_evidence in evidence(cluster, pods, expected, workflows, jobs)]
    for job in jobs:
        name = name_of(job)
        own = sum(name == pod["metadata"]["labels"].get(labels.JOB) for pod in pods)
        if own < int(job["spec"].get("parallelism", 1)):
            missing = refused(task_of(job), name, _events(cluster, job["metadata"]["uid"]))
            explained += [missing] if missing else []
    return explained


def uncreated_steps(workflows: list[Manifest]) -> list[Finding]:
    """Explain steps whose pods Argo could not create, such as by an exceeded quota."""
    uncreated = []
    for workflow in workflows:
        for node in (workflow.get("status", {}).get("nodes") or {}).values():
            if node.get("type") == "Pod" and node.get("phase") == "Pending" and node.get("message"):
                name = str(node.get("displayName", node.get("templateName", "step")))
                finding = refused(PodTask(name), name, (), str(node["message"]))
                uncreated += [finding] if finding and finding.cause in ("quota", "pod-security") else []
    return uncreated


def _again(pod: Manifest, jobs: dict[str, Manifest], nodes: set[str]) -> str:
    """Return a sentence on what restarts the work of a failed pod: its gang's Job, or Argo."""
    job = jobs.get(pod["metadata"].get("labels", {}).get(labels.JOB))
    if job and not _ends_job(job, pod):
        resumes = ", and training resumes from its last checkpoint" if task_of(pod).step == TRAIN else ""
        return f"Its Job replaces it{resumes}"
    return "It is retried" if argo.node_id(pod) in nodes else ""


def _ends_job(job: Manifest, pod: Manifest) -> bool:
    """Return True if the Job's podFailurePolicy fails the Job at this exit code. The first matching rule decides.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    disrupted, end = "DisruptionTarget" in conditions(pod), diagnose(pod).exit
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
        if "onPodConditions" in rule and disrupted:
            return bool(rule["action"] == "FailJob")
        codes = rule.get("onExitCodes")
        if codes and end and (end.code in codes["values"]) == (codes["operator"] == "In"):
            return bool(rule["action"] == "FailJob")
    return False


def _ended_with_run(pod: Manifest, workflows: Sequence[Manifest], nodes: set[str]) -> bool:
    """Return True if the pod ended because its run was cancelled: it is one of `nodes`, or a failed driver.

    A killed driver has no message: Argo's executor in it ends with exit code 64.
    """
    failed_driver = task_of(pod).step == DRIVER and pod.get("status", {}).get("phase") == "Failed"
    return argo.node_id(pod) in nodes or (failed_driver and any(argo.cancelled(workflow) for workflow in workflows))


def _replaces(job: Manifest) -> bool:
    """Return True if the Job replaces a failed pod, which it does until it has ended."""
    ended = conditions(job).keys() & {"Failed", "FailureTarget", "Complete"}
    return not job["metadata"].get("deletionTimestamp") and not ended


def _events(cluster: Cluster, uid: str) -> list[Manifest]:
    events = cluster.items("events", fields=f"involvedObject.uid={uid}")
    return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


def _log(cluster: Cluster, pod: Manifest, silent_nodes: set[str]) -> str:
    """Return the end of the log of a pod that trains or failed, '' for any other.

    silent_nodes: nodes that do not answer, so that their logs cannot be read.
    """
    states = [status.get("state", {}) for status in pod.get("status", {}).get("containerStatuses", [])]
    trains = task_of(pod).step == TRAIN and any("running" in state for state in states)
    if not trains and not any((state.get("terminated") or {}).get("exitCode") for state in states):
        return ""
    if pod["spec"].get("nodeName") in silent_nodes:
        return ""
    ended = diagnose(pod).exit
    container = WAIT if ended and ended.container == WAIT else main_container(pod)
    try:
        return cluster.log(name_of(pod), container, _LOG_LINES)
    except TransientError:  # Kubernetes takes 40 s to notice that a node is silent
        return ""


def _allowed(cluster: Cluster, path: str) -> list[Manifest] | None:
    try:
        listed = cluster.get(path)
    except InfrastructureError:  # a user of one namespace may not read the whole cluster
        return None
    return list(listed["items"]) if listed else None
