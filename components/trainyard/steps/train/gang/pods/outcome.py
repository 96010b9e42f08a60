"""Interprets the pods of a gang: which workers are missing and why, and which error ended the gang.

Pure functions over objects of the Kubernetes API as plain dicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from trainyard import events
from trainyard.errors import ExitCode, InfrastructureError, TrainyardError, TransientError, from_code
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import CONTAINER, Exit, conditions, diagnose, disruption
from trainyard.process import memory
from trainyard.steps.train.gang.pods.job import BACKOFF_LIMIT, FINAL, Gang

State = Literal["absent", "pending", "running", "done", "failed"]

_LONGEST = 600  # characters of a worker's message


@dataclass(frozen=True)
class Worker:
    """A worker by its newest pod.

    reason: why it is not running; broken: this will not change by itself. placed: its pod has a node. lost_node: the
    node that the pod cannot leave, because the node does not answer but is still listed; Kubernetes starts no other.
    """

    index: int
    state: State
    pod: str = ""
    reason: str = ""
    broken: bool = False
    placed: bool = True
    lost_node: str = ""


def workers(count: int, pods: list[Manifest]) -> list[Worker]:
    """Return the state of each of `count` workers, by index."""
    newest: dict[int, Manifest] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        newest[int(pod["metadata"]["labels"].get(labels.INDEX, -1))] = pod
    return [_worker(index, newest.get(index)) for index in range(count)]


def queue_seconds(job: Manifest, pods: list[Manifest]) -> float | None:
    """Return the seconds from the Job's creation to worker 0's first start, None before it.

    Uses the clocks of API server and node, both in seconds. Deleted pods are missing.
    """
    starts = [
        (state.get("running") or state.get("terminated") or {}).get("startedAt")
        for pod in pods
        if pod["metadata"]["labels"].get(labels.INDEX) == "0"
        for container in pod.get("status", {}).get("containerStatuses") or []
        if container["name"] == CONTAINER and (state := container.get("state") or {})
    ]
    created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    waited = [(datetime.fromisoformat(start) - created).total_seconds() for start in starts if start]
    return max(0.0, min(waited)) if waited else None


def preempted(pods: list[Manifest]) -> set[str]:
    """Return the names of the pods that were preempted or evicted, or lost their node."""
    causes = ((pod["metadata"]["name"], diagnose(pod).cause) for pod in pods)
    return {name for name, cause in causes if cause in ("preempted", "evicted", "node-lost")}


def suspended(job: Manifest) -> bool:
    """Return True while the Job waits for admission."""
    return bool(job["spec"].get("suspend"))


def complete(job: Manifest) -> bool:
    """Return True if every worker succeeded."""
    return "Complete" in conditions(job)


def trained(workers: list[Worker]) -> bool:
    """Return True if worker 0 succeeded, which commits the model, and no other worker runs any more."""
    return workers[0].state == "done" and not any(worker.state == "running" for worker in workers)


def missing(gang: Gang, worker: Worker) -> str:
    """Return, for instance, `waiting for worker 2 of 4 (pod pending: 0/6 nodes are available: …)`."""
    return f"waiting for worker {worker.index} of {gang.workers} ({worker.reason})"


def failure(gang: Gang, job: Manifest, pods: list[Manifest]) -> TrainyardError | None:
    """Return the error that ended the gang, with exit code and message of the worker that caused it."""
    ended = [(pod, end) for pod in pods if (end := _failed_exit(pod)) is not None]
    out_of_memory = [pod for pod, end in ended if end.out_of_memory]
    job_conditions = conditions(job)
    condition = job_conditions.get("Failed") or job_conditions.get("FailureTarget")
    if len(out_of_memory) > 1 or (condition and out_of_memory):
        return _memory_error(gang, out_of_memory[-1])
    if condition is None:
        return None
    if condition.get("reason") == "DeadlineExceeded":
        return InfrastructureError(
            f"{gang.name}: the gang took more than {gang.timeout_seconds} s, waits for nodes included. "
            f"Raise timeout_seconds.{gang.step} in the environment and run again{gang.resumes}."
        )
    cause = _cause(ended)
    if cause is None:
        return TransientError(f"{gang.name}: the Job failed ({condition.get('message', 'no reason given')}).")
    pod, end = cause
    times = "" if end.code in FINAL else f" The pods failed more than {BACKOFF_LIMIT * gang.workers} times."
    recorded = events.failure(end.message)
    message = recorded.message[:_LONGEST] if recorded else _last_line(end.message)
    sentence = f"{gang.name}: {_worker_name(gang, pod)} ended with exit code {end.code}: {message}{times}"
    return from_code(end.code, sentence, recorded.error if recorded else "")


def _worker(index: int, pod: Manifest | None) -> Worker:
    if pod is None:
        return Worker(index, "absent", reason="no pod", placed=False)
    name, node, diagnosis = pod["metadata"]["name"], pod["spec"].get("nodeName", ""), diagnose(pod)
    if diagnosis.state == "done":
        return Worker(index, "done", name)
    if diagnosis.state == "failed":
        code = diagnosis.exit and diagnosis.exit.code
        why = f"exit code {code}" if code else diagnosis.reason or "no reason given"
        return Worker(index, "failed", name, f"pod failed: {why}")
    if diagnosis.ending and diagnosis.cause == "node-lost":
        return Worker(index, "pending", name, f"pod {disruption(diagnosis.reason)}, and has not ended", lost_node=node)
    if diagnosis.ending:
        return Worker(index, "pending", name, "pod is ending")
    if diagnosis.state == "running":
        return Worker(index, "running", name)
    if diagnosis.blocked:
        reason = f"pod pending: {diagnosis.reason}: {diagnosis.message}"[:_LONGEST]
        return Worker(index, "pending", name, reason, broken=True)
    if diagnosis.cause in ("unscheduled", "gated"):
        return Worker(index, "pending", name, f"pod pending: {diagnosis.message or 'not scheduled'}", placed=False)
    return Worker(index, "pending", name, f"pod is starting on {node or 'a node'}", placed=bool(node))


def _worker_name(gang: Gang, pod: Manifest) -> str:
    index, node = pod["metadata"]["labels"].get(labels.INDEX, "?"), pod["spec"].get("nodeName", "no node")
    return f"worker {index} of {gang.workers} (pod {pod['metadata']['name']} on {node})"


def _failed_exit(pod: Manifest) -> Exit | None:
    """Return the exit of the worker of `pod`, None if it has not failed."""
    end = diagnose(pod).exit
    return end if end is not None and end.code and end.container == CONTAINER else None


def _cause(ended: list[tuple[Manifest, Exit]]) -> tuple[Manifest, Exit] | None:
    """Return the exit that caused the others: the first with a final code, otherwise the last real failure."""
    in_order = sorted(ended, key=lambda pod_and_end: pod_and_end[1].finished)
    final = [(pod, end) for pod, end in in_order if end.code in FINAL]
    real = [(pod, end) for pod, end in in_order if end.code != ExitCode.PREEMPTED]
    return final[0] if final else real[-1] if real else None


def _memory_error(gang: Gang, pod: Manifest) -> InfrastructureError:
    limit = gang.pool.resources.limits.memory
    return InfrastructureError(
        f"{gang.name}: {_worker_name(gang, pod)} was killed for exceeding its memory limit of {limit}. "
        f"Raise resources.limits.memory of the pool{memory.less_memory_advice(gang.step)}."
    )


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else "it wrote nothing."
