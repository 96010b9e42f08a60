"""A gang's Job: its name, what its pods may do, and which failures it forgives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import ExitCode
from trainyard.kubernetes import labels
from trainyard.spec.environment import Volume
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang.pods.job import (
    Gang,
    headless_service,
    network_policy,
    owner_reference,
    worker_job,
)
from trainyard.steps.train.peers import liveness, settings

RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}


def pool(kind: str = "cpu", **fields: Any) -> Pool:
    return Pool.model_validate({"kind": kind, "resources": RESOURCES, **fields})


GANG = Gang(run="digits", image="image:1", command=("work",), workers=3, pool=pool(), platform="kubernetes")


def pod(gang: Gang) -> dict[str, Any]:
    return worker_job(gang)["spec"]["template"]["spec"]


def variables(gang: Gang) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in pod(gang)["containers"][0]["env"]}


def action(code: int, disrupted: bool = False) -> str:
    """What the Job controller does, by the documented order: the first rule that fits; none counts."""
    for rule in worker_job(GANG)["spec"]["podFailurePolicy"]["rules"]:
        if disrupted and "onPodConditions" in rule:
            return str(rule["action"])
        if code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ExitCode.DATA, "FailJob"),
        (ExitCode.CONFIGURATION, "FailJob"),
        (ExitCode.BUG, "FailJob"),
        (ExitCode.USAGE, "FailJob"),
        (ExitCode.INTERRUPTED, "FailJob"),
        (ExitCode.TRANSIENT, "Count"),
        (ExitCode.INFRASTRUCTURE, "FailJob"),
        (ExitCode.PREEMPTED, "Ignore"),
        (137, "Count"),
    ],
)
def test_the_exit_code_decides_what_becomes_of_the_job(code: int, expected: str) -> None:
    assert action(code) == expected


@pytest.mark.parametrize("code", [ExitCode.BUG, ExitCode.TRANSIENT, 137])
def test_a_disruption_is_forgiven_whatever_the_code(code: int) -> None:
    assert action(code, disrupted=True) == "Ignore"


@given(run=st.text(min_size=1), step=st.sampled_from(["train", "sweep"]))
def test_any_run_gives_pods_a_valid_host_name(run: str, step: str) -> None:
    name = dataclasses.replace(GANG, run=run, step=step, workers=10_000).name
    assert len(f"{name}-9999") <= 63
    assert all(part and part.isascii() and part.isalnum() for part in name.split("-")), name


def test_the_name_depends_on_run_and_step_alone() -> None:
    assert dataclasses.replace(GANG, image="other", workers=5).name == GANG.name
    names = {GANG.name} | {
        dataclasses.replace(GANG, **change).name for change in ({"run": "Digits"}, {"step": "sweep"})
    }
    assert len(names) == 3


def test_another_plan_is_told_from_this_one_but_another_owner_is_not() -> None:
    def plan(gang: Gang, owner: dict[str, Any] | None = None) -> str:
        return str(worker_job(gang, owner)["metadata"]["annotations"][labels.PLAN])

    assert plan(GANG, owner_reference("v1", "Pod", "a", "1")) == plan(GANG)
    assert plan(dataclasses.replace(GANG, workers=4)) != plan(GANG)


def test_every_worker_knows_all_addresses_and_its_own_index(monkeypatch: pytest.MonkeyPatch) -> None:
    name = GANG.name
    monkeypatch.setenv("TRAINYARD_WORKERS", variables(GANG)["TRAINYARD_WORKERS"])
    assert settings.addresses(settings.WORKERS) == [f"{name}-{index}.{name}:2222" for index in range(3)]
    assert "TRAINYARD_WORKER_INDEX" in variables(GANG)
    assert pod(GANG)["subdomain"] == headless_service(GANG, "1")["metadata"]["name"]


def test_the_pods_of_hundreds_are_as_large_as_those_of_three() -> None:
    def size(workers: int) -> int:
        return len(json.dumps(pod(dataclasses.replace(GANG, workers=workers))))

    assert size(1024) - size(3) < 20


@pytest.mark.parametrize("text", ["[::1]:2222,[fe80::1]:2223", "127.0.0.1:1,host:2"])
def test_addresses_without_a_range_are_as_they_are(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TRAINYARD_WORKERS", text)
    assert settings.addresses(settings.WORKERS) == text.split(",")


def test_the_node_asks_each_worker_for_an_answer_once_it_has_started_and_nobody_else_may() -> None:
    slow = dataclasses.replace(GANG, pool=pool(start_deadline_seconds=605))
    for gang in (slow, dataclasses.replace(slow, feeds="other")):
        (container,) = pod(gang)["containers"]
        start, live = container["startupProbe"], container["livenessProbe"]
        assert start["periodSeconds"] * start["failureThreshold"] == 610  # no sooner than its deadline
        assert live["periodSeconds"] * live["failureThreshold"] == 30
        port = live["httpGet"]["port"]
        assert start["httpGet"]["port"] == port == liveness.PORT
        (rule,) = network_policy(gang, "1")["spec"]["ingress"]
        assert not any(open_port["port"] <= port <= open_port["endPort"] for open_port in rule["ports"])


def test_a_plan_cannot_talk_a_worker_out_of_its_place() -> None:
    assert variables(dataclasses.replace(GANG, environment={"TRAINYARD_WORKERS": "x"})) == variables(GANG)


def test_devices_are_asked_for_and_limited_alike() -> None:
    gpu = dataclasses.replace(GANG, pool=pool("gpu", accelerator="nvidia-l4", count=2))
    resources = pod(gpu)["containers"][0]["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "2"


def test_only_tmp_shared_memory_and_the_storage_can_be_written() -> None:
    spec = pod(dataclasses.replace(GANG, volume=Volume(claim="runs", path="/runs")))
    container = spec["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/dev/shm", "/tmp", "/runs"]
    assert spec["automountServiceAccountToken"] is False


def test_a_queue_suspends_the_job_until_it_is_admitted() -> None:
    queued = worker_job(dataclasses.replace(GANG, pool=pool(queue="research")))
    assert queued["spec"]["suspend"] is True
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert "parallelism" not in str(queued["metadata"])
    elastic = worker_job(dataclasses.replace(GANG, min_workers=1, pool=pool(queue="research")))["metadata"]
    assert elastic["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "1"
    assert elastic["annotations"]["kueue.x-k8s.io/job-completions-equal-parallelism"] == "true"
    assert worker_job(GANG)["spec"]["suspend"] is False
    assert "kueue.x-k8s.io/queue-name" not in worker_job(GANG)["metadata"]["labels"]
