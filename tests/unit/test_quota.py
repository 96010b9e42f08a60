"""Whether Kueue's queues are active and can hold the pods of a pool, from its API's objects.

Source: https://github.com/kubernetes-sigs/kueue/blob/v0.19.2/pkg/controller/core/localqueue_controller.go (Reconcile).
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiException

from trainyard.kubernetes.client import Cluster
from trainyard.spec import environment as environments
from trainyard.spec.environment import Environment
from trainyard_control.cluster.queues import Quota, admission, pod_integration
from trainyard_control.kubeflow.doctor import _queues


def cluster_queue(*flavors: tuple[str, str], **spec: Any) -> dict[str, Any]:
    listed = [{"name": name, "resources": [{"name": "cpu", "nominalQuota": quota}]} for name, quota in flavors]
    groups = [{"coveredResources": ["cpu"], "flavors": listed}]
    return {
        "kind": "ClusterQueue",
        "metadata": {"name": "research"},
        "spec": {"namespaceSelector": {}, "stopPolicy": "None", "resourceGroups": groups, **spec},
        "status": {"conditions": [{"type": "Active", "status": "True", "message": "Can admit new workloads"}]},
    }


def pod(cpu: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "resources": {"requests": {"cpu": cpu}}}]}}


LOCAL = {"kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": "research"}}


def test_a_queue_without_a_cohort_holds_at_most_its_largest_quota_of_a_flavor() -> None:
    queue = cluster_queue(("red", "3500m"), ("blue", "2"))
    assert admission("gang", pod("1"), 3, LOCAL, Quota(queue)).verdict == "good"
    check = admission("gang", pod("1"), 4, LOCAL, Quota(queue))
    assert check.sentence == (
        "Kueue never admits the 4 pods of pool 'gang', which ask for 4 cpu of 3.5 cpu, the quota of flavor 'red' "
        "in ClusterQueue 'research'. Ask for less, or raise the quota"
    )
    assert (check.verdict, check.code) == ("bad", 40)


@pytest.mark.parametrize("key", ["cohort", "cohortName"])  # v1beta1, v1beta2
def test_only_kueue_knows_what_a_queue_borrows(key: str) -> None:
    queue = cluster_queue(("red", "3"), **{key: "all"})
    assert admission("gang", pod("1"), 3, LOCAL, Quota(queue)).verdict == "good"
    check = admission("gang", pod("1"), 4, LOCAL, Quota(queue))
    assert check.verdict == "unknown" and check.sentence.endswith("only with quota that it borrows")


@pytest.mark.parametrize(
    ("own", "lender", "verdict"),
    [
        ({}, {}, "unknown"),  # 3 of its own and 2 of the other
        ({"borrowingLimit": "1"}, {}, "bad"),
        ({}, {"lendingLimit": "1"}, "bad"),
    ],
    ids=str,
)
def test_a_cohort_lends_no_more_than_its_limits(own: dict[str, str], lender: dict[str, str], verdict: str) -> None:
    queue, other = cluster_queue(("red", "3"), cohortName="all"), cluster_queue(("red", "2"), cohortName="all")
    for each, limits in ((queue, own), (other, lender)):
        each["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0] |= limits
    check = admission("gang", pod("1"), 5, LOCAL, Quota(queue, lenders=[other]))
    assert check.verdict == verdict
    assert verdict == "unknown" or "of 4 cpu, the quota of flavor 'red' in ClusterQueue" in check.sentence
    check = admission("gang", pod("1"), 6, LOCAL, Quota(queue, lenders=[other]))
    assert check.verdict == "bad"


def test_a_flavor_of_other_nodes_gives_the_pool_nothing() -> None:
    flavors = {
        "small": {"spec": {"nodeLabels": {"pool": "small"}}},
        "large": {"spec": {"nodeLabels": {"pool": "large"}, "nodeTaints": [{"key": "large", "effect": "NoSchedule"}]}},
    }
    quota = Quota(cluster_queue(("small", "64"), ("large", "3")), flavors)
    large = pod("1")
    large["spec"] |= {"nodeSelector": {"pool": "large"}, "tolerations": [{"key": "large", "operator": "Exists"}]}
    assert admission("gang", large, 3, LOCAL, quota).verdict == "good"
    check = admission("gang", large, 4, LOCAL, quota)
    assert check.verdict == "bad" and "4 cpu of 3 cpu, the quota of flavor 'large'" in check.sentence
    large["spec"]["tolerations"] = []
    assert admission("gang", large, 1, LOCAL, quota).sentence == (
        "Kueue never admits a pod of pool 'gang': ClusterQueue 'research' has no flavor of the pool's nodes for cpu "
        "('small' is of nodes with pool=small; 'large' has the taint large:NoSchedule). Correct the pool's "
        "nodeSelector and tolerations, or add a flavor"
    )


def test_all_that_a_pod_asks_of_a_group_comes_from_one_flavor() -> None:
    queue = cluster_queue(("red", "8"), ("blue", "2"))
    (group,) = queue["spec"]["resourceGroups"]
    group["coveredResources"].append("memory")
    for flavor, memory in zip(group["flavors"], ("1Gi", "8Gi"), strict=True):
        flavor["resources"].append({"name": "memory", "nominalQuota": memory})
    asked = pod("4")
    asked["spec"]["containers"][0]["resources"]["requests"]["memory"] = "4Gi"
    check = admission("cpu", asked, 1, LOCAL, Quota(queue))
    assert check.verdict == "bad" and "4 GiB of memory of 1 GiB of memory, the quota of flavor 'red'" in check.sentence


def test_a_queue_that_cannot_admit_for_other_reasons_says_them() -> None:
    queue = cluster_queue(("red", "10"))
    assert "no ClusterQueue 'research'" in admission("cpu", pod("1"), 1, LOCAL, Quota(None)).sentence
    disk = pod("1")
    disk["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "10Gi"
    check = admission("cpu", disk, 1, LOCAL, Quota(queue))
    assert check.verdict == "unknown" and "covers no ephemeral-storage" in check.sentence
    stopped = {"type": "Active", "status": "False", "reason": "Stopped", "message": "LocalQueue is stopped"}
    check = admission("cpu", pod("1"), 1, LOCAL | {"status": {"conditions": [stopped]}}, Quota(queue))
    assert check.verdict == "bad"
    assert check.sentence == "LocalQueue 'team' admits nothing: LocalQueue is stopped. Set its stopPolicy to None"
    missing = {"reason": "FlavorNotFound", "message": "Can't admit new workloads: FlavorNotFound"}
    queue["status"]["conditions"] = [stopped | missing]
    check = admission("cpu", pod("1"), 1, LOCAL, Quota(queue))
    assert (
        check.verdict == "bad"
        and "admits nothing: Can't admit new workloads: FlavorNotFound. Correct it" in check.sentence
    )


@pytest.mark.parametrize(
    ("selector", "verdicts"),
    [
        (None, ("bad", "bad")),  # Kueue's default selects no namespace
        ({}, ("good", "good")),
        ({"matchLabels": {"team": "research"}}, ("good", "good")),
        ({"matchLabels": {"team": "other"}}, ("bad", "good")),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["research"]}]}, ("bad", "good")),
    ],
    ids=str,
)
def test_a_cluster_queue_admits_only_from_the_namespaces_that_it_selects(
    selector: dict[str, Any] | None, verdicts: tuple[str, str]
) -> None:
    """The second verdict is without permission to read the labels of the namespace."""
    queue = cluster_queue(("red", "10"), namespaceSelector=selector)
    for labels, verdict in zip(({"team": "research"}, None), verdicts, strict=True):
        check = admission("cpu", pod("1"), 1, LOCAL, Quota(queue), labels)
        assert check.verdict == verdict and (verdict == "good" or "namespaceSelector" in check.sentence)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("integrations: {frameworks: [batch/job, pod]}", "good"),
        ("integrations: {frameworks: [batch/job]}", "bad"),
        ("apiVersion: config.kueue.x-k8s.io/v1beta2", "bad"),  # Kueue's default is Jobs alone
        (None, "unknown"),
    ],
)
def test_steps_queue_only_with_kueues_integration_of_pods(text: str | None, verdict: str) -> None:
    config = {"data": {"controller_manager_config.yaml": text}} if text else None
    assert pod_integration(config).verdict == verdict


class Server:
    """An API server with these answers; every other path is unknown to it."""

    configuration = SimpleNamespace(host="https://api.example")

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def call_api(self, path: str, *_: Any, **__: Any) -> SimpleNamespace:
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            raise ApiException(status=answer)
        return SimpleNamespace(data=json.dumps(answer).encode())


def queued() -> Environment:
    environment = environments.load("gke")
    pool = environment.pools["gpu-l4"].model_copy(update={"workers": 2, "queue": "team"})
    return environment.model_copy(update={"pools": environment.pools | {"gpu-l4": pool}})


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_doctor_asks_for_the_quota_in_each_version_of_kueues_api(version: str) -> None:
    environment = queued()
    api = f"/apis/kueue.x-k8s.io/{version}"
    answers: dict[str, Any] = {
        f"{api}/namespaces/{environment.namespace}/localqueues/team": LOCAL,
        f"{api}/clusterqueues/research": cluster_queue(("red", "10")),
    }
    present, checked = _queues(Cluster(Server(answers), environment.namespace), environment, {}, None)
    assert (present.name, present.verdict) == ("queue team", "good")
    assert (
        checked.verdict == "bad" and "the 2 pods of pool 'gpu-l4', which ask for 12 cpu of 10 cpu" in checked.sentence
    )
    answers[f"{api}/clusterqueues/research"] = 403
    _, checked = _queues(Cluster(Server(answers), environment.namespace), environment, {}, None)
    assert checked.verdict == "unknown" and "may not be read" in checked.sentence
    (absent,) = _queues(Cluster(Server({}), environment.namespace), environment, {}, None)
    queued_step = environment.model_copy(update={"placement": environment.placement | {"export": "gpu-l4"}})
    _, integration, _ = _queues(Cluster(Server(answers), environment.namespace), queued_step, {}, None)
    assert (integration.name, integration.verdict) == ("Kueue's pod integration", "unknown")
    assert absent.verdict == "bad" and absent.sentence.startswith("does not exist. Install Kueue")
