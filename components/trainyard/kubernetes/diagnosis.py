"""Reads a pod's fields in one place, for the launcher of a gang and for `explain`.

Pure functions over the objects of the Kubernetes API. The callers turn a diagnosis into sentences and advice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest

State = Literal["waiting", "running", "done", "failed"]
Waiting = Literal["starting", "scheduling", "unscheduled", "gated", "image", "configuration", "crash-loop"]
Disruption = Literal["preempted", "evicted", "disk", "node-lost"]
Failure = Literal["deadline", "turned-away", "out-of-memory", "exited", "unknown"]
Cause = Literal["done", "running", "ending"] | Waiting | Disruption | Failure

CONTAINER = "worker"
"""The container of a gang's pods."""

MAIN = "main"
"""The container of a step's pod, as Kubeflow calls it."""

DRIVER = "driver"
"""The name that `task_of` returns for the pods in which Kubeflow prepares steps."""

WAIT = "wait"
"""Argo's container that waits for the step's, and then stores its outputs and its log."""

_ARGO_CONTAINERS = (WAIT, "init", "argoexec-init")  # Argo's own containers beside the step's
_LONGEST = 500  # characters of Kubernetes' own words
# Causes by the reason of a pod's DisruptionTarget.
_DISRUPTIONS: dict[str, tuple[Disruption, str]] = {
    "PreemptionByScheduler": ("preempted", "was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": ("evicted", "was evicted, as by a drain of the node"),
    "DeletionByTaintManager": ("node-lost", "was deleted, because its node got a taint that it does not tolerate"),
    "DeletionByPodGC": ("node-lost", "was deleted, because its node is gone"),
    "TerminationByKubelet": ("evicted", "was ended by its node"),
}
_EVICTED: tuple[Disruption, str] = ("evicted", "was evicted")
# Causes of containers that do not start. The kubelet retries, with the same result.
_BLOCKED: dict[str, Waiting] = {
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"), "image"
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"), "configuration"
    ),
    "CrashLoopBackOff": "crash-loop",
}


@dataclass(frozen=True)
class Exit:
    """The end of a container."""

    container: str
    code: int
    reason: str
    message: str
    finished: str

    @property
    def out_of_memory(self) -> bool:
        """True if the kernel killed it for memory."""
        return self.reason == "OOMKilled"


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a pod. reason and message: Kubernetes' own words. ending: it was asked to stop.

    container and image: of what cannot start. exit: of the main container, or of another that failed if it did not.
    """

    state: State
    cause: Cause
    reason: str = ""
    message: str = ""
    container: str = ""
    image: str = ""
    exit: Exit | None = None
    ending: bool = False

    @property
    def disrupted(self) -> bool:
        """True if the pod was preempted, evicted, or lost its node."""
        return self.cause in ("preempted", "evicted", "disk", "node-lost")

    @property
    def blocked(self) -> bool:
        """True if a container waits for something that does not come by itself."""
        return self.cause in ("image", "configuration", "crash-loop")


@dataclass(frozen=True)
class PodTask:
    """The task of a pod: `train`, worker 1 of `train` or of its input, or the second task of `check` in one run."""

    step: str
    use: str = ""
    worker: str = ""

    @property
    def name(self) -> str:
        """The name, such as `train`, `train worker 1`, `train input worker 1` or `check 2`."""
        return self.step + (f" {self.use}" if self.use else "") + (f" worker {self.worker}" if self.worker else "")


def diagnose(pod: Manifest) -> Diagnosis:
    """Diagnose a pod from its own status; its node may be gone without the pod knowing it."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    base = Diagnosis(
        "running",
        "running",
        reason=str(status.get("reason") or ""),
        message=one_line(status.get("message") or ""),
        exit=_exit(pod),
        ending=bool(pod["metadata"].get("deletionTimestamp")),
    )
    if phase == "Succeeded":
        return replace(base, state="done", cause="done")
    if disruption := _disruption(base, status):
        return replace(disruption, state="failed" if phase == "Failed" else "running")
    if phase == "Failed" or (base.exit and base.exit.code):
        return replace(base, state="failed", cause=_failure(base))
    if phase == "Pending":
        return _waiting(base, pod)
    return replace(base, cause="ending") if base.ending else base


def conditions(thing: Manifest, status: str = "True") -> dict[str, Manifest]:
    """Return the conditions of a pod, Job or node with `status`, by type."""
    every = thing.get("status", {}).get("conditions") or []
    return {condition["type"]: condition for condition in every if condition["status"] == status}


