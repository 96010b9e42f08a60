"""`trainyard pools` on a real cluster: the drafted environment loads, and its pools find their nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.spec import environment as environments

PROGRAM = str(Path(sys.executable).parent / "trainyard")


def trainyard(*arguments: str) -> str:
    return subprocess.run([PROGRAM, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.cluster
def test_a_drafted_environment_loads_and_every_pool_has_ready_nodes(tmp_path: Path) -> None:
    file = tmp_path / "drafted.yaml"
    file.write_text(trainyard("pools", "--from-cluster"))
    drafted = environments.load(str(file))
    assert {"cpu", "gpu", "tpu"} <= drafted.pools.keys()
    assert drafted.pools["gpu"].accelerator == "nvidia-l4" and drafted.placement == {"default": "cpu", "train": "gpu"}
    rows = {row["pool"]: row["nodes"] for row in json.loads(trainyard("pools", "-e", str(file), "-o", "json"))}
    assert rows["cpu"]["matching"] >= 2 and rows["gpu"]["ready"] >= 1


@pytest.mark.cluster
def test_a_pool_without_nodes_counts_none() -> None:
    rows = {row["pool"]: row["nodes"] for row in json.loads(trainyard("pools", "-e", "gke", "-o", "json"))}
    assert rows["gpu-l4"] == {"matching": 0, "ready": 0, "room": 0}  # the cluster's GPU nodes are no Spot nodes
