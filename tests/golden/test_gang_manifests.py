"""The objects that a training gang is made of, reviewed as diffs; `make goldens` writes them again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from page_block import require_committed

from trainyard.spec.environment import CaBundle, Volume
from trainyard.spec.hardware.pools import Pool, training_variables
from trainyard.steps.train.gang.pods.job import Gang, headless_service, network_policy, owner_reference, worker_job

GOLDENS = Path(__file__).parent
RUN = owner_reference("argoproj.io/v1alpha1", "Workflow", "digits-x7k2p", "11111111-run")
RESOURCES = {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
POOLS = {
    "cpu": {"kind": "cpu"},
    "gpu": {"kind": "gpu", "accelerator": "nvidia-l4", "count": 2, "spot": True}
    | {"queue": "research", "priority_class": "batch"},
    "tpu": {"kind": "tpu", "accelerator": "tpu-v6e-slice", "topology": "2x4", "count": 4, "workers": 2},
}


def gang(kind: str) -> Gang:
    pool = Pool.model_validate(POOLS[kind] | {"resources": RESOURCES, "start_deadline_seconds": 300})
    return Gang(
        run="digits-x7k2p",
        image=f"registry.example.com/trainyard/{pool.variant}:0.1.0",
        command=("python", "-m", "trainyard.steps.train.gang.supervisor", "--recipe", "/runs/recipe.yaml"),
        workers=2,
        pool=pool,
        platform="gke",
        environment={"TRAINYARD_STALL_SECONDS": "600", **(training_variables(pool) if kind == "tpu" else {})},
        volume=Volume(claim="runs", path="/runs") if kind == "gpu" else None,
        ca_bundle=CaBundle(secret="company-ca", key="ca.crt") if kind == "gpu" else None,
    )


def input_gang() -> Gang:
    module = "trainyard.steps.train.input.service.worker"
    token = {"TRAINYARD_GANG_TOKEN": "33333333-training"}
    return replace(gang("cpu"), command=("python", "-m", module), environment=token, feeds=gang("gpu").name)


@pytest.mark.parametrize("kind", [*POOLS, "input"])
def test_a_gang_is_the_committed_job_service_and_network_policy(kind: str) -> None:
    job = "22222222-job"
    made = input_gang() if kind == "input" else gang(kind)
    objects = [worker_job(made, RUN), headless_service(made, job), network_policy(made, job)]
    text = yaml.safe_dump_all(objects, sort_keys=False)
    require_committed(GOLDENS / f"gang-{kind}.yaml", text)
