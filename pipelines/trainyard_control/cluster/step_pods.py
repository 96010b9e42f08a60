"""The pods that a run has on the pools of an environment, for `doctor` to try: a step's, or a gang's worker."""

from __future__ import annotations

from trainyard.contract.training.gang import STEP as TRAIN
from trainyard.contract.training.gang import gang_spec
from trainyard.graph import OUTPUTS, STEPS
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.pod_spec import pod_spec, variables
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import DEFAULT, Environment
from trainyard.steps.train.gang.pods.job import worker_job
from trainyard.steps.train.gang.pods.pods import gang


def pool_pod(environment: Environment, name: str) -> Manifest:
    """Return a pod of a run on the pool `name`, which must be one that steps or input workers are placed on.

    A step's is without Argo's own containers, which Kubeflow gives rights of their own. Source: Kubeflow Pipelines
    2.17.0, backend/src/v2/compiler/argocompiler/security_context.go (applySecurityContextToExecutorTemplate).
    """
    step = next((step for step in _steps(environment) if environment.pool_name(step) == name), "")
    plan = gang_spec(environment)
    if plan and (environment.pool_name(TRAIN) == name or not step):
        options = dict.fromkeys(("code", "examples", "checkpoints", "output"), "doctor")
        training = gang(plan, recipes.load("digits"), "doctor", options)
        job = worker_job(training if step or training.input is None else training.input)
        template = job["spec"]["template"]
        return _pod(template["metadata"]["labels"], template["spec"])
    pool = environment.pools[name]
    spec = pod_spec(pool, environment.platform, environment.volume) | {"restartPolicy": "Never"}
    spec["containers"][0] |= {
        "name": "main",
        "image": environment.images[pool.variant],
        "env": variables(environment.variables, environment.secrets),
    }
    if account := environment.service_accounts.run:
        spec["serviceAccountName"] = account
    if seconds := environment.timeout_of(step):
        spec["activeDeadlineSeconds"] = seconds
    return _pod(labels.of_step(step) | {labels.POOL: name}, spec)


def _steps(environment: Environment) -> list[str]:
    """Return Trainyard's steps, and those of other pipelines that the environment names."""
    others = {*environment.placement, *environment.timeout_seconds, *environment.retries} - {DEFAULT}
    return list(dict.fromkeys([*OUTPUTS, *STEPS, *sorted(others)]))


def _pod(own_labels: dict[str, str], spec: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "trainyard-doctor-", "labels": own_labels},
        "spec": spec,
    }
