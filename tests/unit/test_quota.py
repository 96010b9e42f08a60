"""What Kueue can ever admit, from its API's objects; the numbers are those of Kueue's own tests.

Source: https://github.com/kubernetes-sigs/kueue/blob/v0.19.2/pkg/cache/scheduler/resource_test.go (TestAvailable).
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
from trainyard_control.cluster.checks import Quotas, admission, pod_integration
from trainyard_control.kubeflow.doctor import _queues

Bounds = tuple[str, str | None, str | None]  # nominal quota, borrowing limit, lending limit


def quota(bounds: Bounds, resource: str = "cpu") -> dict[str, Any]:
    keys = ("nominalQuota", "borrowingLimit", "lendingLimit")
    limits = {key: value for key, value in zip(keys, bounds, strict=True) if value is not None}
    return {"name": resource, **limits}


def group(*flavors: tuple[str, Bounds]) -> dict[str, Any]:
    listed = [{"name": name, "resources": [quota(bounds)]} for name, bounds in flavors]
    return {"coveredResources": ["cpu"], "flavors": listed}


def cluster_queue(name: str, *flavors: tuple[str, Bounds], cohort: str = "", key: str = "cohortName") -> dict[str, Any]:
    above = {key: cohort} if cohort else {}
    active = {"type": "Active", "status": "True", "reason": "Ready", "message": "Can admit new workloads"}
    return {
        "apiVersion": f"kueue.x-k8s.io/{'v1beta2' if key == 'cohortName' else 'v1beta1'}",
        "kind": "ClusterQueue",
        "metadata": {"name": name, "uid": "8c0d7a4e", "generation": 1},
        "spec": {**above, "namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO", "stopPolicy": "None"}
        | {"resourceGroups": [group(*flavors)]},
        "status": {"conditions": [active], "pendingWorkloads": 0},
    }


def cohort(name: str, bounds: Bounds | None = None, parent: str = "") -> dict[str, Any]:
    spec = {"parentName": parent} if parent else {}
    groups = {"resourceGroups": [group(("red", bounds))]} if bounds else {}
    return {"kind": "Cohort", "metadata": {"name": name}, "spec": spec | groups}


def flavor(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def pod(cpu: str, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "resources": {"requests": {"cpu": cpu}}}], **spec}}


def local(queue: str) -> dict[str, Any]:
    return {"kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": queue}}


TEN: Bounds = ("10", None, None)
NONE: Bounds = ("0", None, None)
ROOT, RIGHT = cohort("root"), cohort("right", TEN, "root")
CASES: list[tuple[list[tuple[str, str, Bounds]], list[dict[str, Any]], dict[str, int]]] = [
    ([("a", "", ("5", None, None))], [], {"a": 5}),
    ([("a", "c", TEN), ("b", "c", ("10", None, "9"))], [cohort("c", TEN)], {"a": 29, "b": 30}),
    ([("a", "c", TEN)], [cohort("c", TEN)], {"a": 20}),
    ([("a", "c", TEN), ("b", "c", ("10", "0", "0"))], [cohort("c", TEN)], {"a": 20, "b": 10}),
    (
        [("a", "c", TEN), ("b", "c", ("10", "2", None)), ("d", "c", ("10", None, "5"))],
        [cohort("c", TEN)],
        {"a": 35, "b": 12, "d": 40},
    ),
    (
        [("a", "left", TEN), ("b", "right", ("10", None, "0"))],
        [ROOT, cohort("left", TEN, "root"), RIGHT],
        {"a": 30, "b": 40},
    ),
    (
        [("a", "left", TEN), ("b", "left", ("10", "5", None)), ("c", "right", TEN)],
        [ROOT, cohort("left", ("10", "5", None), "root"), RIGHT],
        {"a": 35, "b": 15, "c": 50},
    ),
    (
        [("a", "left", ("10", None, "5")), ("b", "left", TEN), ("c", "right", NONE), ("d", "root", NONE)],
        [ROOT, cohort("left", ("0", None, "5"), "root"), cohort("right", NONE, "root")],
        {"a": 20, "b": 15, "c": 5, "d": 5},
    ),
    ([("a", "named", TEN), ("b", "named", TEN)], [], {"a": 20, "b": 20}),
    ([("same", "same", TEN), ("b", "same", TEN)], [], {"same": 20, "b": 20}),
]


@pytest.mark.parametrize("key", ["cohort", "cohortName"])
def test_a_queue_holds_what_kueue_says_that_it_can_ever_hold(key: str) -> None:
    for queues, cohorts, limits in CASES:
        listed = [cluster_queue(name, ("red", bounds), cohort=above, key=key) for name, above, bounds in queues]
        quotas = Quotas(listed, cohorts, [flavor("red")])
        for name, cores in limits.items():
            assert admission("cpu", pod("1"), cores, local(name), quotas).verdict == "good", (queues, name)
            assert admission("cpu", pod("1"), cores + 1, local(name), quotas).verdict == "bad", (queues, name)


def test_a_circle_of_cohorts_ends() -> None:
    circle = [cohort("left", TEN, "right"), cohort("right", TEN, "left")]
    quotas = Quotas([cluster_queue("a", ("red", TEN), cohort="left")], circle, [flavor("red")])
    assert admission("cpu", pod("1"), 10, local("a"), quotas).verdict == "good"


def test_pods_that_fit_no_flavor_are_told_why_not() -> None:
    taint = {"key": "gpu", "value": "l4", "effect": "NoSchedule"}
    flavors = [
        flavor("red"),
        flavor("zone-b", nodeLabels={"zone": "b"}),
        flavor("l4", nodeTaints=[taint]),
    ]
    many: Bounds = ("100", None, None)
    queue = cluster_queue("research", ("red", ("3500m", None, None)), ("zone-b", many), ("l4", many), ("gone", many))
    quotas = Quotas([queue], [], flavors)
    check = admission("gang", pod("1", nodeSelector={"zone": "a"}), 4, local("research"), quotas)
    assert check.sentence == (
        "Kueue never admits the 4 pods of pool 'gang', which ask for 4 cpu: in ClusterQueue 'research' flavor 'red' "
        "has at most 3.5 cpu, borrowed quota included; flavor 'zone-b' is for nodes with other labels; flavor 'l4' has "
        "a taint that they do not tolerate; flavor 'gone' does not exist. Ask for less, or raise the quota"
    )
    assert (check.verdict, check.code) == ("bad", 40)
    tolerant = pod("1", nodeSelector={"zone": "a"}, tolerations=[{"key": "gpu", "operator": "Exists"}])
    assert admission("gang", tolerant, 4, local("research"), quotas).verdict == "good"
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert admission("gang", pod("1", affinity=affinity), 4, local("research"), quotas).verdict == "good"


def test_a_queue_that_cannot_admit_for_other_reasons_says_them() -> None:
    queue = cluster_queue("research", ("red", TEN))
    quotas = Quotas([queue], [], [flavor("red")])
    assert "no ClusterQueue 'other'" in admission("cpu", pod("1"), 1, local("other"), quotas).sentence
    disk = pod("1")
    disk["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "10Gi"
    check = admission("cpu", disk, 1, local("research"), quotas)
    assert check.verdict == "unknown" and "covers no ephemeral-storage" in check.sentence
    queue["status"]["conditions"] = [
        {"type": "Active", "status": "False", "reason": "Stopped", "message": "Can't admit new workloads: is stopped"}
    ]
    check = admission("cpu", pod("1"), 1, local("research"), quotas)
    assert check.verdict == "bad" and "admits nothing: Can't admit new workloads: is stopped." in check.sentence
    held = local("research")
    held["spec"]["stopPolicy"] = "Hold"
    check = admission("cpu", pod("1"), 1, held, quotas)
    assert check.verdict == "bad" and check.sentence.endswith("Change its stopPolicy from Hold to None")


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
    queue = cluster_queue("research", ("red", TEN))
    queue["spec"]["namespaceSelector"] = selector
    quotas = Quotas([queue], [], [flavor("red")])
    for labels, verdict in zip(({"team": "research"}, None), verdicts, strict=True):
        check = admission("cpu", pod("1"), 1, local("research"), quotas, labels)
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
    queue = cluster_queue("research", ("red", TEN))
    answers: dict[str, Any] = {
        f"{api}/namespaces/{environment.namespace}/localqueues/team": local("research"),
        f"{api}/clusterqueues": {"items": [queue]},
        f"{api}/cohorts": {"items": []},
        f"{api}/resourceflavors": {"items": [flavor("red")]},
    }
    present, checked = _queues(Cluster(Server(answers), environment.namespace), environment, {})
    assert (present.name, present.verdict) == ("queue team", "good")
    assert checked.verdict == "bad" and "the 2 pods of pool 'gpu-l4', which ask for 12 cpu" in checked.sentence
    answers[f"{api}/cohorts"] = 403
    _, checked = _queues(Cluster(Server(answers), environment.namespace), environment, {})
    assert checked.verdict == "unknown" and "may not be read" in checked.sentence
    (absent,) = _queues(Cluster(Server({}), environment.namespace), environment, {})
    queued_step = environment.model_copy(update={"placement": environment.placement | {"export": "gpu-l4"}})
    _, integration, _ = _queues(Cluster(Server(answers), environment.namespace), queued_step, {})
    assert (integration.name, integration.verdict) == ("Kueue's pod integration", "unknown")
    assert absent.verdict == "bad" and absent.sentence.startswith("does not exist. Install Kueue")
