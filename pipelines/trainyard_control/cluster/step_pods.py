"""The pods that a run has on the pools of an environment, for `doctor` to have tried: made from what `place` and the gang's launcher make."""

from __future__ import annotations

from typing import Any

from trainyard.contract.gang import STEP as TRAIN
from trainyard.contract.gang import gang_plan
from trainyard.graph import OUTPUTS, STEPS
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import DEFAULT, Environment
from trainyard.steps.train.gang.pods.job import worker_job
from trainyard.steps.train.gang.pods.pods import gang
from trainyard_control.compiler.placement import IMAGE, Spec, place

Manifest = dict[str, Any]


def pool_pod(environment: Environment, name: str) -> Manifest:
    """Return a pod of a run on the pool `name`: a step's as Kubeflow makes it from what `place` writes, or a gang's worker.

    The pool must be one that steps are placed on.
    """
    step = next(each for each in _steps(environment) if _pool_of(environment, each) == name)
    plan = gang_plan(environment)
    if plan and _pool_of(environment, TRAIN) == name:
        options = dict.fromkeys(("code", "examples", "checkpoints", "output"), "doctor")
        template = worker_job(gang(plan, recipes.load("digits"), "doctor", options))["spec"]["template"]
        return _pod(template["metadata"]["labels"], template["spec"])
    placed = place(_pipeline(environment), environment)
    container = placed.pipeline["deploymentSpec"]["executors"][f"exec-{step}"]["container"]
    platform = placed.platform or {"platforms": {"kubernetes": {"deploymentSpec": {"executors": {}}}}}
    config = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].get(f"exec-{step}", {})
    spec = _as_kubeflow_makes_it(container, config)
    if account := environment.service_accounts.run:
        spec["serviceAccountName"] = account
    return _pod(config.get("podMetadata", {}).get("labels", {}), spec)


def _steps(environment: Environment) -> list[str]:
    """Return Trainyard's steps, and those of other pipelines that the environment names."""
    named = {*environment.placement, *environment.timeout_seconds, *environment.retries} - {DEFAULT}
    return list(dict.fromkeys([*OUTPUTS, *STEPS, *sorted(named)]))


def _pool_of(environment: Environment, step: str) -> str:
    return environment.placement.get(step, environment.placement[DEFAULT])


def _pipeline(environment: Environment) -> Spec:
    """Return the IR of a pipeline that has all steps and no tasks, as far as `place` looks at it."""
    executors = {f"exec-{step}": {"container": {"image": IMAGE}} for step in _steps(environment)}
    return {"root": {}, "components": {}, "deploymentSpec": {"executors": executors}}


def _as_kubeflow_makes_it(container: Spec, config: Spec) -> Manifest:
    """Return the pod's spec less Argo's own containers, which Kubeflow gives rights of their own.

    Source: Kubeflow Pipelines 2.17.0, backend/src/v2/compiler/argocompiler/security_context.go
    (applySecurityContextToExecutorTemplate) and backend/src/v2/driver/k8s.go (extendPodSpecPatch).
    """
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    user = {
        key: value if isinstance(value, bool) else int(value)
        for key, value in config.get("securityContext", {}).items()
    }
    resources = container["resources"]
    main: Manifest = {
        "name": "main",
        "image": container["image"],
        "env": [*container.get("env", []), *_from_secrets(config)],
        "resources": {"requests": _quantities(resources, "Request"), "limits": _quantities(resources, "Limit")},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **seccomp, **user},
        "volumeMounts": [],
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "securityContext": dict(seccomp),
        "containers": [main],
        "nodeSelector": config.get("nodeSelector", {}).get("labels", {}),
        "tolerations": config.get("tolerations", []),
        "volumes": [],
    }
    for mount in config.get("pvcMount", []):
        source = {"persistentVolumeClaim": {"claimName": mount["constant"]}}
        spec["volumes"].append({"name": mount["constant"], **source})
        main["volumeMounts"].append({"name": mount["constant"], "mountPath": mount["mountPath"]})
    for mount in config.get("emptyDirMounts", []):
        source = {"emptyDir": {"medium": mount["medium"], "sizeLimit": mount["sizeLimit"]}}
        spec["volumes"].append({"name": mount["volumeName"], **source})
        main["volumeMounts"].append({"name": mount["volumeName"], "mountPath": mount["mountPath"]})
    if seconds := config.get("activeDeadlineSeconds"):
        spec["activeDeadlineSeconds"] = int(seconds)
    return spec


def _quantities(resources: Spec, end: str) -> dict[str, str]:
    names = {"cpu": f"resourceCpu{end}", "memory": f"resourceMemory{end}"}
    found = {kind: str(resources[name]) for kind, name in names.items() if name in resources}
    accelerator = resources.get("accelerator")
    # Kubeflow writes accelerators as limits alone, and Kubernetes takes a limit without a request for both.
    return found | ({accelerator["resourceType"]: accelerator["resourceCount"]} if accelerator else {})


def _from_secrets(config: Spec) -> list[Manifest]:
    return [
        {"name": key["envVar"], "valueFrom": {"secretKeyRef": {"name": one["secretName"], "key": key["secretKey"]}}}
        for one in config.get("secretAsEnv", [])
        for key in one["keyToEnv"]
    ]


def _pod(labels: dict[str, str], spec: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "trainyard-doctor-", "labels": labels},
        "spec": spec,
    }
