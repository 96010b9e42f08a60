"""What a gang's pods say about it. The objects are cut down from those of a real API server (Kubernetes 1.34)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes import client

from trainyard.errors import ExitCode
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang.pods import outcome
from trainyard.steps.train.gang.pods.job import Gang

RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
GANG = Gang(
    run="digits",
    image="image:1",
    command=("work",),
    workers=4,
    pool=Pool.model_validate({"kind": "cpu", "resources": RESOURCES}),
    platform="kubernetes",
)
NO_NODE = (
    "0/6 nodes are available: 2 Insufficient nvidia.com/gpu, 4 node(s) didn't match Pod's node affinity/selector. "
    "no new claims to deallocate, preemption: 0/6 nodes are available: 2 No preemption victims found for incoming pod."
)


def pod(index: int, phase: str, created: str = "2026-11-21T02:00:00Z", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"gang-{index}-{created[-3:-1]}",
            "creationTimestamp": created,
            "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"nodeName": "gpu-0", "containers": [{"name": "worker"}]},
        "status": {"phase": phase, **status},
    }


def ended(index: int, code: int, message: str = "", reason: str = "Error", at: str = "02:01:00") -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": reason, "message": message, "finishedAt": f"2026-11-21T{at}Z"}
    return pod(index, "Failed", containerStatuses=[{"name": "worker", "state": {"terminated": terminated}}])


def job(*conditions: tuple[str, str]) -> dict[str, Any]:
    return {
        "spec": {},
        "status": {"conditions": [{"type": name, "status": "True", "reason": why} for name, why in conditions]},
    }


def pending(index: int, message: str) -> dict[str, Any]:
    return pod(index, "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def test_a_worker_without_a_node_is_waited_for_with_the_schedulers_reason() -> None:
    worker = outcome.workers(4, [pod(0, "Running"), pending(2, NO_NODE)])[2]
    assert outcome.missing(GANG, worker) == (
        "waiting for worker 2 of 4 (pod pending: 0/6 nodes are available: 2 Insufficient nvidia.com/gpu, "
        "4 node(s) didn't match Pod's node affinity/selector)"
    )


def started(index: int, state: client.V1ContainerState, name: str = "worker") -> dict[str, Any]:
    """Return a pod of the client's own model as the launcher's calls return it."""
    container = client.V1ContainerStatus(
        name=name, state=state, image="image:1", image_id="1", ready=True, restart_count=0
    )
    made = client.V1Pod(
        metadata=client.V1ObjectMeta(name="gang-0", labels={"batch.kubernetes.io/job-completion-index": str(index)}),
        status=client.V1PodStatus(phase="Running", container_statuses=[container]),
    )
    plain: dict[str, Any] = client.ApiClient().sanitize_for_serialization(made)
    return plain


def at(seconds: int) -> datetime:
    return datetime(2026, 11, 21, 2, 0, 0, tzinfo=UTC) + timedelta(seconds=seconds)


def test_the_queue_ends_when_worker_0_first_starts_whichever_launcher_asks() -> None:
    made = client.V1Job(metadata=client.V1ObjectMeta(creation_timestamp=at(0)))
    manifest = client.ApiClient().sanitize_for_serialization(made)
    waiting = client.V1ContainerState(waiting=client.V1ContainerStateWaiting(reason="ContainerCreating"))
    running = client.V1ContainerState(running=client.V1ContainerStateRunning(started_at=at(90)))
    earlier = client.V1ContainerState(
        terminated=client.V1ContainerStateTerminated(exit_code=143, started_at=at(40), finished_at=at(60))
    )
    assert outcome.queue_seconds(manifest, []) is None
    assert outcome.queue_seconds(manifest, [started(0, waiting), started(1, running), pending(0, NO_NODE)]) is None
    assert outcome.queue_seconds(manifest, [started(0, running, name="sidecar"), started(0, running)]) == 90.0
    assert outcome.queue_seconds(manifest, [started(0, running), started(0, earlier)]) == 40.0


def test_the_newest_pod_of_an_index_speaks_for_the_worker() -> None:
    pods = [pod(0, "Running", created="2026-11-21T02:00:09Z"), pod(0, "Failed"), pod(1, "Succeeded")]
    assert [worker.state for worker in outcome.workers(3, pods)] == ["running", "done", "absent"]


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_had_is_broken_and_not_late(reason: str) -> None:
    waiting = {"state": {"waiting": {"reason": reason, "message": "no such image"}}}
    worker = outcome.workers(1, [pod(0, "Pending", containerStatuses=[waiting])])[0]
    assert worker.broken
    assert worker.reason == f"pod pending: {reason}: no such image"


def test_a_gang_at_work_has_not_failed_even_when_a_pod_was_lost() -> None:
    assert outcome.failure(GANG, job(), [ended(1, 143), pod(0, "Running")]) is None


@pytest.mark.parametrize("code", [10, 20, 30, 40, 50])
def test_the_code_of_the_worker_becomes_the_launchers(code: int) -> None:
    error = outcome.failure(GANG, job(("Failed", "BackoffLimitExceeded")), [ended(3, code, "boom")])
    assert error is not None and error.exit_code == ExitCode(code)
    assert "worker 3 of 4 (pod gang-3-00 on gpu-0) ended with exit code" in str(error)


def test_a_crash_counts_as_a_bug() -> None:
    error = outcome.failure(GANG, job(("Failed", "BackoffLimitExceeded")), [ended(3, 139)])
    assert error is not None and error.exit_code == ExitCode.BUG


def test_the_worker_that_caused_the_end_is_named_and_not_its_peers() -> None:
    pods = [ended(0, 30, "peer lost", at="02:00:05"), ended(1, 10, "bad row", at="02:00:09"), ended(2, 143)]
    error = outcome.failure(GANG, job(("FailureTarget", "PodFailurePolicy")), pods)
    assert error is not None and error.exit_code == ExitCode.DATA
    assert "worker 1" in str(error) and "bad row" in str(error)


@pytest.mark.parametrize(
    "log",
    [
        'noise\n{"event": "failed", "step": "train", "code": 10, "message": "row 7: no label."}\n'
        "last words of a library",
        "nothing before\nrow 7: no label.\n\n",
    ],
)
def test_the_workers_own_sentence_is_found_in_its_last_lines(log: str) -> None:
    error = outcome.failure(GANG, job(("Failed", "PodFailurePolicy")), [ended(1, 10, log)])
    assert str(error).endswith("ended with exit code 10: row 7: no label.")


def test_one_kill_for_memory_is_forgiven_and_the_second_ends_the_gang() -> None:
    killed = ended(1, 137, reason="OOMKilled")
    assert outcome.failure(GANG, job(), [killed]) is None
    error = outcome.failure(GANG, job(), [killed, killed])
    assert error is not None and error.exit_code == ExitCode.INFRASTRUCTURE
    assert "killed for exceeding its memory limit of 2Gi. Raise resources.limits.memory" in str(error)


def test_a_gang_that_ran_too_long_says_which_value_to_raise() -> None:
    error = outcome.failure(GANG, job(("Failed", "DeadlineExceeded")), [ended(0, 143)])
    assert error is not None and "Raise timeout_seconds.train" in str(error)
