"""The launcher's service account may do what a launch needs, and nothing else."""

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


def answer(namespace: Namespace, question: str, *options: str, account: str = "") -> str:
    verb, resource = question.split()
    who = f"--as={account or namespace.account}"
    return namespace.kubectl("auth", "can-i", verb, resource, who, *options, check=False).splitlines()[0]


@pytest.mark.parametrize("question", ALLOWED)
def test_the_launcher_may(namespace: Namespace, question: str) -> None:
    assert answer(namespace, question) == "yes"


@pytest.mark.parametrize("question", DENIED)
def test_the_launcher_may_not(namespace: Namespace, question: str) -> None:
    assert answer(namespace, question) == "no"


@pytest.mark.parametrize("question", ALLOWED)
def test_the_launcher_may_not_elsewhere_and_a_worker_may_nothing(namespace: Namespace, question: str) -> None:
    assert answer(namespace, question, "-n", "default") == "no"
    assert answer(namespace, question, account=f"system:serviceaccount:{namespace.name}:default") == "no"
