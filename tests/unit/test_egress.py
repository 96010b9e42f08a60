"""Whether the NetworkPolicies of k8s/base let a step reach its storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.kubernetes.labels import step_labels
from trainyard_control.cluster.egress import way

BASE = list(yaml.safe_load_all((Path(__file__).parents[2] / "k8s/base/network.yaml").read_text()))


@pytest.mark.parametrize(
    ("endpoint", "verdict"),
    [
        ("https://storage.example.com", "good"),
        ("http://seaweedfs.kubeflow:9000", "good"),
        ("http://seaweedfs:9000", "good"),
        ("http://minio.storage:9000", "unknown"),  # behind a Service the pods' port counts
        ("http://minio.storage.svc.cluster.local:9000", "unknown"),
        ("http://storage.example.com:9000", "bad"),
        ("http://172.18.0.1:9000", "bad"),
        ("https://169.254.1.1", "bad"),
        ("https://172.18.0.1:6443", "good"),
        ("https://[2001:db8::1]:9000", "bad"),
    ],
)
def test_the_policies_of_base_lead_to_https_and_to_services_of_the_namespace(endpoint: str, verdict: str) -> None:
    assert way(endpoint, "kubeflow", BASE, step_labels("train")).verdict == verdict
    assert way(endpoint, "kubeflow", [], step_labels("train")).verdict == "good"
    assert way(endpoint, "kubeflow", BASE, {"app": "other"}).verdict == "good"


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ({}, "good"),
        ({"ports": [{"port": 9000}], "to": [{"ipBlock": {"cidr": "172.18.0.0/16"}}]}, "good"),
        ({"ports": [{"port": 8000, "endPort": 9000}]}, "good"),
        ({"ports": [{"port": 9000, "protocol": "UDP"}]}, "bad"),
        ({"ports": [{"port": 9000}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, "bad"),
    ],
    ids=str,
)
def test_one_rule_of_any_policy_is_enough(rule: dict[str, Any], verdict: str) -> None:
    more = {"metadata": {"name": "store"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}}
    check = way("http://172.18.0.1:9000", "kubeflow", [*BASE, more], step_labels("train"))
    assert check.verdict == verdict
    if verdict == "bad":
        assert "(store, trainyard-default-deny, trainyard-egress) allow no port 9000 of 172.18.0.1" in check.sentence
