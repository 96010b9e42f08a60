"""`trainyard pools`: a pool held against nodes, and an environment drafted from the nodes of five platforms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard.spec.hardware.pools import Pool, placement
from trainyard_control.cli.main import app
from trainyard_control.cluster.drafting import draft
from trainyard_control.cluster.scheduling import Nodes, count_nodes

TYPE = "node.kubernetes.io/instance-type"


def node(
    name: str, labels: dict[str, str], taints: tuple[str, ...] = (), ready: bool = True, **allocatable: str
) -> dict[str, Any]:
    """Return a node; a taint is written key=value:effect."""
    written = [taint.partition(":") for taint in taints]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "taints": [
                {"key": left.partition("=")[0], "value": left.partition("=")[2], "effect": effect}
                for left, _, effect in written
            ]
        },
        "status": {
            "allocatable": {"cpu": "8", "memory": "30Gi", "pods": "110"}
            | {k.replace("__", "/"): v for k, v in allocatable.items()},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


GPU: dict[str, str] = {"nvidia.com__gpu": "1"}

# Written after the platforms' documentation; sources in trainyard/spec/hardware/hardware.yaml.
GKE = [
    node("cpu", {"cloud.google.com/gke-nodepool": "default-pool", TYPE: "e2-standard-8"}),
    *(
        node(
            f"l4-{index}",
            {
                "cloud.google.com/gke-nodepool": "spot-l4",
                "cloud.google.com/gke-accelerator": "nvidia-l4",
                "cloud.google.com/gke-spot": "true",
                TYPE: "g2-standard-8",
            },
            ("nvidia.com/gpu=present:NoSchedule", "team=vision:NoSchedule"),
            cpu="7910m",
            memory="27Gi",
            **GPU,
        )
        for index in range(2)
    ),
    node(
        "v6e",
        {
            "cloud.google.com/gke-nodepool": "v6e",
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "2x2",
            TYPE: "ct6e-standard-4t",
        },
        ("google.com/tpu=present:NoSchedule",),
        **{"google.com__tpu": "4"},
    ),
]
EKS = [
    node("cpu", {"eks.amazonaws.com/nodegroup": "system", TYPE: "m5.2xlarge"}),
    node(
        "gpu",
        {"eks.amazonaws.com/nodegroup": "gpu", "eks.amazonaws.com/capacityType": "SPOT", TYPE: "g6.12xlarge"},
        ("nvidia.com/gpu=true:NoSchedule",),
        cpu="47",
        memory="180Gi",
        **{"nvidia.com__gpu": "4"},
    ),
]
KARPENTER = [
    node("cpu", {"karpenter.sh/nodepool": "general", TYPE: "m5.2xlarge", "karpenter.sh/capacity-type": "on-demand"}),
    node(
        "gpu",
        {
            "karpenter.sh/nodepool": "training",
            "karpenter.sh/capacity-type": "spot",
            "karpenter.k8s.aws/instance-gpu-name": "a100",
            "karpenter.k8s.aws/instance-gpu-memory": "81920",
            TYPE: "p4de.24xlarge.made-up",
        },
        ("nvidia.com/gpu=true:NoSchedule",),
        cpu="95",
        memory="1100Gi",
        **{"nvidia.com__gpu": "8"},
    ),
]
AKS = [
    node("system", {"kubernetes.azure.com/agentpool": "system"}, ("CriticalAddonsOnly=true:NoSchedule",)),
    node("cpu", {"kubernetes.azure.com/agentpool": "workers", TYPE: "Standard_D8s_v5"}),
    node(
        "gpu",
        {
            "kubernetes.azure.com/agentpool": "a100spot",
            "kubernetes.azure.com/accelerator": "nvidia",
            "kubernetes.azure.com/scalesetpriority": "spot",
            TYPE: "Standard_NC24ads_A100_v4",
        },
        ("kubernetes.azure.com/scalesetpriority=spot:NoSchedule", "sku=gpu:NoSchedule"),
        cpu="23",
        memory="200Gi",
        **GPU,
    ),
]
OPERATOR = [
    node("cp", {}, ("node-role.kubernetes.io/control-plane=:NoSchedule",)),
    node("worker", {}),
    node("gpu", {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.present": "true"}, **GPU),
    node("odd", {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"}, **GPU),
]


def load(tmp_path: Path, nodes: list[dict[str, Any]]) -> environments.Environment:
    file = tmp_path / "drafted.yaml"
    file.write_text(draft(nodes))
    return environments.load(str(file))


@pytest.mark.parametrize(
    ("nodes", "platform", "pool", "expected"),
    [
        (GKE, "gke", "spot-l4", ("gpu", "nvidia-l4", 1, "g2-standard-8", True)),
        (GKE, "gke", "v6e", ("tpu", "tpu-v6e-slice", 4, "ct6e-standard-4t", False)),
        (GKE, "gke", "default-pool", ("cpu", None, 0, "e2-standard-8", False)),
        (EKS, "eks", "gpu", ("gpu", "nvidia-l4", 4, "g6.12xlarge", True)),
        (KARPENTER, "karpenter", "training", ("gpu", "nvidia-a100-80gb", 8, "p4de.24xlarge.made-up", True)),
        (AKS, "aks", "a100spot", ("gpu", "nvidia-a100-80gb", 1, "Standard_NC24ads_A100_v4", True)),
        (OPERATOR, "kubernetes", "tesla-t4", ("gpu", "nvidia-tesla-t4", 1, None, False)),
    ],
)
def test_the_nodes_of_a_platform_become_pools(
    nodes: list[dict[str, Any]], platform: str, pool: str, expected: tuple[object, ...], tmp_path: Path
) -> None:
    drafted = load(tmp_path, nodes)
    drafted_pool = drafted.pools[pool]
    assert drafted.platform == platform
    assert (
        drafted_pool.kind,
        drafted_pool.accelerator,
        drafted_pool.count,
        drafted_pool.machine,
        drafted_pool.spot,
    ) == expected


@pytest.mark.parametrize("nodes", [GKE, EKS, KARPENTER, AKS, OPERATOR])
def test_every_drafted_pool_reaches_its_own_nodes_and_has_room_there(
    nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    drafted = load(tmp_path, nodes)
    assert drafted.placement["train"] in drafted.pools and drafted.pools[drafted.placement["default"]].kind == "cpu"
    for pool in drafted.pools.values():
        node_count = count_nodes(pool, drafted.platform, nodes, [])
        assert node_count.room == node_count.ready == node_count.matching >= pool.nodes  # type: ignore[operator]


def test_taints_of_a_team_are_tolerated_and_those_of_the_profile_are_not_repeated(tmp_path: Path) -> None:
    pool = load(tmp_path, GKE).pools["spot-l4"]
    assert [toleration.key for toleration in pool.tolerations] == ["team"] and pool.nodes == 2
    assert {toleration.key for toleration in placement(pool, "gke").tolerations} == {
        "team",
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
    }


def test_the_nodes_of_one_slice_are_a_gang_for_jax(tmp_path: Path) -> None:
    labels = {
        "cloud.google.com/gke-nodepool": "v6e-8",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "2x4",
        TYPE: "ct6e-standard-4t",
    }
    hosts = [
        node(f"host-{i}", labels, ("google.com/tpu=present:NoSchedule",), **{"google.com__tpu": "4"}) for i in (0, 1)
    ]
    drafted = load(tmp_path, [GKE[0], *hosts])
    assert (drafted.pools["v6e-8"].workers, drafted.pools["v6e-8"].trained_by) == (2, "jax")
    assert set(drafted.images) == {"cpu", "jax"}


def test_what_the_catalog_does_not_know_is_left_out_with_the_reason() -> None:
    text = draft(OPERATOR)
    assert "left out: its GPU (NVIDIA-GeForce-RTX-4090) is not in the catalog" in text
    assert "control-plane" not in text
    with pytest.raises(ConfigurationError, match="no node of this cluster can be used"):
        draft(OPERATOR[:1])


def test_nodes_that_are_not_ready_or_full_are_told_apart() -> None:
    resources = {"requests": {"cpu": "6", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}
    pool = Pool.model_validate({"kind": "gpu", "accelerator": "nvidia-l4", "count": 1, "resources": resources})
    label = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    taint = ("nvidia.com/gpu=present:NoSchedule",)
    nodes = [
        node("free", label, taint, **GPU),
        node("full", label, taint, **GPU),
        node("down", label, taint, ready=False, **GPU),
        node("closed", label, (*taint, "other=x:NoSchedule"), **GPU),
        node("cpu", {}),
    ]
    holder = {
        "metadata": {"name": "holder", "namespace": "default"},
        "spec": {"nodeName": "full", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running"},
    }
    assert count_nodes(pool, "gke", nodes, [holder]) == Nodes(matching=3, ready=2, room=1)


def test_pools_are_listed_with_prices_and_without_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["pools", "-e", "gke", "-o", "json"])
    assert result.exit_code == 0, result
    rows = {row["pool"]: row for row in json.loads(result.stdout)}
    assert rows["gpu-l4"] == {
        "pool": "gpu-l4", "kind": "gpu", "machine": "g2-standard-8", "accelerator": "nvidia-l4",
        "count": 1, "topology": None,
        "workers": 1, "spot": True, "usd_per_hour": 0.3406, "price_region": "us-central1", "price_date": "2026-11-21",
        "nodes": None,
    }  # fmt: skip
    shown = CliRunner().invoke(app, ["pools", "-e", "gke"])
    assert (
        "List prices of us-central1 as of 2026-08-03 and 2026-11-21. No nodes counted: no cluster is configured here."
        in shown.stdout
    )
