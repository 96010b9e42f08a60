"""Placing a training by a gang: the launcher, and what the pipeline carries."""

from typing import Any

import pytest
from tests.unit.test_place import documents, placed

from trainyard.contract.gang import VARIABLE, GangSpec, gang_spec, to_parameter
from trainyard.errors import ConfigurationError
from trainyard.kubernetes.pod_spec import pod_spec
from trainyard.spec import environment as environments
from trainyard.spec.documents import parse
from trainyard.spec.hardware.catalog import Platform
from trainyard.spec.hardware.pools import Pool
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang.pods.job import worker_job
from trainyard.steps.train.gang.pods.pods import gang
from trainyard_control.catalog.train import train_pipeline
from trainyard_control.compiler.compilation import compiled
from trainyard_control.compiler.placement import place


def with_gang(**changes: Any) -> environments.Environment:
    """The environment kind, whose training has a pool of two workers to itself."""
    kind = environments.load("kind")
    pool = kind.pools["cpu"].model_copy(update={"workers": 2, "node_selector": {"pool": "big"}} | changes)
    updated = {"pools": kind.pools | {"big": pool}, "placement": kind.placement | {"train": "big"}}
    return kind.model_copy(update=updated)


def test_the_launcher_of_a_gang_waits_on_the_default_pool_and_the_pipeline_carries_the_gang() -> None:
    placed = place(documents(train_pipeline)[0], with_gang())
    parameter = placed.pipeline["root"]["inputDefinitions"]["parameters"]["gang"]
    plan = parse(parameter["defaultValue"], GangSpec, name="gang")
    assert (plan.workers, plan.image, plan.pool.node_selector) == (2, "trainyard/cpu:0.1.0", {"pool": "big"})
    assert plan.timeout_seconds == 1800 and plan.secrets["AWS_SECRET_ACCESS_KEY"].key == "secretkey"
    resources = placed.pipeline["deploymentSpec"]["executors"]["exec-train"]["container"]["resources"]
    assert (resources["resourceCpuRequest"], resources["resourceMemoryLimit"]) == ("250m", "1Gi")
    assert placed.platform is not None
    configs = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    launching = [name for name, one in configs.items() if "trainyard/launches" in one["podMetadata"]["labels"]]
    assert launching == ["exec-train"] != [*configs]
    config = configs["exec-train"]
    assert "nodeSelector" not in config and config["podMetadata"]["labels"]["trainyard/pool"] == "cpu"
    assert config["activeDeadlineSeconds"] == str(1800 + 3600)
    assert place(placed.pipeline, with_gang(), placed.platform) == placed


def test_trees_are_placed_on_one_worker_with_a_cpu_alone() -> None:
    table = {"format": "csv", "path": "s3://bucket/x", "label": "y", "features": {"a": {"type": "numeric"}}}
    recipe = Recipe.model_validate({"name": "cars", "data": table, "model": {"name": "boosted_trees"}})
    with pytest.raises(
        ConfigurationError, match=r"one process on a CPU, and the pool 'big' has 2 workers. Place train on"
    ):
        compiled(recipe, with_gang())
    gke = environments.load("gke")
    gpu = gke.model_copy(update={"placement": gke.placement | {"train": ["cpu", "gpu-l4"]}})
    with pytest.raises(ConfigurationError, match="and the pool 'gpu-l4' has kind gpu"):
        compiled(recipe, gpu)
    compiled(recipe, environments.load("kind"))


def with_own_image() -> tuple[dict[str, Any], Recipe]:
    """Return the compiled pipeline of a recipe whose program has an image of its own, and the recipe."""
    train = {"command": ["python", "-m", "team.train"], "image": "example/trainer:1"}
    recipe = Recipe.model_validate(
        {"name": "own", "data": {"format": "image_folder", "bundled": "digits"}, "train": train}
    )
    return compiled(recipe, environments.load("local")).pipeline, recipe


@pytest.mark.parametrize("environment", ["kind", "gke", "vertex"])
def test_a_recipes_own_image_is_that_of_the_pod_that_trains_and_of_no_other_step(environment: str) -> None:
    spec, _ = with_own_image()
    own, plain = place(spec, environments.load(environment)), placed(environment)
    assert place(own.pipeline, environments.load(environment), own.platform) == own
    executors, rest = (part["deploymentSpec"]["executors"] for part in (own.pipeline, plain[0]))
    assert executors["exec-train"]["container"].pop("image") == "example/trainer:1"
    assert rest["exec-train"]["container"].pop("image") != "example/trainer:1"
    assert executors == rest
    assert (
        own.platform is None
        or own.platform["platforms"]["kubernetes"]["deploymentSpec"]
        == (plain[1]["platforms"]["kubernetes"]["deploymentSpec"])
    )


