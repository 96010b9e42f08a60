"""The pod that doctor has tried is the one that a run will have: no setting of its own."""

from typing import Any

import pytest

from trainyard.spec import environment as environments
from trainyard.spec.environment import Environment, Volume
from trainyard_control.cluster.step_pods import pool_pod
from trainyard_control.compiler import placement


def main(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def gke(**pool: Any) -> Environment:
    place = environments.load("gke")
    pools = place.pools | {"gpu-l4": place.pools["gpu-l4"].model_copy(update=pool)}
    return place.model_copy(update={"pools": pools})


def test_the_pod_of_a_pool_says_what_place_writes_and_what_kubeflow_adds() -> None:
    pod = pool_pod(gke(), "gpu-l4")
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "train"
    assert pod["spec"]["serviceAccountName"] == "trainyard-launcher"
    assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-l4"
    assert [each["key"] for each in pod["spec"]["tolerations"]] == ["nvidia.com/gpu", "cloud.google.com/gke-spot"]
    assert pod["spec"]["activeDeadlineSeconds"] == 86400
    assert main(pod)["image"] == "registry.example.com/trainyard/gpu:0.1.0"
    requests = {"cpu": "6", "memory": "24Gi", "nvidia.com/gpu": "1"}
    assert main(pod)["resources"] == {"requests": requests, "limits": {"memory": "24Gi", "nvidia.com/gpu": "1"}}
    assert main(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 65532,
        "runAsNonRoot": True,
    }


def test_a_step_that_place_gave_no_user_has_none_in_the_pod_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "RUN_AS_USER", None)
    context = main(pool_pod(gke(), "gpu-l4"))["securityContext"]
    assert "runAsNonRoot" not in context and "runAsUser" not in context


def test_volumes_shared_memory_and_secrets_are_those_of_the_step() -> None:
    place = gke(count=2, shared_memory="8Gi").model_copy(update={"volume": Volume(claim="runs", path="/mnt/runs")})
    pod = pool_pod(place, "gpu-l4")
    assert {each["name"] for each in pod["spec"]["volumes"]} == {"runs", "shared-memory"}
    mounts = {each["name"]: each["mountPath"] for each in main(pod)["volumeMounts"]}
    assert mounts == {"runs": "/mnt/runs", "shared-memory": "/dev/shm"}
    variables = {each["name"]: each for each in main(pool_pod(environments.load("kind"), "training"))["env"]}
    assert variables["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["key"] == "accesskey"


def test_a_pool_that_trains_in_a_gang_is_tried_with_a_worker_and_a_pool_of_another_pipelines_step_with_that() -> None:
    kind = environments.load("kind")
    place = kind.model_copy(update={"placement": kind.placement | {"train": "gang", "my-step": "training"}})
    worker = pool_pod(place, "gang")
    assert main(worker)["command"][2] == "trainyard.steps.train.gang.pods.pod"
    assert main(worker)["securityContext"]["readOnlyRootFilesystem"]
    assert pool_pod(place, "training")["metadata"]["labels"]["app.kubernetes.io/component"] == "my-step"
