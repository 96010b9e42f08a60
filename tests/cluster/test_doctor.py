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

pytestmark = pytest.mark.cluster

MEMORY = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}
CPU = {"kind": "cpu", "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu"}, "resources": MEMORY}


def doctor(namespace: Namespace, **changes: Any) -> tuple[dict[str, tuple[str, str]], int]:
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
        [program, "doctor", "-e", str(file), "-o", "json"], capture_output=True, text=True, env=os.environ
    )
    answer = json.loads(done.stdout)
    return {each["name"]: (each["verdict"], each["sentence"]) for each in answer["checks"]}, done.returncode


def test_what_is_there_is_good_and_what_is_missing_says_what_to_do(namespace: Namespace) -> None:
    found, code = doctor(namespace)
    assert found["namespace"] == ("good", f"{namespace.name} is there")
    assert found["pod security"] == (
        "good",
        f"namespace {namespace.name} enforces 'restricted', which steps and gangs pass",
    )
    assert found["pool cpu"] == ("good", "the API server would take a pod of it (dry run)")
    assert found["volume"][1] == f"no PersistentVolumeClaim 'runs' in namespace {namespace.name}. Create it"
    assert found["kubeflow"][0] == "bad" and 'services "ml-pipeline" not found' in found["kubeflow"][1]
    assert found["your rights"][0] == "good"
    assert code == 40


def test_a_gangs_launcher_must_exist_and_may_only_launch_where_the_role_is_bound(namespace: Namespace) -> None:
    gang = {"pools": {"cpu": CPU | {"workers": 2}}}
    found, _ = doctor(namespace, **gang, service_accounts={"run": "default"})
    assert found["launcher's rights"][0] == "bad"
    assert (
        "the account 'default' may not create jobs, get jobs, delete jobs, create services"
        in found["launcher's rights"][1]
    )
    found, _ = doctor(namespace, **gang, service_accounts={"run": "trainyard-launcher"})
    assert found["launcher's rights"] == ("good", "the account 'trainyard-launcher' may launch gangs")
    assert found["service account trainyard-launcher"] == ("good", "is there")
    found, _ = doctor(namespace, **gang, service_accounts={"run": "nobody"})
    assert found["service account nobody"] == ("bad", "is not there. Create it, or correct the environment")


def test_a_quota_that_forbids_the_pools_pods_is_found_before_the_run(namespace: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    try:
        found, code = doctor(namespace)
    finally:
        namespace.kubectl("delete", "resourcequota", "none")
    assert found["pool cpu"][0] == "bad" and "exceeded quota: none" in found["pool cpu"][1]
    assert code == 40


def test_a_pool_that_no_node_can_be_is_told_by_its_label(namespace: Namespace) -> None:
    found, _ = doctor(namespace, pools={"cpu": CPU | {"nodeSelector": {"cloud.google.com/gke-nodepool": "cqu"}}})
    assert found["pool cpu"] == ("good", "the API server would take a pod of it (dry run)")
    text = subprocess.run(
        [str(Path(sys.executable).with_name("trainyard")), "doctor", "-e", str(namespace.folder / "own.yaml")],
        capture_output=True, text=True, env=os.environ,
    ).stdout  # fmt: skip
    assert "✗ pool cpu: no node has the label cloud.google.com/gke-nodepool=cqu; there is cpu" in text


def test_secrets_and_priorities_are_looked_for_by_name_alone(namespace: Namespace) -> None:
    namespace.kubectl("create", "secret", "generic", "keys", "--from-literal=a=canary-value")
    secrets = {"A": {"secret": "keys", "key": "a"}, "B": {"secret": "none", "key": "b"}}
    found, _ = doctor(namespace, secrets=secrets, pools={"cpu": CPU | {"priority_class": "urgent", "queue": "team"}})
    assert found["secret keys"] == ("good", "is there; its keys are not looked at")
    assert found["secret none"][0] == "bad"
    assert found["priority class urgent"][0] == "bad"
    assert found["queue team"] == (
        "bad",
        "is not there. Install Kueue and create the LocalQueue, or take it out of the pool",
    )
    assert "canary" not in json.dumps(found)