def with_module(**pools: Any) -> tuple[dict[str, Any], environments.Environment]:
    """Return the pipeline of a recipe with a module and an image, and gke with these placements."""
    document = {"name": "own", "data": {"format": "image_folder", "bundled": "digits"}, "module": "own.py"}
    document |= {"files": {"own.py": "def build_model(): ..."}, "train": {"image": "example/trainer:1"}}
    gke = environments.load("gke")
    placed_on = gke.model_copy(update={"placement": gke.placement | pools})
    return compiled(Recipe.model_validate(document), environments.load("local")).pipeline, placed_on


@pytest.mark.parametrize(
    ("pool", "steps"),
    [
        ("cpu", ["evaluate", "preprocess", "train"]),
        ("gpu-l4", ["evaluate", "preprocess", "train"]),
        ("v5e-8", ["train"]),
    ],
)
def test_an_image_is_that_of_each_step_that_calls_the_module_and_can_run_it(pool: str, steps: list[str]) -> None:
    spec, gke = with_module(train=pool)
    executors = place(spec, gke).pipeline["deploymentSpec"]["executors"]
    own = [name for name, executor in executors.items() if executor["container"]["image"] == "example/trainer:1"]
    assert sorted(own) == [f"exec-{step}" for step in steps]


def test_a_step_on_a_list_of_pools_has_the_image_where_it_fits() -> None:
    spec, gke = with_module(train="cpu", evaluate=["cpu", "gpu-l4"])
    container = place(spec, gke).pipeline["deploymentSpec"]["executors"]["exec-evaluate"]["container"]
    assert container["image"] == gke.images["cpu"]
    plan = parse(next(one["value"] for one in container["env"] if one["name"] == VARIABLE), GangSpec, name="gang")
    assert [attempt.image for attempt in plan.attempts] == ["example/trainer:1", gke.images["gpu"]]


def test_a_launcher_stays_on_trainyards_image_and_its_gang_has_the_recipes() -> None:
    spec, recipe = with_own_image()
    placed = place(spec, with_gang())
    container = placed.pipeline["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert container["image"] == "trainyard/cpu:0.1.0"
    parameter = placed.pipeline["root"]["inputDefinitions"]["parameters"]["gang"]
    plan = parse(parameter["defaultValue"], GangSpec, name="gang")
    options = dict.fromkeys(("code", "examples", "checkpoints", "output"), "")
    assert worker_job(gang(plan, recipe, "run-1", options))["spec"]["template"]["spec"]["containers"][0]["image"] == (
        "example/trainer:1"
    )


def test_a_launcher_waits_as_long_as_a_queue_lets_it() -> None:
    placed = place(documents(train_pipeline)[0], with_gang(queue="research"))
    assert placed.platform is not None
    config = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    assert "activeDeadlineSeconds" not in config
    assert "pipelineConfig" not in placed.platform["platforms"]["kubernetes"]


def test_what_does_not_change_a_gang_does_not_change_the_pipelines_parameter() -> None:
    one, other = (place(documents(train_pipeline)[0], with_gang(price_per_hour=price)) for price in (1.0, 2.0))
    assert one == other


@pytest.mark.parametrize("platform", ["gke", "eks", "karpenter", "aks"])
def test_the_pods_of_a_gang_land_where_a_step_on_the_same_pool_does(platform: Platform) -> None:
    """Nodes are told apart by their machine type there, and by the accelerator on GKE."""
    pool = Pool.model_validate(
        {
            "kind": "gpu",
            "accelerator": "nvidia-l4",
            "count": 1,
            "machine": "g6.8xlarge",
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        }
    )
    environment = with_gang(**dict(pool) | {"workers": 2, "node_selector": {"pool": "big"}}).model_copy(
        update={"platform": platform, "images": {"gpu": "trainer:1"}}
    )
    plan = parse(to_parameter(gang_spec(environment)), GangSpec, name="gang")
    expected = pod_spec(pool, platform)["nodeSelector"]
    assert pod_spec(plan.pool, platform, worker=True)["nodeSelector"] == expected | {"pool": "big"}
    assert (plan.pool.machine is None) == (platform == "gke")


def test_a_launcher_never_waits_on_accelerators() -> None:
    environment = with_gang()
    gpu = environments.load("gke").pools["gpu-l4"]
    environment = environment.model_copy(
        update={"pools": environment.pools | {"cpu": gpu}, "images": environment.images | {"gpu": "gpu:1"}}
    )
    with pytest.raises(ConfigurationError, match="'cpu' is a gpu pool, and the launcher of the gang on 'big' would"):
        place(documents(train_pipeline)[0], environment)


def test_a_training_step_of_ones_own_that_takes_no_gang_is_one_pod_of_its_pool() -> None:
    spec = documents(train_pipeline)[0]
    del spec["components"]["comp-train"]["inputDefinitions"]["parameters"]["gang"]
    placed = place(spec, with_gang())
    assert placed.platform is not None
    config = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    assert config["nodeSelector"] == {"labels": {"pool": "big"}}
    assert not placed.pipeline["root"]["inputDefinitions"]["parameters"]["gang"].get("defaultValue")
