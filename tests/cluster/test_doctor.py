"""What doctor finds on a real cluster: each thing that is missing, and the same thing once it is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from namespaces import Namespace
from train_step import CLAIM, IMAGE

pytestmark = pytest.mark.cluster

MEMORY = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}
CPU = {"kind": "cpu", "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu"}, "resources": MEMORY}


def doctor(namespace: Namespace, *options: str, **changes: Any) -> tuple[dict[str, tuple[str, str]], int]:
    """Return the checks' verdicts and sentences by name (the last of a name), and the exit code."""
    document: dict[str, Any] = {
        "target": "kubeflow",
        "storage": "/runs",
        "volume": {"claim": "runs", "path": "/runs"},
        "namespace": namespace.name,
        "images": {"cpu": "trainyard/cpu:0.1.0", "gpu": "trainyard/gpu:0.1.0"},
        "pools": {"cpu": CPU},
        "placement": {"default": "cpu"},
    }
    file = namespace.folder / "own.yaml"
    file.write_text(yaml.safe_dump(document | changes))
    program = str(Path(sys.executable).with_name("trainyard"))
    done = subprocess.run(
        [program, "doctor", "-e", str(file), "-o", "json", *options], capture_output=True, text=True, env=os.environ
    )
    answer = json.loads(done.stdout)
    return {check["name"]: (check["verdict"], check["sentence"]) for check in answer["checks"]}, done.returncode


def test_what_is_there_is_good_and_what_is_missing_says_what_to_do(namespace: Namespace) -> None:
    checks, code = doctor(namespace)
    assert checks["namespace"] == ("good", f"{namespace.name} exists")
    assert checks["pod security"] == (
        "good",
        f"namespace {namespace.name} enforces 'restricted', which steps and gangs pass",
    )
    assert checks["pool cpu"] == ("good", "the API server would take a pod of it (dry run)")
    assert checks["volume"][1] == f"no PersistentVolumeClaim 'runs' in namespace {namespace.name}. Create it"
    assert checks["kubeflow"][0] == "bad" and 'services "ml-pipeline" not found' in checks["kubeflow"][1]
    assert checks["your rights"][0] == "good"
    assert code == 40


def test_a_gangs_launcher_must_exist_and_may_only_launch_where_the_role_is_bound(namespace: Namespace) -> None:
    gang = {"pools": {"cpu": CPU | {"workers": 2}}}
    checks, _ = doctor(namespace, **gang, service_accounts={"run": "default"})
    assert checks["launcher's rights"][0] == "bad"
    assert (
        "the account 'default' may not create jobs, get jobs, patch jobs, delete jobs, create services"
        in checks["launcher's rights"][1]
    )
    checks, _ = doctor(namespace, **gang, service_accounts={"run": "trainyard-launcher"})
    assert checks["launcher's rights"] == ("good", "the account 'trainyard-launcher' may launch gangs")
    assert checks["service account trainyard-launcher"] == ("good", "exists")
    checks, _ = doctor(namespace, **gang, service_accounts={"run": "nobody"})
    assert checks["service account nobody"] == ("bad", "does not exist. Create it, or correct the environment")


