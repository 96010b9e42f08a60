"""Reads what `explanation` needs of the pods of a run: the pods, their events, the nodes and the ends of the logs."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.contract.gang import STEP as TRAIN
from trainyard.errors import InfrastructureError
from trainyard_control.cluster.explanation import (
    JOB_LABEL,
    Evidence,
    Finding,
    Manifest,
    explain,
    main_container,
    refused,
    step_of,
)
from trainyard_control.cluster.kubernetes_api import Kubernetes
from trainyard_control.kubeflow import argo
from trainyard_control.planning.expectation import Expectation

RUN_LABEL = "pipeline/runid"
_LOG_LINES = 200  # chosen: a Python traceback and the lines around it
_JOBS = "apis/batch/v1"
_WORKFLOWS = "apis/argoproj.io/v1alpha1"


def workflows(cluster: Kubernetes, run_id: str) -> list[Manifest]:
    """Return the Workflow of the run, as long as Argo keeps it."""
    return cluster.items("workflows", selector=f"{RUN_LABEL}={run_id}", group=_WORKFLOWS)


def gangs(cluster: Kubernetes, owners: list[Manifest]) -> list[Manifest]:
    """Return the Jobs that belong to any of `owners`."""
    uids = {each["metadata"]["uid"] for each in owners}
    jobs = cluster.items("jobs", selector="app.kubernetes.io/name=trainyard", group=_JOBS)
    return [job for job in jobs if uids & {each["uid"] for each in job["metadata"].get("ownerReferences") or []}]


def pods_of_run(cluster: Kubernetes, run_id: str) -> list[Manifest]:
    """Return the run's pods, those of its gangs included, oldest first."""
    own = cluster.items("pods", selector=f"{RUN_LABEL}={run_id}")
    for job in gangs(cluster, [*workflows(cluster, run_id), *own]):
        own += pods_of_job(cluster, job["metadata"]["name"])
    return sorted(own, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def pods_of_job(cluster: Kubernetes, job: str) -> list[Manifest]:
    """Return the pods of one Job."""
    return cluster.items("pods", selector=f"batch.kubernetes.io/job-name={job}")


def launcher_sign(job: Manifest) -> str:
    """Return where the launcher of the gang `job` leaves its sign of life, '' where it leaves none."""
    containers = job["spec"]["template"]["spec"]["containers"]
    variables = [each for container in containers for each in container.get("env") or []]
    return next((str(each.get("value", "")) for each in variables if each["name"] == "TRAINYARD_LAUNCHER_SIGN"), "")


def evidence(
    cluster: Kubernetes,
    pods: list[Manifest],
    expected: Expectation | None = None,
    workflows: Sequence[Manifest] = (),
    jobs: Sequence[Manifest] = (),
) -> list[Evidence]:
    """Return all that the cluster says of each of `pods`, as far as the caller may read it."""
    ends = next((text for each in workflows if (text := argo.run_ends(each))), "")
    given_up = argo.given_up(workflows)
    replaced = {_name(job) for job in jobs if _replaces(job)}
    retried, cancelled = argo.retried(workflows), argo.cancelled_nodes(workflows)
    unscheduled = any(not pod["spec"].get("nodeName") for pod in pods)
    nodes = _allowed(cluster, "/api/v1/nodes")
    everything = _allowed(cluster, "/api/v1/pods") if unscheduled else None
    return [
        Evidence(
            pod=pod,
            events=_events(cluster, pod["metadata"]["uid"]),
            nodes=nodes,
            pods=everything,
            log=_log(cluster, pod),
            expected=expected,
            run_ends=ends,
            given_up=given_up.get(argo.node_of(pod), ""),
            again=_again(pod, replaced, retried),
            cancelled=argo.node_of(pod) in cancelled,
        )
        for pod in pods
    ]


def findings(
    cluster: Kubernetes,
    pods: list[Manifest],
    jobs: list[Manifest],
    expected: Expectation | None = None,
    workflows: Sequence[Manifest] = (),
) -> list[Finding]:
    """Return what is to be said of every pod, and of every Job of `jobs` that has fewer pods than it should."""
    found = [explain(each) for each in evidence(cluster, pods, expected, workflows, jobs)]
    for job in jobs:
        name = _name(job)
        if sum(name == pod["metadata"]["labels"].get(JOB_LABEL) for pod in pods) < int(
            job["spec"].get("parallelism", 1)
        ):
            missing = refused(step_of(job), name, _events(cluster, job["metadata"]["uid"]))
            found += [missing] if missing else []
    return found


def held_up(workflows: list[Manifest]) -> list[Finding]:
    """Return what Argo says of steps whose pods it could not create, such as an exceeded quota."""
    found = []
    for workflow in workflows:
        for node in (workflow.get("status", {}).get("nodes") or {}).values():
            if node.get("type") == "Pod" and node.get("phase") == "Pending" and node.get("message"):
                name = str(node.get("displayName", node.get("templateName", "step")))
                told = refused(name, name, (), str(node["message"]))
                found += [told] if told and told.cause in ("quota", "pod-security") else []
    return found


def _again(pod: Manifest, jobs: set[str], nodes: set[str]) -> str:
    """Return what starts the failed pod's work again: its gang's Job, of `jobs`, or Argo, of whose `nodes` it is."""
    if pod["metadata"].get("labels", {}).get(JOB_LABEL) in jobs:
        return "Its Job replaces it, and training goes on from its last checkpoint"
    return "It is tried again" if argo.node_of(pod) in nodes else ""


def _replaces(job: Manifest) -> bool:
    """Return whether the Job makes a new pod where one fails: it does until it has ended itself."""
    ended = {each["type"] for each in job.get("status", {}).get("conditions") or [] if each["status"] == "True"}
    return not job["metadata"].get("deletionTimestamp") and not ended & {"Failed", "FailureTarget", "Complete"}


def _name(thing: Manifest) -> str:
    return str(thing["metadata"]["name"])


def _events(cluster: Kubernetes, uid: str) -> list[Manifest]:
    events = cluster.items("events", fields=f"involvedObject.uid={uid}")
    return sorted(events, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))


def _log(cluster: Kubernetes, pod: Manifest) -> str:
    """Return the end of the log of a pod that trains, or whose step has ended badly, '' for any other."""
    states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", [])]
    trains = step_of(pod).partition(" ")[0] == TRAIN and any("running" in state for state in states)
    if not trains and not any((state.get("terminated") or {}).get("exitCode") for state in states):
        return ""
    return cluster.log(pod["metadata"]["name"], main_container(pod), _LOG_LINES)


def _allowed(cluster: Kubernetes, path: str) -> list[Manifest] | None:
    try:
        found = cluster.get(path)
    except InfrastructureError:  # a user of one namespace may not read the whole cluster
        return None
    return list(found["items"]) if found else None
