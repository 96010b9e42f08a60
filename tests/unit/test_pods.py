"""From the plan that a pipeline carries to the gang that its launcher starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainyard.core import environment as environments
from trainyard.core import recipe as recipes
from trainyard.core.documents import parse
from trainyard.core.environment import Environment
from trainyard.core.gang import GangPlan, gang_plan, written
from trainyard.train.kubernetes import pods
from trainyard.train.kubernetes.job import worker_job

OPTIONS = {"code": "c0de", "examples": "/runs/examples", "checkpoints": "/runs/m.checkpoints", "output": "/runs/m"}


def environment(name: str = "gke", **changes: Any) -> Environment:
    found = environments.load(name)
    pool = found.pools["gpu-l4"].model_copy(update={"workers": 2, "queue": "research", "grace_seconds": 20} | changes)
    return found.model_copy(update={"pools": found.pools | {"gpu-l4": pool}})


def container(plan: GangPlan) -> dict[str, Any]:
    gang = pods.gang(plan, recipes.load("digits"), "run-1", OPTIONS)
    return worker_job(gang)["spec"]["template"]["spec"]["containers"][0]


def test_a_plan_comes_through_the_pipelines_parameter_unchanged() -> None:
    plan = gang_plan(environment())
    assert plan is not None
    assert parse(written(plan), GangPlan, name="gang") == plan
    assert json.loads(written(plan))["pool"]["queue"] == "research"


@pytest.mark.parametrize("name", ["local", "vertex"])
def test_only_kubernetes_has_gangs(name: str) -> None:
    assert gang_plan(environments.load(name)) is None
    assert written(None) == ""


def test_a_pool_of_one_worker_trains_in_the_steps_own_pod() -> None:
    assert gang_plan(environments.load("gke")) is None


def test_workers_get_what_the_steps_get_and_secrets_by_reference_alone() -> None:
    secret = environments.SecretKey(secret="store", key="key")
    given = environment().model_copy(
        update={"variables": {"AWS_DEFAULT_REGION": "r"}, "secrets": {"AWS_SECRET_ACCESS_KEY": secret}}
    )
    plan = gang_plan(given)
    assert plan is not None
    variables = {each["name"]: each for each in container(plan)["env"]}
    assert variables["AWS_DEFAULT_REGION"]["value"] == "r"
    assert variables["AWS_SECRET_ACCESS_KEY"] == {
        "name": "AWS_SECRET_ACCESS_KEY",
        "valueFrom": {"secretKeyRef": {"name": "store", "key": "key"}},
    }


def test_workers_are_told_the_recipe_and_what_devices_were_promised() -> None:
    plan = gang_plan(environment())
    assert plan is not None
    variables = {each["name"]: each.get("value", "") for each in container(plan)["env"]}
    assert "name: digits" in variables["TRAINYARD_RECIPE"]
    assert json.loads(variables["TRAINYARD_DEVICES"]) == {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1}
    assert container(plan)["command"][:4] == ["python", "-m", "trainyard.train.kubernetes.pod", "--code=c0de"]