def test_a_quota_that_forbids_the_pools_pods_is_found_before_the_run(namespace: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    try:
        checks, code = doctor(namespace)
    finally:
        namespace.kubectl("delete", "resourcequota", "none")
    assert checks["pool cpu"][0] == "bad" and "exceeded quota: none" in checks["pool cpu"][1]
    assert code == 40


def test_a_quota_on_requests_counts_the_containers_of_argo_and_kubeflow(namespace: Namespace) -> None:
    hard = {"requests.cpu": "4", "requests.memory": "8Gi"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cores"}, "spec": {"hard": hard}}
    executor = "resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {cpu: 500m, memory: 512Mi}}"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workflow-controller-configmap"}}
    config["data"] = {"executor": executor}
    smallest = [{"type": "Container", "min": {"cpu": "50m"}}]
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "least"}, "spec": {"limits": smallest}}
    argo = {"kubeflow": {"namespace": namespace.name}}
    try:
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(quota))
        checks, _ = doctor(namespace, **argo)
        for name in ("pool cpu", "kubeflow's pods"):
            assert checks[name][0] == "bad" and "must specify requests.cpu for: init,wait" in checks[name][1]
        assert "set executor.resources in workflow-controller-configmap" in checks["kubeflow's pods"][1]
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(config))
        checks, _ = doctor(namespace, **argo)
        assert checks["pool cpu"] == ("good", "the API server would take a pod of it (dry run)")
        assert checks["kubeflow's pods"] == ("good", "the API server would take the driver of a step (dry run)")
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(limits))
        checks, _ = doctor(namespace, **argo)
        assert "minimum cpu usage per Container is 50m, but request is 10m" in checks["kubeflow's pods"][1]
    finally:
        for kind, name in (
            ("resourcequota", "cores"),
            ("limitrange", "least"),
            ("configmap", config["metadata"]["name"]),
        ):
            namespace.kubectl("delete", kind, name, "--ignore-not-found")


def test_a_bundle_of_certificates_must_exist_and_is_mounted(namespace: Namespace) -> None:
    bundle = {"ca_bundle": {"config_map": "company-ca", "key": "ca.crt"}}
    checks, _ = doctor(namespace, **bundle)
    assert checks["config map company-ca"] == ("bad", "does not exist. Create it, or correct the environment")
    assert checks["pool cpu"][0] == "good"
    namespace.kubectl("create", "configmap", "company-ca", "--from-literal=ca.crt=x")
    assert doctor(namespace, **bundle)[0]["config map company-ca"] == ("good", "exists")


def test_a_pool_that_no_node_can_be_is_told_by_its_label(namespace: Namespace) -> None:
    checks, _ = doctor(namespace, pools={"cpu": CPU | {"nodeSelector": {"cloud.google.com/gke-nodepool": "cqu"}}})
    assert checks["pool cpu"] == ("good", "the API server would take a pod of it (dry run)")
    text = subprocess.run(
        [str(Path(sys.executable).with_name("trainyard")), "doctor", "-e", str(namespace.folder / "own.yaml")],
        capture_output=True, text=True, env=os.environ,
    ).stdout  # fmt: skip
    assert "✗ pool cpu: no node has the label cloud.google.com/gke-nodepool=cqu; there is cpu" in text


def test_secrets_and_priorities_are_looked_for_by_name_alone(namespace: Namespace) -> None:
    namespace.kubectl("create", "secret", "generic", "keys", "--from-literal=a=canary-value")
    secrets = {"A": {"secret": "keys", "key": "a"}, "B": {"secret": "none", "key": "b"}}
    checks, _ = doctor(
        namespace, secrets=secrets, pools={"cpu": CPU | {"priority_class": "urgent", "queue": "team", "workers": 2}}
    )
    assert checks["secret keys"] == ("good", "exists; its keys are not checked")
    assert checks["secret none"][0] == "bad"
    assert checks["priority class urgent"][0] == "bad"
    assert checks["queue team"] == (
        "bad",
        "does not exist. Install Kueue and create the LocalQueue, or take it out of the pool",
    )
    assert "canary" not in json.dumps(checks)


def test_pods_of_the_images_say_what_these_lack_and_are_gone(namespace: Namespace) -> None:
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(CLAIM))
    images = {"cpu": "python:3.11-slim-bookworm"}
    checks, _ = doctor(namespace, "--images", images=images)
    verdict, sentence = checks["contents of image cpu"]
    assert verdict == "bad"
    assert "cannot import Trainyard (No module named 'trainyard'); lacks" in sentence and "cannot write" not in sentence
    if IMAGE:
        checks, _ = doctor(namespace, "--images", images={"cpu": IMAGE})
        assert checks["contents of image cpu"][0] == "good", checks["contents of image cpu"]
    assert "trainyard-image" not in namespace.kubectl("get", "pods", "-o", "name")
