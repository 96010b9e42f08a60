"""What a pod's status means, from objects that Kubernetes documents: the same for the launcher and `explain`."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.kubernetes.diagnosis import PodTask, diagnose, main_container, task_of


def pod(phase: str, **status: Any) -> dict[str, Any]:
    spec = {"nodeName": "gpu-0", "containers": [{"name": "sidecar"}, {"name": "worker"}]}
    return {"metadata": {"name": "p", "labels": {}}, "spec": spec, "status": {"phase": phase, **status}}


def condition(name: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": status, "reason": reason, "message": message}]}


def blocked(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "worker", "image": "i", "state": {"waiting": {"reason": reason}}}]}


def ended(code: int, reason: str = "Error", name: str = "worker") -> dict[str, Any]:
    return {"containerStatuses": [{"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}}]}


@pytest.mark.parametrize(
    ("phase", "status", "state", "cause"),
    [
        ("Succeeded", {}, "done", "done"),
        ("Running", {}, "running", "running"),
        ("Running", condition("DisruptionTarget", "True", "PreemptionByScheduler"), "running", "preempted"),
        ("Failed", condition("DisruptionTarget", "True", "EvictionByEvictionAPI") | ended(143), "failed", "evicted"),
        ("Failed", {"reason": "Evicted", "message": "usage exceeds the total limit of 2Gi."}, "failed", "disk"),
        ("Failed", {"reason": "DeadlineExceeded"} | ended(143), "failed", "deadline"),
        ("Failed", {"reason": "OutOfcpu"}, "failed", "turned-away"),
        ("Failed", {}, "failed", "unknown"),
        ("Failed", ended(137, "OOMKilled"), "failed", "out-of-memory"),
        ("Running", ended(1), "failed", "exited"),
        ("Running", ended(0), "running", "running"),
        ("Pending", {}, "waiting", "starting"),
        ("Pending", condition("PodScheduled", "False", "SchedulingGated"), "waiting", "gated"),
        ("Pending", blocked("ErrImagePull"), "waiting", "image"),
        ("Pending", blocked("CreateContainerError"), "waiting", "configuration"),
        ("Pending", blocked("ContainerCreating"), "waiting", "starting"),
    ],
)
def test_state_and_cause_of_a_pod(phase: str, status: dict[str, Any], state: str, cause: str) -> None:
    diagnosis = diagnose(pod(phase, **status))
    assert (diagnosis.state, diagnosis.cause) == (state, cause)
    assert diagnosis.disrupted == (cause in ("preempted", "evicted", "disk"))
    assert diagnosis.blocked == (cause in ("image", "configuration"))


def test_an_unscheduled_pod_has_the_schedulers_first_sentence() -> None:
    diagnosis = diagnose(
        pod("Pending", **condition("PodScheduled", "False", "Unschedulable", "0/2 nodes. no new claims"))
    )
    assert (diagnosis.cause, diagnosis.message) == ("unscheduled", "0/2 nodes")


def test_the_container_that_works_is_told_from_a_sidecar() -> None:
    assert main_container(pod("Running")) == "worker"
    diagnosis = diagnose(pod("Running", **ended(3, name="sidecar")))
    assert diagnosis.exit and (diagnosis.exit.container, diagnosis.exit.code) == ("sidecar", 3)


@pytest.mark.parametrize(
    ("own", "task", "name"),
    [
        ({"app.kubernetes.io/component": "train"}, PodTask("train"), "train"),
        ({"app.kubernetes.io/component": "check", "trainyard/use": "2"}, PodTask("check", use="2"), "check 2"),
        (
            {"app.kubernetes.io/component": "train", "batch.kubernetes.io/job-completion-index": "0"},
            PodTask("train", worker="0"),
            "train worker 0",
        ),
        (
            {
                "app.kubernetes.io/component": "train",
                "trainyard/use": "input",
                "batch.kubernetes.io/job-completion-index": "1",
            },
            PodTask("train", use="input", worker="1"),
            "train input worker 1",
        ),
        ({}, PodTask("p"), "p"),
    ],
)
def test_the_task_of_a_pod_is_read_from_its_labels(own: dict[str, str], task: PodTask, name: str) -> None:
    made = pod("Running")
    made["metadata"]["labels"] = own
    assert task_of(made) == task and task.name == name
