"""Kueue's own controller admits a gang, or lets it wait. Skipped where the cluster has no Kueue."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import plans
import pytest
from launcher import gang
from namespaces import Namespace, until

pytestmark = pytest.mark.cluster

QUOTAS = {"cpu": "10", "memory": "10Gi", "ephemeral-storage": "100Gi"}


@pytest.fixture(scope="module")
def queues(namespace: Namespace) -> Iterator[Namespace]:
    """The queue `roomy`, and `full`, which has room for one worker of two."""
    if "NotFound" in namespace.kubectl("get", "crd", "clusterqueues.kueue.x-k8s.io", check=False):
        pytest.skip("the cluster has no Kueue")
    names = {queue: f"{namespace.name}-{queue}" for queue in ("roomy", "full")}
    created = [{"kind": "ResourceFlavor", "metadata": {"name": namespace.name}}]
    for queue, cpu in (("roomy", "10"), ("full", "150m")):
        resources = [{"name": name, "nominalQuota": size} for name, size in (QUOTAS | {"cpu": cpu}).items()]
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": [*QUOTAS],
                    "flavors": [{"name": namespace.name, "resources": resources}],
                }
            ],
        }
        created.append({"kind": "ClusterQueue", "metadata": {"name": names[queue]}, "spec": spec})
        created.append({"kind": "LocalQueue", "metadata": {"name": queue}, "spec": {"clusterQueue": names[queue]}})
    for definition in created:
        manifest = {"apiVersion": "kueue.x-k8s.io/v1beta1", **definition}
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    try:
        yield namespace
    finally:
        for name in names.values():
            namespace.kubectl("delete", "clusterqueue", name, "--wait=false")
        namespace.kubectl("delete", "resourceflavor", namespace.name, "--wait=false")


def test_a_gang_is_admitted_by_its_queue_and_trains(queues: Namespace) -> None:
    plan = plans.plan("admitted", plans.MEET, "1", queue="roomy")
    launcher = queues.launch(plan)
    assert launcher.code() == 0, launcher.log
    assert "to be admitted by queue 'roomy'" in launcher.log
    assert "worker 0 met 2" in launcher.log
    until(lambda: not queues.left_of(gang(plan).name))


def test_an_elastic_gang_is_admitted_with_the_workers_that_its_queue_has_room_for(queues: Namespace) -> None:
    plan = plans.plan("partly", plans.WORK, queue="full", min_workers=1)
    launcher = queues.launch(plan)
    launcher.says('"event": "progress"')
    (job,) = [item for item in queues.get("jobs") if item["metadata"]["name"] == gang(plan).name]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (1, 1)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    until(lambda: not queues.left_of(gang(plan).name))


def test_a_gang_that_its_queue_has_no_room_for_waits_as_a_whole_and_past_its_start_deadline(queues: Namespace) -> None:
    plan = plans.plan("waits", plans.MEET, "0", queue="full", start_deadline_seconds=2)
    launcher = queues.launch(plan)
    launcher.says("to be admitted by queue 'full'")
    workload = until(lambda: [item for item in queues.get("workloads") if gang(plan).name in item["metadata"]["name"]])
    until(lambda: "insufficient" in json.dumps(queues.get("workloads")))
    assert workload and not queues.pods(gang(plan).name) and launcher.process.poll() is None
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    until(lambda: not queues.left_of(gang(plan).name))
