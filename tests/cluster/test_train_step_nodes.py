"""The train step and the nodes of a real Kubernetes: one is drained, one lacks its devices, one never comes.

TRAINYARD_IMAGE names the image (images/Dockerfile, target cpu) of this very code that every node has.
"""

from __future__ import annotations

import re

import pytest
from namespaces import until
from survival import assert_survived
from train_step import IMAGE, Desk, Run

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]


def test_a_drained_node_gives_its_worker_to_another(desk: Desk, calm: Run, run: Run) -> None:
    run.start().reaches(20)
    node = run.namespace.kubectl("get", "pod", run.worker(1), "-o", "jsonpath={.spec.nodeName}")
    selector = f"--pod-selector=batch.kubernetes.io/job-name={run.gang}"
    try:
        run.namespace.kubectl("drain", node, selector, "--delete-emptydir-data", "--force", "--timeout=60s")
    finally:
        run.namespace.kubectl("uncordon", node)
    assert_survived(desk, run, calm)


def test_a_gpu_pod_that_sees_no_gpu_stops_within_ten_seconds(run: Run) -> None:
    """The cluster's GPUs are made up: pods get them from the scheduler, and nothing is there."""
    run.pool = {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1, "nodeSelector": {}}
    with run.namespace.ends_of_containers() as ends:
        run.start().ends(code=40)
    assert "the pool should have 1 nvidia-l4, no /dev/nvidia* is there" in run.log
    seconds = [end.seconds for end in ends() if end.code == 40]
    assert seconds and max(seconds) <= 10, seconds
    print("seconds from start to exit:", seconds)


def test_a_worker_that_never_comes_is_named_with_the_schedulers_reason(run: Run) -> None:
    run.pool = {"nodeSelector": {"cloud.google.com/gke-nodepool": "none"}, "start_deadline_seconds": 5}
    run.start().ends(code=30)
    assert re.search(r"waiting for worker 0 of 2 \(pod pending: 0/\d+ nodes are available: .*didn't match", run.log)
    until(lambda: not run.gang, 10)
