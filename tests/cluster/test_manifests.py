"""What k8s/ holds is accepted by a real API server, and holds there: Pod Security, quotas, what pods may reach."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plans
import pytest
import yaml
from launcher import gang
from namespaces import Namespace, until

from trainyard.kubernetes.labels import LAUNCHES, step_labels
from trainyard.steps.train.gang.pods.job import headless_service, worker_job

pytestmark = pytest.mark.cluster

K8S = Path(__file__).parents[2] / "k8s"
OVERLAYS = ["base", "overlays/kind", "overlays/gke"]


def rendered(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(K8S / folder)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def placed(namespace: Namespace, folder: str) -> str:
    """Return what `folder` renders to, for the test's own namespace."""
    documents = rendered(folder)
    for document in documents:
        if document["kind"] == "Namespace":
            document["metadata"]["name"] = namespace.name
        elif "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = namespace.name
        for subject in document.get("subjects", []):
            subject["namespace"] = namespace.name
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})


def worker_pod(**changes: Any) -> str:
    """Return a pod like that of a gang's worker, its security context changed."""
    template = worker_job(gang(plans.plan("restricted", plans.SLEEP)))["spec"]["template"]
    template["spec"]["containers"][0]["securityContext"] |= changes
    return json.dumps({"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "restricted"}})


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_api_server_accepts_every_object(namespace: Namespace, folder: str) -> None:
    output = namespace.kubectl("apply", "--dry-run=server", "-f", "-", stdin=placed(namespace, folder))
    assert all(line.endswith("(server dry run)") for line in output.splitlines() if "Warning" not in line), output


@pytest.mark.parametrize("folder", ["base", "overlays/gke"])
def test_a_namespace_of_ours_enforces_restricted(folder: str) -> None:
    labels = [manifest["metadata"]["labels"] for manifest in rendered(folder) if manifest["kind"] == "Namespace"]
    assert [namespace_labels["pod-security.kubernetes.io/enforce"] for namespace_labels in labels] == ["restricted"]


def test_a_workers_pod_is_admitted_where_restricted_is_enforced(namespace: Namespace) -> None:
    namespace.kubectl("create", "--dry-run=server", "-f", "-", stdin=worker_pod())


@pytest.mark.parametrize(
    "changes",
    [{"allowPrivilegeEscalation": True}, {"capabilities": {}}, {"runAsUser": 0}, {"privileged": True}],
    ids=str,
)
def test_a_workers_pod_with_more_rights_is_refused(namespace: Namespace, changes: dict[str, Any]) -> None:
    output = namespace.kubectl("create", "--dry-run=server", "-f", "-", stdin=worker_pod(**changes), check=False)
    assert "violates PodSecurity" in output or "Invalid value" in output or "cannot set" in output, output


def test_no_port_of_a_worker_is_offered_outside_the_cluster(namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", "-", stdin=placed(namespace, "base"))
    try:
        service = headless_service(gang(plans.plan("ports", plans.SLEEP)), "3f1d6a2e-0000-4000-8000-000000000000")
        namespace.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(service))
        service["metadata"]["name"] = "outside"
        service["spec"] = {"type": "LoadBalancer", "ports": service["spec"]["ports"]}
        output = namespace.kubectl("create", "-f", "-", stdin=json.dumps(service), check=False)
        assert "exceeded quota" in output, output
    finally:
        namespace.kubectl("delete", "resourcequota,limitrange", "--all")
        # The two are the cluster's, not the namespace's.
        namespace.kubectl("delete", "priorityclass", "trainyard-training", "trainyard-backfill")


def test_a_worker_has_no_token_and_no_right(namespace: Namespace) -> None:
    account = next(
        manifest
        for manifest in rendered("base")
        if manifest["kind"] == "ServiceAccount" and manifest["metadata"]["name"] == "trainyard-worker"
    )
    assert account["automountServiceAccountToken"] is False
    bound = [binding["subjects"] for binding in rendered("base") if binding["kind"] == "RoleBinding"]
    assert "trainyard-worker" not in json.dumps(bound)


@pytest.fixture
def step_accounts(namespace: Namespace) -> Iterator[None]:
    """Install k8s/components/step-accounts for this namespace alone, with the API version that the server offers."""
    offered = [line for line in namespace.kubectl("api-resources").splitlines() if "MutatingAdmissionPolicy" in line]
    if not offered:
        pytest.skip("the API server offers no MutatingAdmissionPolicy: before Kubernetes 1.36 it must be asked to")
    version = offered[0].split()[1]
    folder = K8S / "components/step-accounts"
    documents = [*yaml.safe_load_all((folder / "policy.yaml").read_text())]
    for document in documents:
        document |= {"apiVersion": version, "metadata": {"name": namespace.name}}
    binding = documents[1]["spec"]
    binding["policyName"] = namespace.name
    binding["matchResources"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] = namespace.name
    text = yaml.safe_dump_all(documents)
    namespace.kubectl("apply", "-f", str(folder / "accounts.yaml"), "-f", str(K8S / "base/run-rbac.yaml"))
    namespace.kubectl("create", "-f", "-", stdin=text)
    yield
    namespace.kubectl("delete", "-f", "-", stdin=text)


def admitted_account(namespace: Namespace, labels: dict[str, str], account: str = "trainyard-launcher") -> str:
    """Return the account that a pod with `labels` and `account` is created with."""
    pod = json.loads(worker_pod())
    pod["metadata"]["labels"] = labels
    pod["spec"]["serviceAccountName"] = account
    arguments = ("create", "--dry-run=server", "-o", "jsonpath={.spec.serviceAccountName}", "-f", "-")
    return namespace.kubectl(*arguments, stdin=json.dumps(pod))


def test_a_step_that_launches_no_gang_gets_an_account_without_its_rights(
    namespace: Namespace, step_accounts: None
) -> None:
    # The API server uses a policy some time after it was created.
    until(lambda: admitted_account(namespace, step_labels("evaluate")) == "trainyard-step")
    assert admitted_account(namespace, step_labels("push")) == "trainyard-publisher"
    assert admitted_account(namespace, step_labels("train") | {LAUNCHES: "gang"}) == "trainyard-launcher"
    assert admitted_account(namespace, step_labels("train"), "default") == "default"
    assert admitted_account(namespace, {"pipelines.kubeflow.org/v2_component": "true"}) == "trainyard-launcher"
    for account in ("trainyard-step", "trainyard-publisher"):
        who = f"--as=system:serviceaccount:{namespace.name}:{account}"
        assert namespace.kubectl("auth", "can-i", "create", "jobs.batch", who, check=False).startswith("no")
        assert namespace.kubectl("auth", "can-i", "get", "secret/mlpipeline-minio-artifact", who).startswith("yes")


@pytest.mark.parametrize("folder", OVERLAYS)
def test_pods_of_ours_are_closed_by_default_and_reach_no_metadata_service_of_a_machine(folder: str) -> None:
    policies = {
        policy["metadata"]["name"]: policy["spec"] for policy in rendered(folder) if policy["kind"] == "NetworkPolicy"
    }
    denied = policies["trainyard-default-deny"]
    assert denied["policyTypes"] == ["Ingress", "Egress"] and not {"ingress", "egress"} & set(denied)
    blocks = [
        peer["ipBlock"]
        for name, spec in policies.items()
        if name != "trainyard-gke-metadata"
        for rule in spec.get("egress", [])
        for peer in rule.get("to", [])
        if "ipBlock" in peer
    ]
    assert blocks == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]},
        {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128"]},
    ]
