"""Kueue's own controller admits a gang, or lets it wait. Skipped where the cluster has no Kueue."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plans
import pytest
from launcher import gang
from namespaces import Namespace, until
from test_doctor import CPU, doctor

pytestmark = pytest.mark.cluster

QUOTAS = {"cpu": "10", "memory": "10Gi", "ephemeral-storage": "100Gi"}


@pytest.fixture(scope="module")
def queues(namespace: Namespace) -> Iterator[Namespace]:
    """The queues `roomy`, `full`, which has room for one worker of two, and `changing`, for `change_queue`."""
    if "NotFound" in namespace.kubectl("get", "crd", "clusterqueues.kueue.x-k8s.io", check=False):
        pytest.skip("the cluster has no Kueue")
    cores = {"roomy": "10", "full": "150m", "changing": "10"}
    names = {queue: f"{namespace.name}-{queue}" for queue in cores}
    created = [{"kind": "ResourceFlavor", "metadata": {"name": namespace.name}}]
    for queue, cpu in cores.items():
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
        manifest = {"apiVersion": "kueue.x-k8s.io/v1beta2", **definition}
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    try:
        yield namespace
    finally:
        for name in names.values():
            namespace.kubectl("delete", "clusterqueue", name, "--wait=false")
        namespace.kubectl("delete", "resourceflavor", namespace.name, "--wait=false")


def change_queue(
    queues: Namespace, *, selector: dict[str, Any] | None, cluster_policy: str = "None", local_policy: str = "None"
) -> None:
    """Set the namespaceSelector and the stopPolicies of the queue `changing`."""
    fields = {"namespaceSelector": selector, "stopPolicy": cluster_policy}
    for kind, name, values in (
        ("clusterqueue", f"{queues.name}-changing", fields),
        ("localqueue", "changing", {"stopPolicy": local_policy}),
    ):
        patch = [{"op": "add", "path": f"/spec/{field}", "value": value} for field, value in values.items()]
        queues.kubectl("patch", kind, name, "--type=json", "-p", json.dumps(patch))


def test_a_gang_is_admitted_by_its_queue_and_trains(queues: Namespace) -> None:
    plan = plans.plan("admitted", plans.MEET, "1", queue="roomy")
    launcher = queues.launch(plan)
    assert launcher.code() == 0, launcher.log
    admitted = {event["involvedObject"]["name"] for event in queues.get("events") if event["reason"] == "Admitted"}
    assert any(gang(plan).name in workload for workload in admitted)
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
    launcher.says("to be admitted by queue 'full': couldn't assign flavors to pod set main: insufficient quota for cpu")
    time.sleep(4)  # longer than the start deadline
    assert not queues.pods(gang(plan).name) and launcher.process.poll() is None, launcher.log
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    until(lambda: not queues.left_of(gang(plan).name))


def test_a_gang_that_its_queue_evicts_waits_and_trains_again(queues: Namespace) -> None:
    change_queue(queues, selector={})
    plan = plans.plan("evicted", plans.WORK, queue="changing", start_deadline_seconds=60)
    launcher = queues.launch(plan)
    launcher.says('"event": "progress"')
    waits = launcher.log.count("to be admitted by queue 'changing'")
    change_queue(queues, selector={}, local_policy="HoldAndDrain")
    until(lambda: launcher.log.count("to be admitted by queue 'changing'") > waits)
    until(lambda: not queues.pods(gang(plan).name))
    change_queue(queues, selector={})
    progress = launcher.log.count('"event": "progress"')
    until(lambda: launcher.log.count('"event": "progress"') > progress)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    until(lambda: not queues.left_of(gang(plan).name))


def test_doctor_tells_which_queue_can_hold_a_gang(queues: Namespace) -> None:
    def found(queue: str) -> tuple[str, str]:
        checks, _ = doctor(queues, pools={"cpu": CPU | {"workers": 2, "queue": queue}})
        assert checks[f"queue {queue}"] == ("good", "exists")
        return checks[f"quota of queue {queue}"]

    assert found("roomy") == ("good", f"ClusterQueue '{queues.name}-roomy' can hold the 2 pods of pool 'cpu'")
    verdict, sentence = found("full")
    assert verdict == "bad" and "Kueue never admits the 2 pods of pool 'cpu'" in sentence
    assert f" of 0.15 cpu, the quota of flavor '{queues.name}'" in sentence


@pytest.mark.parametrize(
    ("selector", "stop_policies", "remedy"),
    [
        (None, ("None", "None"), "{} selects all namespaces"),
        ({"matchLabels": {"team": "other"}}, ("None", "None"), "{} selects all namespaces"),
        ({}, ("Hold", "None"), "Set its stopPolicy to None"),
        ({}, ("None", "Hold"), "LocalQueue is stopped. Set its stopPolicy to None"),
    ],
    ids=["no selector", "other namespaces", "stopped ClusterQueue", "stopped LocalQueue"],
)
def test_doctor_tells_why_a_queue_admits_nothing(
    queues: Namespace, selector: dict[str, Any] | None, stop_policies: tuple[str, str], remedy: str
) -> None:
    change_queue(queues, selector=selector, cluster_policy=stop_policies[0], local_policy=stop_policies[1])

    def verdict() -> bool:
        checks, _ = doctor(queues, pools={"cpu": CPU | {"workers": 2, "queue": "changing"}})
        verdict, sentence = checks["quota of queue changing"]
        return verdict == "bad" and sentence.endswith(remedy)

    until(verdict, 60)  # Kueue has to see the change first


def test_kueue_accepts_the_queues_of_k8s(queues: Namespace) -> None:
    file = Path(__file__).parents[2] / "k8s/components/kueue/queues.yaml"
    queues.kubectl("apply", "--dry-run=server", "-f", str(file))
