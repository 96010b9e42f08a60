"""The launcher's service account may do what a launch needs, and nothing else."""

import json

import pytest
from namespaces import Namespace

pytestmark = pytest.mark.cluster

ALLOWED = [
    "create jobs.batch",
    "get jobs.batch",
    "delete jobs.batch",
    "patch jobs.batch",
    "create services",
    "create networkpolicies.networking.k8s.io",
    "get pods",
    "list pods",
    "get pods/log",
    "list events",
    "list workloads.kueue.x-k8s.io",
]
DENIED = [
    "list jobs.batch",
    "update jobs.batch",
    "deletecollection jobs.batch",
    "delete services",
    "delete networkpolicies.networking.k8s.io",
    "get networkpolicies.networking.k8s.io",
    "create pods",
    "delete pods",
    "create pods/exec",
    "create pods/eviction",
    "get secrets",
    "list secrets",
    "get configmaps",
    "create deployments.apps",
    "create rolebindings.rbac.authorization.k8s.io",
    "create serviceaccounts/token",
    "list nodes",
    "* *",
]


def may(namespace: Namespace, question: str, where: str = "", account: str = "") -> bool:
    """Ask the API server itself: `kubectl auth can-i` says no to kinds that the cluster lacks, such as Kueue's."""
    verb, resource = question.split()
    name, _, group = resource.partition(".")
    name, _, subresource = name.partition("/")
    about = {"verb": verb, "resource": name, "subresource": subresource, "group": "*" if name == "*" else group}
    spec = {"user": account or namespace.account, "resourceAttributes": {**about, "namespace": where or namespace.name}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = namespace.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


@pytest.mark.parametrize("question", ALLOWED)
def test_the_launcher_may(namespace: Namespace, question: str) -> None:
    assert may(namespace, question)


@pytest.mark.parametrize("question", DENIED)
def test_the_launcher_may_not(namespace: Namespace, question: str) -> None:
    assert not may(namespace, question)


@pytest.mark.parametrize("question", ALLOWED)
def test_the_launcher_may_not_elsewhere_and_a_worker_may_nothing(namespace: Namespace, question: str) -> None:
    assert not may(namespace, question, where="default")
    assert not may(namespace, question, account=f"system:serviceaccount:{namespace.name}:default")
