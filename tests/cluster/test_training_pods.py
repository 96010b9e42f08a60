"""Two pods on two nodes train together on a volume they share, and go on when one of them is taken away.

TRAINYARD_IMAGE names the image (images/Dockerfile, target cpu) that every node has.
"""

from __future__ import annotations

import json
import os
from typing import Any

import plans
import pytest
from launcher import gang
from namespaces import Namespace, until

IMAGE = os.environ.get("TRAINYARD_IMAGE", "")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]

RECIPE = """
name: digits
data: {format: image_folder, bundled: digits, channels: 1}
model: {name: cnn_small}
train: {workers: 2, epochs: 6, batch_size: 64, checkpoints: {every_steps: 5}}
"""
PREPARE = """
import os, pathlib, sys
pathlib.Path("/runs/recipe.yaml").write_text(sys.argv[1])
os.execvp("python", ["python", "-m", "trainyard.preprocess", "--recipe=/runs/recipe.yaml", "--output=/runs/examples"])
"""
RESULT = """
import json, sys
from trainyard.core.artifacts import Training
folder = sys.argv[1]
document = Training.read(folder)
losses = [[epoch.train_loss, epoch.eval_loss] for epoch in document.history]
print(json.dumps({"steps": document.steps, "workers": document.workers, "losses": losses}))
"""
MEMORY = {"requests": {"cpu": "500m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}


def in_image(run: str, *command: str, workers: int = 1) -> dict[str, Any]:
    pool = plans.POOLS["cpu"] | {"resources": MEMORY}
    return plans.plan(run, "") | {
        "image": IMAGE,
        "command": list(command),
        "workers": workers,
        "pool": pool,
        "grace_seconds": 20,
        "storage": {"name": "runs", "path": "/runs"},
        "environment": {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"},
    }


def training(run: str) -> dict[str, Any]:
    folder = f"/runs/{run}"
    options = {
        "recipe": "/runs/recipe.yaml",
        "examples": "/runs/examples",
        "checkpoints": f"{folder}.checkpoints",
        "output": folder,
    }
    command = ["python", "-m", "trainyard.train.supervisor", *(f"--{name}={value}" for name, value in options.items())]
    return in_image(run, *command, workers=2)


def result(namespace: Namespace, run: str) -> dict[str, Any]:
    launcher = namespace.launch(in_image(f"read-{run}", "python", "-c", RESULT, f"/runs/{run}"))
    assert launcher.code() == 0, launcher.said
    return json.loads(next(line for line in launcher.said.splitlines() if line.startswith('{"steps"')))


@pytest.fixture(scope="module")
def prepared(namespace: Namespace) -> Namespace:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "runs"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "standard-rwx",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(claim))
    launcher = namespace.launch(in_image("prepare", "python", "-c", PREPARE, RECIPE))
    assert launcher.code(180) == 0, launcher.said
    return namespace


@pytest.fixture(scope="module")
def undisturbed(prepared: Namespace) -> dict[str, Any]:
    launcher = prepared.launch(training("calm"))
    assert launcher.code(240) == 0, launcher.said
    print(launcher.said)
    return result(prepared, "calm")


def test_two_pods_train_one_model(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["workers"] == 2


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_is_evicted_mid_run_changes_nothing(
    prepared: Namespace, undisturbed: dict[str, Any], index: int
) -> None:
    plan = training(f"evict-{index}")
    launcher = prepared.launch(plan)
    launcher.says('{"event": "progress"', 120)
    name = gang(plan).name
    victim = next(
        pod["metadata"]["name"] for pod in prepared.pods(name) if f"{name}-{index}-" in pod["metadata"]["name"]
    )
    prepared.evict(victim)
    assert launcher.code(240) == 0, launcher.said
    print(launcher.said)
    assert result(prepared, f"evict-{index}") == undisturbed
    until(lambda: not prepared.left_of(name), 10)
