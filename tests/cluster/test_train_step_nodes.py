"""The train step and the nodes of a real Kubernetes: one is drained, one lacks its devices, one never comes.

TRAINYARD_IMAGE names the image (images/Dockerfile, target cpu) of this very code that every node has.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from namespaces import until
from survival import INTERVAL, assert_survived
from train_step import IMAGE, POOL, Desk, Run

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]


def test_a_drained_node_gives_its_worker_to_another_on_the_pool_after_one_without_nodes(
    desk: Desk, calm: Run, run: Run
) -> None:
    nowhere = {"cloud.google.com/gke-nodepool": "none"}
    run.first = {"nodeSelector": nowhere, "spot": True, "pending_seconds": 5, "price_per_hour": 1.2}
    run.pool = {"price_per_hour": 3.6}
    run.start().reaches(20)
    node = run.namespace.kubectl("get", "pod", run.worker(1), "-o", "jsonpath={.spec.nodeName}")
    selector = f"--pod-selector=batch.kubernetes.io/job-name={run.gang}"
    try:
        run.namespace.kubectl("drain", node, selector, "--delete-emptydir-data", "--force", "--timeout=300s")
    finally:
        run.namespace.kubectl("uncordon", node)
    assert_survived(desk, run, calm)
    first, last = desk.attempts(run)
    assert (first["pool"], first["cost_usd"], first["preemptions"]) == ("first", 0.0, 0)
    assert re.search(r"waiting for worker 0 of 2 \(pod pending: .*didn't match.*\) for \d+ s", first["why"])
    assert first["waited_seconds"] >= 5 and last["waited_seconds"] > 0
    assert (last["pool"], last["preemptions"], last["why"]) == ("train", 1, "")
    assert last["cost_usd"] == pytest.approx(last["worker_seconds"] / 1000, rel=0.01) and last["cost_usd"] > 0
    evaluate = replace(run, task="evaluate", attempt=0).start()
    evaluate.ends()
    first, last = desk.attempts(evaluate)
    assert (first["step"], first["pool"], last["pool"], last["workers"]) == ("evaluate", "first", "train", 1)
    assert first["why"].startswith("waiting for worker 0 of 1 (pod pending: ") and last["cost_usd"] > 0
    assert [event["step"] for event in evaluate.event("done")] == ["evaluate"]
    job = evaluate.event("launched")[0]["job"]
    until(lambda: not run.namespace.left_of(job))


def test_an_elastic_gang_trains_on_the_node_that_is_left_and_on_both_once_the_other_is_back(
    desk: Desk, run: Run
) -> None:
    """The node of worker 0 is lost, so that worker 1 has to give up its own, of which each has room for one.

    On nodes that no other test uses: it would take the room of a worker, and miss a node that is cordoned.
    """
    run.epochs = 120  # the training must outlast both changes
    run.pool = {
        "workers": {"min": 1, "max": 2},
        "replace_seconds": 5,
        "nodeSelector": {"cloud.google.com/gke-nodepool": "tpu-2x4"},
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
        "resources": POOL["resources"] | {"requests": {"cpu": "60", "memory": "3Gi"}},
        "price_per_hour": 3.6,
    }
    run.start().says('"event": "workers", "workers": 2')  # on a slow machine, worker 0 begins alone
    run.reaches(2 * INTERVAL)
    pool = run.namespace.kubectl("get", "nodes", "-l", "cloud.google.com/gke-nodepool=tpu-2x4", "-o", "name").split()
    kept = run.namespace.kubectl("get", "pod", run.worker(1), "-o", "jsonpath={.spec.nodeName}")
    lost = [node for node in pool if node != f"node/{kept}"]
    try:
        run.namespace.kubectl("cordon", *lost)
        run.namespace.kubectl("delete", "pod", run.worker(0), "--wait=false")
        until(lambda: run.event("workers")[-1]["workers"] == 1 or run.has_ended())
    finally:
        run.namespace.kubectl("uncordon", *lost)
    gang = run.gang
    run.ends()
    until(lambda: not run.namespace.left_of(gang))
    training = desk.training(run)
    counts = [(count["workers"], count["maximum"]) for count in training["gang"]["worker_counts"]]
    counts = counts[counts.index((2, 2)) :]
    assert counts[:2] == [(2, 2), (1, 2)] and counts[2:] in ([], [(2, 2)]), run.log  # a fast training ends before
    assert [event["workers"] for event in run.event("gang_resized")][-2:] == [1, 2]
    (attempt,) = desk.attempts(run)
    assert (attempt["pool"], attempt["workers"], attempt["why"]) == ("train", 2, "")
    assert attempt["cost_usd"] == pytest.approx(attempt["worker_seconds"] / 1000, rel=0.01) and attempt["cost_usd"] > 0
    print("restarts:", json.dumps(training["gang"]["restarts"], indent=1))
    assert not any(restart["lost_steps"] for restart in training["gang"]["restarts"])
    assert [epoch["epoch"] for epoch in training["history"]] == list(range(1, 121))  # tests/faults compares the losses


def test_a_gpu_pod_that_sees_no_gpu_stops_at_once(run: Run) -> None:
    """The cluster's GPUs are made up: pods get them from the scheduler, and nothing is there."""
    run.pool = {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1, "nodeSelector": {}}
    with run.namespace.ends_of_containers() as ends:
        run.start().ends(code=40)
    assert "the pool should have 1 nvidia-l4, no /dev/nvidia* is there" in run.log
    seconds = [end.seconds for end in ends() if end.code == 40]
    assert seconds and max(seconds) <= 120, seconds  # half of the deadline of a start
    print("seconds from start to exit:", seconds)


def test_a_worker_that_never_comes_is_named_with_the_schedulers_reason(run: Run) -> None:
    run.pool = {"nodeSelector": {"cloud.google.com/gke-nodepool": "none"}, "start_deadline_seconds": 5}
    run.start().ends(code=30)
    assert re.search(r"waiting for worker 0 of 2 \(pod pending: 0/\d+ nodes are available: .*didn't match", run.log)
    until(lambda: not run.gang)
