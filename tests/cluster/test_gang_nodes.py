"""Gangs and the nodes of a real Kubernetes: workers start where they should, or the launcher says why not."""

from __future__ import annotations

import json
import re

import plans
import pytest
from launcher import gang
from namespaces import Namespace, until

from trainyard.steps.train.gang.pods.job import headless_service, network_policy, owner_reference, worker_job

pytestmark = pytest.mark.cluster


def nodes(namespace: Namespace, name: str) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "") for pod in namespace.pods(name))


@pytest.mark.parametrize("pool", ["cpu", "gpu", "tpu", "slice"])
def test_the_manifests_pass_restricted_at_the_api_server(namespace: Namespace, pool: str) -> None:
    plan = plans.plan("dry", plans.MEET, "0", pool=pool, queue="research", volume={"claim": "runs", "path": "/runs"})
    owner = owner_reference("v1", "Pod", "launcher", "0")
    job = worker_job(gang(plan), owner)
    # A Job's own admission warns only; its pods are refused, so the template is tried as a pod.
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dry"}, "spec": job["spec"]["template"]["spec"]}
    for manifest in (job, pod, headless_service(gang(plan), "0"), network_policy(gang(plan), "0")):
        output = namespace.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest))
        assert "created (server dry run)" in output and "Warning" not in output, output


def test_the_workers_start_on_two_nodes_and_meet_by_name(namespace: Namespace) -> None:
    plan = plans.plan("meet", plans.MEET, "3")
    launcher = namespace.launch(plan)
    launcher.says('"running": 2')
    assert nodes(namespace, gang(plan).name) == ["cpu-0", "cpu-1"]
    assert launcher.code() == 0, launcher.log
    assert "worker 0 met 2" in launcher.log, "the log of worker 0 is passed on"
    assert "worker 1 met 2" not in launcher.log
    until(lambda: not namespace.left_of(gang(plan).name))


@pytest.mark.parametrize(("pool", "workers", "expected"), [("gpu", 2, ["gpu-0", "gpu-1"]), ("tpu", 1, ["tpu-0"])])
def test_the_workers_land_on_the_pool_with_its_devices(
    namespace: Namespace, pool: str, workers: int, expected: list[str]
) -> None:
    plan = plans.plan(f"on-{pool}", plans.MEET, "2", pool=pool, workers=workers)
    launcher = namespace.launch(plan)
    launcher.says(f'"running": {workers}')
    assert nodes(namespace, gang(plan).name) == expected
    assert launcher.code() == 0, launcher.log


def test_a_worker_that_no_node_takes_ends_with_the_schedulers_reason(namespace: Namespace) -> None:
    plan = plans.plan("never", plans.MEET, "0", pool="gpu", workers=3, start_deadline_seconds=5)
    launcher = namespace.launch(plan)
    assert launcher.code() == 30, launcher.log
    reason = r"waiting for worker \d of 3 \(pod pending: 0/\d+ nodes are available: .*\d Insufficient nvidia.com/gpu"
    assert re.search(reason, launcher.log), launcher.log
    until(lambda: not namespace.left_of(gang(plan).name))