def name_of(thing: Manifest) -> str:
    """Return the name of an object."""
    return str(thing["metadata"]["name"])


def owner_uids(thing: Manifest) -> set[str]:
    """Return the uids of an object's owners."""
    return {str(owner["uid"]) for owner in thing["metadata"].get("ownerReferences") or []}


def task_of(thing: Manifest) -> PodTask:
    """Return the task of a pod or a Job; a driver of Kubeflow is `driver`."""
    task_labels = thing["metadata"].get("labels", {})
    if (step := task_labels.get(labels.STEP)) is None:
        name = name_of(thing)
        return PodTask(DRIVER if "driver" in name else name)
    return PodTask(str(step), use=str(task_labels.get(labels.USE, "")), worker=str(task_labels.get(labels.INDEX, "")))


def main_container(pod: Manifest) -> str:
    """Return the name of the container that does the step's work."""
    names = [str(container["name"]) for container in pod["spec"]["containers"]]
    ours = (name for name in names if name in (CONTAINER, MAIN))
    return next(ours, next((name for name in names if name not in _ARGO_CONTAINERS), names[0]))


def has_run(pod: Manifest) -> bool:
    """Return True if the main container has run; one of a pod that ended before may have an exit code all the same."""
    ends = (status for status in pod["status"].get("containerStatuses", []) if status["name"] == main_container(pod))
    states = [
        state for status in ends for state in (*status.get("state", {}).values(), *status.get("lastState", {}).values())
    ]
    return any(state.get("startedAt") for state in states)


def disruption(reason: str) -> str:
    """Describe the disruption of a pod, by the `reason` of its diagnosis."""
    return _DISRUPTIONS.get(reason, _EVICTED)[1]


def one_line(text: str) -> str:
    """Join `text` to one line. A long one loses its middle: errors end with their cause."""
    line, half = " ".join(text.split()), _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}"


def _disruption(base: Diagnosis, status: Manifest) -> Diagnosis | None:
    condition = conditions({"status": status}).get("DisruptionTarget")
    if base.reason == "Evicted" and "exceeds the total limit" in base.message:
        return replace(base, cause="disk")
    if condition is None and base.reason not in ("Evicted", "Preempting", "NodeLost", "NodeShutdown"):
        return None
    reason = str((condition or {}).get("reason") or "")
    message = base.message or one_line((condition or {}).get("message") or "")
    return replace(base, cause=_DISRUPTIONS.get(reason, _EVICTED)[0], reason=reason, message=message)


def _failure(base: Diagnosis) -> Failure:
    if base.reason == "DeadlineExceeded":
        return "deadline"
    if base.reason.startswith("OutOf") or base.reason in (
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "Allocate failed",
    ):
        return "turned-away"
    if base.exit is None:
        return "unknown"
    return "out-of-memory" if base.exit.out_of_memory else "exited"


def _waiting(base: Diagnosis, pod: Manifest) -> Diagnosis:
    waiting = replace(base, state="waiting", cause="starting")
    if unscheduled := conditions(pod, "False").get("PodScheduled"):
        reason, message = str(unscheduled.get("reason") or ""), one_line(unscheduled.get("message") or "")
        # The scheduler's later sentences, on claims and preemption, name no other cause.
        first = message.partition(". ")[0]
        cause: Waiting = "gated" if reason == "SchedulingGated" else "unscheduled"
        return replace(waiting, cause=cause, reason=reason, message=first)
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        state = container.get("state", {}).get("waiting") or {}
        if blocked := _BLOCKED.get(str(state.get("reason"))):
            message = one_line(state.get("message") or "")
            name, image, reason = (
                str(container.get("name", "")),
                str(container.get("image", "")),
                str(state["reason"]),
            )
            return replace(waiting, cause=blocked, reason=reason, message=message, container=name, image=image)
    return waiting if pod["spec"].get("nodeName") else replace(waiting, cause="scheduling")


def _exit(pod: Manifest) -> Exit | None:
    status = pod.get("status", {})
    ends = {
        container["name"]: end
        for container in [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        if (end := container.get("state", {}).get("terminated"))
    }
    if not ends:
        return None
    main = main_container(pod)
    failed = next((name for name, end in ends.items() if end.get("exitCode")), "")
    name = main if main in ends and (ends[main].get("exitCode") or not failed) else failed
    if not name:
        return None
    end = ends[name]
    return Exit(
        container=name,
        code=int(end.get("exitCode") or 0),
        reason=str(end.get("reason") or ""),
        message=str(end.get("message") or ""),
        finished=str(end.get("finishedAt") or ""),
    )
