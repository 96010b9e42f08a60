"""From the plan that a pipeline carries to the gang that its launcher starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainyard.contract.gang import GangSpec, gang_spec, to_parameter
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.environment import Environment
from trainyard.spec.hardware.pools import WorkerRange
from trainyard.steps.train.gang.pods import pods
from trainyard.steps.train.gang.pods.job import Gang, worker_job

OPTIONS = {"code": "c0de", "examples": "/runs/examples", "checkpoints": "/runs/m.checkpoints", "output": "/runs/m"}


def environment(name: str = "gke", **changes: Any) -> Environment:
    base = environments.load(name)
    pool = base.pools["gpu-l4"].model_copy(update={"workers": 2, "queue": "research", "grace_seconds": 20} | changes)
    return base.model_copy(update={"pools": base.pools | {"gpu-l4": pool}})


def container(plan: GangSpec) -> dict[str, Any]:
    return made_container(pods.gang(plan, recipes.load("digits"), "run-1", OPTIONS))


def made_container(gang: Gang) -> dict[str, Any]:
    return worker_job(gang)["spec"]["template"]["spec"]["containers"][0]


def test_a_plan_comes_through_the_pipelines_parameter_unchanged() -> None:
    plan = gang_spec(environment())
    assert plan is not None
    assert parse(to_parameter(plan), GangSpec, name="gang") == plan
    assert json.loads(to_parameter(plan))["pool"]["queue"] == "research"


@pytest.mark.parametrize("name", ["local", "vertex"])
def test_only_kubernetes_has_gangs(name: str) -> None:
    assert gang_spec(environments.load(name)) is None
    assert to_parameter(None) == ""


def test_one_worker_with_input_workers_is_a_gang_too_and_they_are_told_of_each_other() -> None:
    workers = environments.InputWorkers(count=3, pool="small")
    plan = gang_spec(environments.load("gke").model_copy(update={"input_workers": workers}))
    assert plan is not None and plan.workers == 1
    assert parse(to_parameter(plan), GangSpec, name="gang") == plan
    training = pods.gang(plan, recipes.load("digits"), "run-1", OPTIONS)
    input_gang = training.input
    assert input_gang is not None
    assert (input_gang.name, input_gang.workers) == (f"{training.name}-input", 3)
    assert input_gang.image == "registry.example.com/trainyard/cpu:0.1.0"
    assert input_gang.command[-2:] == ("--examples=/runs/examples", "--output=/runs/m")
    variables = [
        {variable["name"]: variable for variable in made_container(gang)["env"]} for gang in (training, input_gang)
    ]
    addresses = [variable["TRAINYARD_INPUT_WORKERS"]["value"] for variable in variables]
    assert addresses == [input_gang.addresses] * 2
    assert "TRAINYARD_WORKERS" in variables[0] and "TRAINYARD_WORKERS" not in variables[1]
    assert "TRAINYARD_DEVICES" in variables[0] and "TRAINYARD_DEVICES" not in variables[1]


def test_the_longest_name_of_an_input_workers_pod_is_a_host_name() -> None:
    workers = environments.InputWorkers(count=64, pool="small")
    plan = gang_spec(environments.load("gke").model_copy(update={"input_workers": workers}))
    assert plan is not None
    input_gang = pods.gang(plan, recipes.load("digits"), "r" * 80, OPTIONS).input
    assert input_gang is not None and len(f"{input_gang.name}-63") <= 63


def test_a_pool_of_one_worker_trains_in_the_steps_own_pod() -> None:
    assert gang_spec(environments.load("gke")) is None


def test_workers_get_what_the_steps_get_and_secrets_by_reference_alone() -> None:
    secret = environments.SecretKey(secret="store", key="key")
    loaded = environment().model_copy(
        update={"variables": {"AWS_DEFAULT_REGION": "r"}, "secrets": {"AWS_SECRET_ACCESS_KEY": secret}}
    )
    plan = gang_spec(loaded)
    assert plan is not None
    variables = {variable["name"]: variable for variable in container(plan)["env"]}
    assert variables["AWS_DEFAULT_REGION"]["value"] == "r"
    assert variables["AWS_SECRET_ACCESS_KEY"] == {
        "name": "AWS_SECRET_ACCESS_KEY",
        "valueFrom": {"secretKeyRef": {"name": "store", "key": "key"}},
    }


def test_workers_are_told_the_recipe_and_what_devices_were_promised() -> None:
    plan = gang_spec(environment())
    assert plan is not None
    variables = {variable["name"]: variable.get("value", "") for variable in container(plan)["env"]}
    assert "name: digits" in variables["TRAINYARD_RECIPE"]
    assert json.loads(variables["TRAINYARD_DEVICES"]) == {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1}
    assert container(plan)["command"][:4] == ["python", "-m", "trainyard.steps.train.gang.pods.pod", "--code=c0de"]


def test_a_slice_of_several_hosts_is_a_gang_of_jax_with_the_slice_to_itself() -> None:
    loaded = environments.load("gke")
    plan = gang_spec(loaded.model_copy(update={"placement": loaded.placement | {"train": "v5e-16"}}))
    assert plan is not None and plan.image == "registry.example.com/trainyard/jax:0.1.0"
    job = worker_job(pods.gang(plan, recipes.load("digits"), "run-1", OPTIONS))
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (4, 4, "Indexed")
    assert pod["subdomain"] == job["metadata"]["name"]
    assert container(plan)["resources"]["limits"]["google.com/tpu"] == "4"
    variables = {variable["name"]: variable.get("value", "") for variable in container(plan)["env"]}
    assert variables["TRAINYARD_ENGINE"] == "jax" and json.loads(variables["TRAINYARD_DEVICES"])["count"] == 4
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    (ours,), (apart,) = (pod["affinity"][kind][required] for kind in ("podAffinity", "podAntiAffinity"))
    assert ours["topologyKey"] == apart["topologyKey"] == "cloud.google.com/gke-nodepool"
    label, name = "batch.kubernetes.io/job-name", job["metadata"]["name"]
    assert ours["labelSelector"]["matchExpressions"] == [{"key": label, "operator": "In", "values": [name]}]
    assert apart["labelSelector"]["matchExpressions"] == [
        {"key": label, "operator": "Exists"},
        {"key": label, "operator": "NotIn", "values": [name]},
    ]


def test_a_gang_with_a_range_of_workers_knows_the_numbers_that_divide_its_batch() -> None:
    plan = gang_spec(environment(workers=WorkerRange(min=1, max=4), queue="", replace_seconds=20))
    assert plan is not None and parse(to_parameter(plan), GangSpec, name="gang") == plan
    assert plan.name  # so that its workers' time and its cost are noted
    gang = pods.gang(plan, recipes.load("digits", ["train.batch_size=96"]), "run-1", OPTIONS)
    assert (gang.workers, gang.min_workers, gang.is_elastic) == (4, 1, True)
    values = {variable["name"]: variable.get("value") for variable in made_container(gang)["env"]}
    assert (values["TRAINYARD_WORKER_COUNTS"], values["TRAINYARD_REPLACE_SECONDS"]) == ("1,2,3,4", "20")
    alike = gang_spec(environment())
    assert alike is not None
    fixed = pods.gang(alike, recipes.load("digits"), "run-1", OPTIONS)
    assert not fixed.is_elastic and "TRAINYARD_WORKER_COUNTS" not in str(made_container(fixed)["env"])
