"""Trains in a gang of pods: what the train step's own process does where its environment's pool has several workers."""

from __future__ import annotations

import os
import signal
import socket

from trainyard.contract.gang import GangPlan
from trainyard.signals import told_to_stop
from trainyard.spec import documents, plain_yaml
from trainyard.spec.pools import placement, promise
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang import launcher_sign
from trainyard.steps.train.gang.pods.cluster import Cluster, connect
from trainyard.steps.train.gang.pods.job import Gang
from trainyard.steps.train.gang.pods.launch import launch

# Labels of a pod that say which run it belongs to: of Kubeflow Pipelines, and of Argo alone.
_RUN_LABELS = ("pipeline/runid", "workflows.argoproj.io/workflow")


def run_in_pods(
    recipe: Recipe, plan: str, code: str, examples: str, checkpoints: str, output: str, start: str = ""
) -> None:
    """Worker 0 of a gang of pods has committed `output`; nothing else of the gang is left.

    plan: JSON text of a `GangPlan`. code: what the workers' image must hold, as `task.opened` reads it. start: as
    `train.run.run`. A SIGTERM to this process ends the gang too (see `launch`). Raises as `launch`.
    """
    parsed = documents.parse(plan, GangPlan, name="gang")
    signal.signal(signal.SIGTERM, told_to_stop)
    cluster = connect()
    own = os.environ.get("KFP_POD_NAME") or socket.gethostname()
    options = {"code": code, "examples": examples, "checkpoints": checkpoints, "start": start, "output": output}
    sign = launcher_sign.sign(checkpoints)
    planned = gang(parsed, recipe, f"{run_name(cluster, own)}-{output.rpartition('/')[2]}", options)
    with launcher_sign.given(sign):
        launch(planned, cluster, own, on_start=lambda seconds: launcher_sign.note_queue(sign, seconds))
    launcher_sign.forget(sign)


def run_name(cluster: Cluster, pod: str) -> str:
    """Return the name of the run that the pod belongs to; its own name where it belongs to none.

    It is read from the pod and is no parameter of the step: KFP would take each run's training for another one.
    """
    labels = ((cluster.pod(pod) or {}).get("metadata") or {}).get("labels") or {}
    return next((str(labels[name]) for name in _RUN_LABELS if labels.get(name)), pod)


def gang(plan: GangPlan, recipe: Recipe, run: str, options: dict[str, str]) -> Gang:
    """Return the gang of `plan` for one output of one run; `options` are those of `python -m trainyard.steps.train.gang.pods.pod`."""
    pool = plan.pool
    sign = {"TRAINYARD_LAUNCHER_SIGN": launcher_sign.sign(options["checkpoints"])}
    text = plain_yaml.dump(recipe.model_dump(mode="json"))
    return Gang(
        run=f"{recipe.name}-{run}",
        image=plan.image,
        command=(
            "python",
            "-m",
            "trainyard.steps.train.gang.pods.pod",
            *(f"--{name}={value}" for name, value in options.items()),
        ),
        workers=plan.workers,
        placement=placement(pool, plan.platform),
        resources=pool.resources,
        environment={**plan.variables, **promise(pool), **sign, "TRAINYARD_RECIPE": text},
        secrets=plan.secrets,
        volume=plan.volume,
        service_account=plan.service_account,
        priority_class=pool.priority_class,
        queue=pool.queue,
        shared_memory=pool.shared_memory,
        ephemeral_storage=pool.ephemeral_storage,
        grace_seconds=pool.grace_seconds,
        start_deadline_seconds=pool.start_deadline_seconds,
        timeout_seconds=plan.timeout_seconds,
    )
