"""The pod that doctor has tried is the one that a run will have: no setting of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.gang import gang_spec
from trainyard.errors import ConfigurationError
from trainyard.kubernetes import labels
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment, Volume
from trainyard.spec.hardware.pools import GANG_ONLY, Pool, WorkerRange
from trainyard.steps.train.gang.pods import pods
from trainyard.steps.train.gang.pods.job import worker_job
from trainyard_control.cluster.checks import driver_pod, pool_pod, queued_pods, with_argo
from trainyard_control.compiler.compilation import compiled
from trainyard_control.compiler.placement import place


def main(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def gke(**pool: Any) -> Environment:
    environment = environments.load("gke")
    pools = environment.pools | {"gpu-l4": environment.pools["gpu-l4"].model_copy(update=pool)}
    return environment.model_copy(update={"pools": pools})


def test_the_pod_of_a_pool_says_what_place_writes_and_what_kubeflow_adds() -> None:
    pod = pool_pod(gke(), "gpu-l4")
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "train"
    assert pod["spec"]["serviceAccountName"] == "trainyard-launcher"
    assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-l4"
    assert [toleration["key"] for toleration in pod["spec"]["tolerations"]] == [
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
    ]
    assert pod["spec"]["activeDeadlineSeconds"] == 86400
    assert main(pod)["image"] == "registry.example.com/trainyard/gpu:0.1.0"
    requests = {"cpu": "6", "memory": "24Gi", "nvidia.com/gpu": "1"}
    assert main(pod)["resources"] == {"requests": requests, "limits": {"memory": "24Gi", "nvidia.com/gpu": "1"}}
    assert main(pod)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


EXECUTOR = {"data": {"executor": "resources: {requests: {cpu: 10m}}\nsecurityContext: {runAsUser: 65532}\n"}}


def test_quotas_count_the_containers_of_argo_and_kubeflow_too() -> None:
    pod = with_argo(pool_pod(gke(), "gpu-l4"), EXECUTOR)
    wait, own = pod["spec"]["containers"]
    init, launcher = pod["spec"]["initContainers"]
    assert (wait["name"], own["name"], init["name"], launcher["name"]) == ("wait", "main", "init", "kfp-launcher")
    assert wait["resources"] == init["resources"] == {"requests": {"cpu": "10m"}}
    assert wait["securityContext"] == {"runAsUser": 65532}
    driver = driver_pod(gke(), None)
    assert [container["name"] for container in driver["spec"]["containers"]] == ["wait", "main"]
    assert driver["spec"]["containers"][0]["resources"] == {}, "as Argo's default, which a quota on requests refuses"
    assert driver["spec"]["serviceAccountName"] == "trainyard-launcher"
    gang = pool_pod(gke(workers=2), "gpu-l4")
    assert with_argo(gang, EXECUTOR) == gang


@pytest.mark.parametrize(("spot", "evictable", "kept"), [(0, None, 1), (1, None, 0), (0, True, 0), (1, False, 1)])
def test_pods_keep_their_node_off_spot_or_if_the_pool_says_so(spot: int, evictable: bool | None, kept: int) -> None:
    pool = {"spot": bool(spot), "evictable": evictable}
    wanted = labels.KEPT if kept else {}
    assert pool_pod(gke(**pool), "gpu-l4")["metadata"]["annotations"] == wanted
    worker = pool_pod(gke(**pool, workers=2), "gpu-l4")["metadata"]["annotations"]
    assert wanted.items() <= worker.items() and (kept or not labels.KEPT.keys() & worker.keys())
    for workers in (1, 2):
        environment = gke(**pool, workers=workers)
        placed = place(compiled(recipes.load("digits"), environments.load("local")).pipeline, environment)
        assert placed.platform
        configs = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
        train = configs["exec-train"]["podMetadata"].get("annotations", {})
        assert train == (wanted if workers == 1 else {}), "a launcher only waits"


def test_the_pod_of_a_pool_of_input_workers_alone_is_theirs() -> None:
    workers = environments.InputWorkers(count=3, pool="feed")
    pools = gke().pools | {"feed": gke().pools["small"]}
    pod = pool_pod(gke().model_copy(update={"pools": pools, "input_workers": workers}), "feed")
    assert main(pod)["command"][2] == "trainyard.steps.train.input.service.worker"
    assert main(pod)["securityContext"]["readOnlyRootFilesystem"] is True


def test_place_writes_that_pod_into_the_package() -> None:
    volume = Volume(claim="runs", path="/mnt/runs")
    environment = gke(count=2, shared_memory="8Gi").model_copy(update={"volume": volume})
    pod = pool_pod(environment, "gpu-l4")
    executors = {"exec-train": {"container": {"image": "trainyard/cpu"}}}
    placed = place({"root": {}, "components": {}, "deploymentSpec": {"executors": executors}}, environment)
    assert placed.platform is not None
    config = placed.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    assert config["podMetadata"]["labels"] == pod["metadata"]["labels"]
    assert config["nodeSelector"]["labels"] == pod["spec"]["nodeSelector"]
    assert config["tolerations"] == pod["spec"]["tolerations"]
    assert config["activeDeadlineSeconds"] == str(pod["spec"]["activeDeadlineSeconds"])
    assert config["securityContext"] == {"runAsUser": "65532", "runAsNonRoot": True}
    mounts = [*config["emptyDirMounts"], *config["pvcMount"]]
    assert [mount["mountPath"] for mount in mounts] == [mount["mountPath"] for mount in main(pod)["volumeMounts"]]
    container = placed.pipeline["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert container["image"] == main(pod)["image"]
    wanted, requests = container["resources"], main(pod)["resources"]["requests"]
    assert (wanted["resourceCpuRequest"], wanted["resourceMemoryRequest"]) == (requests["cpu"], requests["memory"])
    assert wanted["accelerator"]["resourceCount"] == requests["nvidia.com/gpu"] == "2"


def test_volumes_shared_memory_and_secrets_are_those_of_the_step() -> None:
    environment = gke(count=2, shared_memory="8Gi").model_copy(
        update={"volume": Volume(claim="runs", path="/mnt/runs")}
    )
    pod = pool_pod(environment, "gpu-l4")
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"storage", "shared-memory"}
    mounts = {mount["name"]: mount["mountPath"] for mount in main(pod)["volumeMounts"]}
    assert mounts == {"storage": "/mnt/runs", "shared-memory": "/dev/shm"}
    variables = {
        variable["name"]: variable for variable in main(pool_pod(environments.load("kind"), "training"))["env"]
    }
    assert variables["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["key"] == "accesskey"


def test_a_pool_that_trains_in_a_gang_is_tried_with_a_worker_and_a_pool_of_another_pipelines_step_with_that() -> None:
    kind = environments.load("kind")
    environment = kind.model_copy(update={"placement": kind.placement | {"train": "gang", "my-step": "training"}})
    worker = pool_pod(environment, "gang")
    assert main(worker)["command"][2] == "trainyard.steps.train.gang.pods.pod"
    assert main(worker)["securityContext"]["readOnlyRootFilesystem"]
    ranged = {
        name: pool.model_copy(update={"workers": WorkerRange(min=3, max=5)}) for name, pool in environment.pools.items()
    }
    elastic = environment.model_copy(update={"pools": ranged})
    assert pool_pod(elastic, "gang")["spec"] and queued_pods(elastic, "gang") == 3
    assert pool_pod(environment, "training")["metadata"]["labels"]["app.kubernetes.io/component"] == "my-step"


OPTIONS = {"code": "c0de", "examples": "/runs/e", "checkpoints": "/runs/m.checkpoints", "output": "/runs/m"}
RESOURCES = {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
GPU: dict[str, Any] = {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1, "resources": RESOURCES}
TPU = {"kind": "tpu", "accelerator": "tpu-v5-lite-podslice", "topology": "2x2", "count": 4, "engine": "jax"}
CPU = {"kind": "cpu", "accelerator": None, "count": 0}
# For each field of a pool a change that its pods must show, from GPU or from another pool.
IN_EVERY_POD: dict[str, dict[str, Any]] = {
    "evictable": {"evictable": True},
    "kind": CPU,
    "accelerator": {"accelerator": "nvidia-tesla-t4"},
    "count": {"count": 2},
    "topology": {"topology": "2x4", "count": 8},
    "engine": {"engine": "jax"},
    "spot": {"spot": True},
    "preemption_rate": {"preemption_rate": 0.1},
    "machine": {"machine": "g6.8xlarge"},
    "queue": {"queue": "research"},
    "shared_memory": {"shared_memory": "8Gi"},
    "ephemeral_storage": {"ephemeral_storage": "50Gi"},
    "resources": {"resources": {"requests": {"cpu": 5, "memory": "9Gi"}, "limits": {"memory": "9Gi"}}},
    "node_selector": {"nodeSelector": {"team": "vision"}},
    "node_affinity": {
        "nodeAffinity": [{"key": "zone", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]
    },
    "tolerations": {"tolerations": [{"key": "team", "operator": "Exists"}]},
}
IN_A_GANG = {
    "priority_class": {"priority_class": "urgent"},
    "grace_seconds": {"grace_seconds": 99},
    "start_deadline_seconds": {"start_deadline_seconds": 99},
    "workers": {"workers": 2},
    "replace_seconds": {"replace_seconds": 99, "workers": {"min": 1, "max": 2}},
}
LAUNCHER_FIELDS = {"pending_seconds": 30, "preemptions": 2}  # test_pools_in_turn has what a launcher does with them
IN_NO_POD = {"trains": True, "nodes": 7, "price_per_hour": 1.5}


def loaded(folder: Path, pool: dict[str, Any], gang: bool) -> Environment:
    """Return an environment that trains on `pool`; as a gang by its workers or else by an input worker."""
    document: dict[str, Any] = {
        "target": "kubeflow",
        "platform": "gke" if pool["kind"] == "tpu" else "karpenter",
        "storage": "s3://bucket/runs",
        "images": {variant: f"image/{variant}:1" for variant in ("cpu", "gpu", "tpu", "jax", "jax-gpu")},
        "pools": {"cpu": CPU | {"resources": RESOURCES}, "own": pool},
        "placement": {"default": "cpu", "train": "own"},
    }
    if gang and pool.get("workers", 1) == 1:
        document["input_workers"] = {"count": 1, "pool": "cpu"}
    file = folder / "own.yaml"
    file.write_text(json.dumps(document))
    return environments.load(str(file))


def step_pod(environment: Environment) -> str:
    executors = {"exec-train": {"container": {"image": "trainyard/cpu"}}}
    return json.dumps(
        place({"root": {}, "components": {}, "deploymentSpec": {"executors": executors}}, environment).documents
    )


def gang_pod(environment: Environment) -> str:
    plan = gang_spec(environment)
    assert plan is not None
    return json.dumps(worker_job(pods.gang(plan, recipes.load("digits"), "run-1", OPTIONS)))


def test_each_field_of_a_pool_reaches_the_pod_of_a_step_and_of_a_gang_or_is_refused(tmp_path: Path) -> None:
    assert {*IN_EVERY_POD, *IN_A_GANG, *LAUNCHER_FIELDS, *IN_NO_POD} == {*Pool.model_fields}
    for field, change in IN_EVERY_POD.items():
        base = GPU | TPU if field == "topology" else GPU
        for gang, pod in ((False, step_pod), (True, gang_pod)):
            before, after = (pod(loaded(tmp_path, pool, gang)) for pool in (base, base | change))
            assert before != after, f"{field} does not reach the pod of a {'gang' if gang else 'step'}"
    assert {*GANG_ONLY} == {*IN_A_GANG, *LAUNCHER_FIELDS} - {"workers", "replace_seconds"}
    for field, change in IN_A_GANG.items():
        known = {name: value for name, value in change.items() if name != field}
        assert gang_pod(loaded(tmp_path, GPU | known, True)) != gang_pod(loaded(tmp_path, GPU | change, True)), field
    for field, value in (LAUNCHER_FIELDS | {name: change[name] for name, change in IN_A_GANG.items()}).items():
        if field in GANG_ONLY:
            with pytest.raises(ConfigurationError, match=rf"pools\.own\.{field}: is for the workers of a gang, and"):
                loaded(tmp_path, GPU | {field: value}, False)
    for field, value in IN_NO_POD.items():
        for gang, pod in ((False, step_pod), (True, gang_pod)):
            assert pod(loaded(tmp_path, GPU, gang)) == pod(loaded(tmp_path, GPU | {field: value}, gang))


def test_a_launcher_has_neither_the_queue_nor_the_disk_of_its_pool() -> None:
    environment = environments.load("gke")
    small = environment.pools["small"].model_copy(update={"queue": "research", "ephemeral_storage": "90Gi"})
    gang = environment.pools["gpu-l4"].model_copy(update={"workers": 2})
    environment = environment.model_copy(
        update={
            "pools": environment.pools | {"small": small, "gpu-l4": gang},
            "placement": {"default": "small", "train": "gpu-l4"},
        }
    )
    package = compiled(recipes.load("digits"), environment)
    assert package.platform is not None
    kubernetes = package.platform["platforms"]["kubernetes"]
    configs = kubernetes["deploymentSpec"]["executors"]
    queues = {name: config["podMetadata"]["labels"].get(labels.QUEUE) for name, config in configs.items()}
    assert queues.pop("exec-train") is None and set(queues.values()) == {"research"}
    assert (
        "emptyDirMounts" not in configs["exec-train"]
        and configs["exec-push"]["emptyDirMounts"][0]["sizeLimit"] == "90Gi"
    )
    assert "activeDeadlineSeconds" not in kubernetes.get("pipelineConfig", {})
