"""The pod that doctor has tried is the one that a run will have: no setting of its own."""

from typing import Any

from trainyard.spec import environment as environments
from trainyard.spec.environment import Environment, Volume
from trainyard_control.cluster.checks import pool_pod
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
    assert pool_pod(environment, "training")["metadata"]["labels"]["app.kubernetes.io/component"] == "my-step"
