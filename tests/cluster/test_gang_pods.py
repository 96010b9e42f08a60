"""Gangs on a real Kubernetes: they end as they should, whatever happens to their launcher, and leave nothing."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import plans
import pytest
from launcher import gang
from namespaces import Namespace, until

from trainyard.steps.train.gang.pods.job import worker_job
from trainyard_control.kubeflow.runs import findings

pytestmark = pytest.mark.cluster


def launcher_pod(namespace: Namespace, name: str, **metadata: Any) -> None:
    """Leave a running pod that stands for the one that the launcher is in; it ignores SIGTERM for its 5 s of grace."""
    spec = worker_job(gang(plans.plan("own", plans.SLEEP)))["spec"]["template"]["spec"] | {"subdomain": None}
    spec["containers"][0]["env"] = []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    namespace.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Running", "--timeout=300s")


def worker_1(namespace: Namespace, gang: str) -> dict[str, Any]:
    """Return the metadata of the pod of worker 1, which is the only one of its."""
    (pod,) = [pod for pod in namespace.pods(gang) if f"{gang}-1" in pod["metadata"]["name"]]
    return dict(pod["metadata"])


def replaced(namespace: Namespace, gang: str, victim: str) -> bool:
    """Whether another pod than the `victim` runs worker 1."""
    running = [pod["metadata"]["name"] for pod in namespace.pods(gang) if pod["status"]["phase"] == "Running"]
    return victim not in running and any(f"{gang}-1" in pod for pod in running)


def processes(uid: str) -> list[int]:
    """Return the processes of the pod with the `uid`, as this machine numbers them; none if its node is another."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if uid in path.read_text().replace("_", "-"):
                found.append(int(path.parent.name))
    return found


def test_cancel_lets_the_workers_save_and_leaves_nothing(namespace: Namespace) -> None:
    plan = plans.plan("cancel", plans.WORK)
    launcher = namespace.launch(plan)
    launcher.says('"progress", "done": 5,')
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    assert "checkpoint saved" in launcher.log, launcher.log
    until(lambda: not namespace.left_of(gang(plan).name))


def test_a_launcher_that_was_killed_finds_its_own_gang_again(namespace: Namespace) -> None:
    plan = plans.plan("again", plans.WORK)
    first = namespace.launch(plan)
    first.says('"progress", "done": 5,')
    before = {pod["metadata"]["uid"] for pod in namespace.pods(gang(plan).name)}
    first.process.kill()
    second = namespace.launch(plan)
    second.says('"how": "attached"')
    second.says('"progress", "done": 10,')
    queued = [re.findall(r'"queued", "seconds": [^,}]+', launcher.log) for launcher in (first, second)]
    assert queued[0] == queued[1] and len(queued[0]) == 1
    assert {pod["metadata"]["uid"] for pod in namespace.pods(gang(plan).name)} == before
    second.process.send_signal(signal.SIGTERM)
    assert second.code() == 143
    until(lambda: not namespace.left_of(gang(plan).name))


def test_another_plan_under_the_same_name_is_refused_and_the_gang_stays(namespace: Namespace) -> None:
    first = namespace.launch(plans.plan("same", plans.WORK))
    first.says('"running": 2')
    other = namespace.launch(plans.plan("same", plans.WORK, grace_seconds=6))
    assert other.code() == 20
    assert "was made by another plan" in other.log
    assert len(namespace.pods(gang(plans.plan("same", plans.WORK)).name)) == 2
    first.process.send_signal(signal.SIGTERM)
    assert first.code() == 143


def test_the_gang_goes_when_the_launchers_pod_is_deleted(namespace: Namespace) -> None:
    launcher_pod(namespace, "launcher")
    plan = plans.plan("owned", plans.WORK)
    launcher = namespace.launch(plan, "launcher")
    launcher.says('"running": 2')
    launcher.process.kill()
    namespace.kubectl("delete", "pod", "launcher", "--wait=false")
    until(lambda: not namespace.left_of(gang(plan).name))


def test_the_gang_outlives_a_launcher_that_is_moved_and_goes_with_the_run(namespace: Namespace) -> None:
    namespace.kubectl("create", "configmap", "run")  # stands for the Workflow that owns a launcher's pod
    run = json.loads(namespace.kubectl("get", "configmap", "run", "-o", "json"))["metadata"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "run", "uid": run["uid"]}
    launcher_pod(namespace, "moved", ownerReferences=[owner])
    plan = plans.plan("moved", plans.WORK)
    launcher = namespace.launch(plan, "moved")
    launcher.says('"progress", "done": 3,')
    namespace.evict("moved")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    assert "gang_detached" in launcher.log, launcher.log
    successor = namespace.launch(plan)
    successor.says('"how": "attached"')
    successor.says('"running": 2')
    successor.process.kill()
    namespace.kubectl("delete", "configmap", "run")
    until(lambda: not namespace.left_of(gang(plan).name))


