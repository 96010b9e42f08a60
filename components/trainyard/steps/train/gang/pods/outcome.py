"""What the pods of a gang say about it: who is missing and why, and which error ended it.

Pure functions over the objects of the Kubernetes API as plain dicts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from trainyard.errors import (
    ConfigurationError,
    DataError,
    ExitCode,
    InfrastructureError,
    TrainyardError,
    TransientError,
)
from trainyard.steps.train.gang.pods.job import BACKOFF_LIMIT, CONTAINER, FINAL, INDEX_LABEL, Gang, Manifest

State = Literal["absent", "pending", "running", "done", "failed"]

# A pod that waits for one of these waits for ever: the kubelet tries again, and the answer stays the same.
BROKEN = frozenset(
    {
        "CreateContainerConfigError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)

_ERRORS: dict[int, type[TrainyardError]] = {
    error.exit_code: error for error in (DataError, ConfigurationError, TransientError, InfrastructureError)
}
_LONGEST = 600  # characters of a pod's own words in a message


@dataclass(frozen=True)
class Worker:
    """One worker as its newest pod shows it. reason says why it is not running; broken that this will not change."""

    index: int
    state: State
    pod: str = ""
    reason: str = ""
    broken: bool = False


def workers(count: int, pods: list[Manifest]) -> list[Worker]:
    """Return the state of each of `count` workers, in the order of their indices."""
    newest: dict[int, Manifest] = {}
    for pod in sorted(pods, key=lambda each: str(each["metadata"]["creationTimestamp"])):
        newest[int(pod["metadata"]["labels"].get(INDEX_LABEL, -1))] = pod
    return [_worker(index, newest.get(index)) for index in range(count)]


def queue_seconds(job: Manifest, pods: list[Manifest]) -> float | None:
    """Return the seconds from the Job's creation to worker 0's first start, or None where it has not started yet.

    The API server's clock and a node's, both in whole seconds. A pod that was deleted since is not known of.
    """
    starts = [
        (state.get("running") or state.get("terminated") or {}).get("startedAt")
        for pod in pods
        if pod["metadata"]["labels"].get(INDEX_LABEL) == "0"
        for container in pod.get("status", {}).get("containerStatuses") or []
        if container["name"] == CONTAINER and (state := container.get("state") or {})
    ]
    created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    waited = [(datetime.fromisoformat(start) - created).total_seconds() for start in starts if start]
    return max(0.0, min(waited)) if waited else None


def suspended(job: Manifest) -> bool:
    """Return whether the Job waits to be admitted."""
    return bool(job["spec"].get("suspend"))


def complete(job: Manifest) -> bool:
    """Return whether every worker has ended well."""
    return "Complete" in _conditions(job)


def missing(gang: Gang, worker: Worker) -> str:
    """Return, for instance, `waiting for worker 2 of 4 (pod pending: 0/6 nodes are available: …)`."""
    return f"waiting for worker {worker.index} of {gang.workers} ({worker.reason})"


def failure(gang: Gang, job: Manifest, pods: list[Manifest]) -> TrainyardError | None:
    """Return the error that ended the gang, by the exit code and in the words of the worker that caused it."""
    ended = [end for pod in pods if (end := _end(pod)) is not None]
    out_of_memory = [end for end in ended if end.out_of_memory]
    conditions = _conditions(job)
    condition = conditions.get("Failed") or conditions.get("FailureTarget")
    if len(out_of_memory) > 1 or (condition and out_of_memory):
        return _memory_error(gang, out_of_memory[-1])
    if condition is None:
        return None
    if condition.get("reason") == "DeadlineExceeded":
        return InfrastructureError(
            f"{gang.name}: the gang ran for more than {gang.timeout_seconds} s. "
            f"Raise timeout_seconds.{gang.step} in the environment and run again: it goes on from its last checkpoint."
        )
    cause = _cause(ended)
    if cause is None:
        return TransientError(f"{gang.name}: the Job failed ({condition.get('message', 'no reason given')}).")
    kind = _ERRORS.get(cause.code, TrainyardError)
    times = "" if cause.code in FINAL else f" The pods failed more than {BACKOFF_LIMIT * gang.workers} times."
    return kind(f"{gang.name}: {cause.who(gang)} ended with exit code {cause.code}: {cause.words}{times}")


@dataclass(frozen=True)
class _End:
    """How the container of one pod ended."""

    index: str
    pod: str
    node: str
    code: ExitCode | int
    out_of_memory: bool
    words: str
    finished: str

    def who(self, gang: Gang) -> str:
        return f"worker {self.index} of {gang.workers} (pod {self.pod} on {self.node})"


def _worker(index: int, pod: Manifest | None) -> Worker:
    if pod is None:
        return Worker(index, "absent", reason="no pod")
    name, status = pod["metadata"]["name"], pod.get("status", {})
    phase = status.get("phase")
    if phase == "Succeeded":
        return Worker(index, "done", name)
    if phase == "Failed":
        end = _end(pod)
        why = f"exit code {end.code}" if end else status.get("reason", "no reason given")
        return Worker(index, "failed", name, f"pod failed: {why}")
    if pod["metadata"].get("deletionTimestamp"):
        return Worker(index, "pending", name, "pod is ending")
    if phase == "Running":
        return Worker(index, "running", name)
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in BROKEN:
            reason = f"pod pending: {waiting['reason']}: {waiting.get('message', '')}"[:_LONGEST]
            return Worker(index, "pending", name, reason, broken=True)
    unscheduled = _conditions(pod, "False").get("PodScheduled")
    if unscheduled:
        # What the scheduler says after its first sentence, of claims and preemption, names no other cause.
        why = str(unscheduled.get("message", "not scheduled")).partition(". ")[0]
        return Worker(index, "pending", name, f"pod pending: {why}")
    return Worker(index, "pending", name, f"pod is starting on {pod['spec'].get('nodeName', 'a node')}")


def _end(pod: Manifest) -> _End | None:
    for container in pod.get("status", {}).get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if container["name"] == CONTAINER and ended and ended.get("exitCode"):
            code = int(ended["exitCode"])
            return _End(
                index=pod["metadata"]["labels"].get(INDEX_LABEL, "?"),
                pod=pod["metadata"]["name"],
                node=pod["spec"].get("nodeName", "no node"),
                code=ExitCode(code) if code in set(ExitCode) else code,
                out_of_memory=ended.get("reason") == "OOMKilled",
                words=_words(ended.get("message") or ""),
                finished=str(ended.get("finishedAt", "")),
            )
    return None


def _cause(ended: list[_End]) -> _End | None:
    """Return the end that the others followed from: one that is final by its code, else the last of real failures."""
    in_order = sorted(ended, key=lambda end: end.finished)
    final = [end for end in in_order if end.code in FINAL]
    real = [end for end in in_order if end.code != ExitCode.PREEMPTED]
    return final[0] if final else real[-1] if real else None


def _memory_error(gang: Gang, end: _End) -> InfrastructureError:
    return InfrastructureError(
        f"{gang.name}: {end.who(gang)} was killed for memory, its limit is {gang.resources.limits.memory}. "
        "Raise resources.limits.memory of the pool, or lower train.batch_size in the recipe."
    )


def _words(message: str) -> str:
    """Return the sentence of the step's own `failed` event at the end of a log, else the log's last line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("failed ") and " message=" in line:
            return line.partition(" message=")[2][:_LONGEST]
        if line.startswith('{"event": "failed"'):
            try:
                return str(json.loads(line)["message"])[:_LONGEST]
            except (ValueError, KeyError):
                continue
    return lines[-1][:_LONGEST] if lines else "it said nothing."


def _conditions(thing: Manifest, status: str = "True") -> dict[str, Manifest]:
    found = thing.get("status", {}).get("conditions") or []
    return {each["type"]: each for each in found if each["status"] == status}
