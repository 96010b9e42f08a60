"""The files of the engines in k8s/ and images/ agree with what an environment gives Beam."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.spec import beam

ROOT = Path(__file__).parents[2]
FLINK = ROOT / "k8s" / "components" / "flink"
OBJECTS: dict[str, dict[str, Any]] = {
    f"{manifest['kind']} {manifest['metadata']['name']}": manifest
    for file in FLINK.glob("*.yaml")
    if file.name != "kustomization.yaml"
    for manifest in yaml.safe_load_all(file.read_text())
}
PODS = {
    name: manifest["spec"]["template"]["spec"] for name, manifest in OBJECTS.items() if name.startswith("Deployment ")
}


def test_the_service_and_the_workers_of_flink_are_where_an_environment_says() -> None:
    ports = {
        service_port["name"]: service_port["port"]
        for service_port in OBJECTS[f"Service {beam.FLINK_SERVICE}"]["spec"]["ports"]
    }
    assert ports["jobs"] == beam.FLINK_JOB_PORT
    workers = PODS["Deployment trainyard-flink-taskmanager"]["containers"][1]
    host, port = beam.FLINK_WORKERS.split(":")
    assert (host, workers["image"]) == ("localhost", "trainyard/cpu")
    assert f"--service_port={port}" in workers["command"]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_of_flink_meets_restricted_and_asks_for_what_it_may_take(name: str) -> None:
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        security, resources = container["securityContext"], container["resources"]
        assert security["readOnlyRootFilesystem"] and security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_only_the_steps_reach_the_job_server_of_flink_from_outside() -> None:
    [rule] = OBJECTS["NetworkPolicy trainyard-flink-jobs"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "trainyard"}}}]
    assert [port["port"] for port in rule["ports"]] == [8098, beam.FLINK_JOB_PORT]
    [own] = OBJECTS["NetworkPolicy trainyard-flink"]["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "trainyard-flink"}}}]}


def test_what_the_image_of_flink_gets_is_pinned() -> None:
    jars = (ROOT / "images" / "flink" / "jars.sha256").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  [\w.-]+\.jar", line) for line in jars)
    version = re.search(r"<version>(2[\d.]+)</version>", (ROOT / "images" / "flink" / "pom.xml").read_text())
    assert version and any(line.endswith(f"  beam-runners-flink-1.19-{version[1]}.jar") for line in jars)
    assert "--hash=sha256:" in (ROOT / "images" / "flink" / "flink.txt").read_text()


def test_dataflows_workers_start_by_the_beam_that_they_run() -> None:
    locked = re.search(r"^apache-beam\S*==(\S+)", (ROOT / "locks" / "cpu.txt").read_text(), re.MULTILINE)
    assert locked and f"beam_python3.11_sdk:{locked[1]} " in (ROOT / "images" / "dataflow" / "Dockerfile").read_text()