def test_the_gang_outlives_a_launcher_whose_pod_is_deleted_by_force_as_with_a_lost_node(namespace: Namespace) -> None:
    namespace.kubectl("create", "configmap", "forced")  # stands for the Workflow that owns a launcher's pod
    run = json.loads(namespace.kubectl("get", "configmap", "forced", "-o", "json"))["metadata"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "forced", "uid": run["uid"]}
    launcher_pod(namespace, "forced", ownerReferences=[owner])
    plan = plans.plan("forced", plans.WORK)
    launcher = namespace.launch(plan, "forced")
    launcher.says('"progress", "done": 3,')
    before = {pod["metadata"]["uid"] for pod in namespace.pods(gang(plan).name)}
    namespace.kubectl("delete", "pod", "forced", "--grace-period=0", "--force")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    assert "gang_detached" in launcher.log, launcher.log
    successor = namespace.launch(plan)
    successor.says('"how": "attached"')
    assert {pod["metadata"]["uid"] for pod in namespace.pods(gang(plan).name)} == before
    successor.process.kill()
    namespace.kubectl("delete", "configmap", "forced")
    until(lambda: not namespace.left_of(gang(plan).name))


def test_a_gangs_workers_are_closed_to_all_others_by_a_policy_that_goes_with_it(namespace: Namespace) -> None:
    plan = plans.plan("closed", plans.WORK)
    name = gang(plan).name
    launcher = namespace.launch(plan)
    launcher.says('"running": 2')
    (policy,) = [item for item in namespace.get("networkpolicies") if item["metadata"]["name"] == name]
    (rule,) = policy["spec"]["ingress"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert rule["from"] == [{"podSelector": {"matchLabels": selected}}]
    assert selected["app.kubernetes.io/instance"] == name
    labels = ",".join(f"{key}={value}" for key, value in selected.items())
    assert len(json.loads(namespace.kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]) == 2
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
    until(lambda: name not in namespace.kubectl("get", "networkpolicies"))


def test_pods_that_admission_refuses_are_explained(namespace: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    try:
        until(lambda: namespace.kubectl("get", "resourcequota", "none", "-o", "jsonpath={.status.hard.pods}") == "0")
        launcher = namespace.launch(plans.plan("refused", plans.MEET, "0", start_deadline_seconds=3))
        assert launcher.code() == 30, launcher.log
        assert "waiting for worker 0 of 2 (no pod: Error creating: pods" in launcher.log
        assert "exceeded quota: none" in launcher.log
    finally:
        namespace.kubectl("delete", "resourcequota", "none")


def test_bad_data_ends_the_gang_at_once_with_the_workers_own_words(namespace: Namespace) -> None:
    plan = plans.plan("bad", plans.FAIL, "10")
    launcher = namespace.launch(plan)
    assert launcher.code() == 10, launcher.log
    assert "worker 1 of 2" in launcher.log and "row 7: no label." in launcher.log
    until(lambda: not namespace.left_of(gang(plan).name))


def test_a_preempted_worker_is_replaced_and_spends_no_failure(namespace: Namespace) -> None:
    plan = plans.plan("evict", plans.WORK)
    launcher = namespace.launch(plan)
    launcher.says('"progress", "done": 3,')
    name = gang(plan).name
    victim = worker_1(namespace, name)["name"]
    namespace.evict(victim)
    until(lambda: replaced(namespace, name, victim))
    job = json.loads(namespace.kubectl("get", "job", name, "-o", "json"))
    assert not job["status"].get("failed"), job["status"]
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143


def test_a_pod_whose_processes_all_stand_still_is_killed_and_replaced(namespace: Namespace) -> None:
    plan = plans.plan("still", plans.WORK, start_deadline_seconds=300)
    launcher = namespace.launch(plan)
    name = gang(plan).name

    def started() -> bool:
        return [pod["status"]["containerStatuses"][0]["started"] for pod in namespace.pods(name)] == [True, True]

    launcher.says('"running": 2')
    until(started)
    victim = worker_1(namespace, name)
    if not (own := processes(victim["uid"])):
        pytest.skip("the nodes' processes are not on this machine")
    try:
        for process in own:
            os.kill(process, signal.SIGSTOP)
    except PermissionError:
        pytest.skip("only root may stop the processes of a pod")
    until(lambda: replaced(namespace, name, victim["name"]))
    told = findings(namespace.cluster, namespace.pods(name), namespace.get("jobs"))
    assert any("stood still, and its node killed it. Its Job replaces it" in finding.sentence for finding in told), told
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.code() == 143
