"""The checks of `doctor`, as pure functions of what the cluster says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import yaml

from trainyard.contract.gang import STEP as TRAIN
from trainyard.contract.gang import gang_spec, launches
from trainyard.errors import ExitCode
from trainyard.graph import OUTPUTS, STEPS
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import MAIN, WAIT
from trainyard.kubernetes.pod_spec import pod_spec, variables
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import DEFAULT, LISTED, Environment
from trainyard.steps.train.gang.pods.job import worker_job
from trainyard.steps.train.gang.pods.pods import gang
from trainyard_control.cluster.scheduling import (
    capacity,
    find_obstacle,
)

Verdict = Literal["good", "bad", "unknown"]
SEVERITY = {ExitCode.DONE: 0, ExitCode.TRANSIENT: 1, ExitCode.CONFIGURATION: 2, ExitCode.INFRASTRUCTURE: 3}
# Permissions that k8s/base/gang-rbac.yaml grants to the launcher's account: (verb, group, resource, subresource).
LAUNCHER_NEEDS = (
    ("create", "batch", "jobs", ""),
    ("get", "batch", "jobs", ""),
    ("patch", "batch", "jobs", ""),
    ("delete", "batch", "jobs", ""),
    ("create", "", "services", ""),
    ("create", "networking.k8s.io", "networkpolicies", ""),
    ("get", "", "pods", ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
)
# What Kubeflow gives its own containers. Source: https://github.com/kubeflow/pipelines,
# backend/src/v2/compiler/argocompiler/argo.go (driverResources, launcherResources) and security_context.go.
_DRIVER = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}
_LAUNCHER = {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "256Mi"}}
_HARDENED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Permissions that runs, explain and runs cancel need.
PERSON_NEEDS = (
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
    ("list", "batch", "jobs", ""),
    ("delete", "batch", "jobs", ""),
)

# Permissions that pods of images need.
POD_NEEDS = (
    ("create", "", "pods", ""),
    ("get", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("delete", "", "pods", ""),
)


@dataclass(frozen=True)
class Check:
    """One check. code: the exit code that a run would get, DONE unless the verdict is bad."""

    name: str
    verdict: Verdict
    sentence: str
    code: ExitCode = ExitCode.DONE


def good(name: str, sentence: str) -> Check:
    """Create a passed check."""
    return Check(name, "good", sentence)


def bad(name: str, sentence: str, code: ExitCode = ExitCode.INFRASTRUCTURE) -> Check:
    """Create a failed check; its sentence ends with what to do."""
    return Check(name, "bad", sentence, code)


def unknown(name: str, sentence: str) -> Check:
    """Create a check without a result, or one that need not pass."""
    return Check(name, "unknown", sentence)


def worst(checks: list[Check]) -> ExitCode:
    """Return the exit code of the most severe fault: 40 before 20 before 30."""
    return max((check.code for check in checks), key=lambda code: SEVERITY[code], default=ExitCode.DONE)


def version(server: str, sdk: str) -> Check:
    """Compare the server's version with that of the compiler."""
    server_numbers, sdk_numbers = _numbers(server), _numbers(sdk)
    if not server_numbers:
        return unknown("kubeflow version", f"the server does not say its version ('{server}'); packages are of {sdk}")
    if server_numbers[0] != sdk_numbers[0]:
        return bad(
            "kubeflow version",
            f"the server is {server}, packages are of {sdk}. Upgrade Kubeflow Pipelines to {sdk_numbers[0]}.x",
        )
    if server_numbers < sdk_numbers[:2]:
        return unknown(
            "kubeflow version",
            f"the server is {server}, older than the packages' {sdk}: new features may fail. "
            "Before 2.17 a run has no deadline: set deadline_seconds: 0",
        )
    return good("kubeflow version", f"the server is {server}, packages are of {sdk}")


def space(environment: Environment, multi_user: bool) -> Check:
    """Check that the server runs pods in the environment's namespace; a single-user server has only one."""
    own, named = environment.kubeflow.namespace, environment.namespace
    if multi_user or own == named:
        return good("runs' namespace", named)
    sentence = f"this Kubeflow is for one user and runs everything in its own namespace, not in '{named}'"
    if environment.kubeflow.endpoint:
        return unknown("runs' namespace", f"{sentence}; right where '{named}' is its own")
    return bad("runs' namespace", f"{sentence}. Set namespace: {own}", ExitCode.CONFIGURATION)


def pod_security(namespace: Manifest) -> Check:
    """Report the namespace's Pod Security level; steps and gangs meet 'restricted'."""
    level = namespace["metadata"].get("labels", {}).get(labels.POD_SECURITY)
    name = namespace["metadata"]["name"]
    if level is None:
        return unknown("pod security", f"namespace {name} enforces none; steps would pass 'restricted' too")
    return good("pod security", f"namespace {name} enforces '{level}', which steps and gangs pass")


def image(variant: str, name: str) -> Check:
    """Check an image's name."""
    label = f"image {variant}"
    if not re.fullmatch(r"[a-z0-9.:_/-]+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", name):
        return bad(label, f"'{name}' is no image name. Write registry/name:tag", ExitCode.CONFIGURATION)
    tag = name.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if "@sha256:" not in name and tag in ("", "latest"):
        return bad(
            label,
            f"'{name}' has no unique tag: nodes may run different images. Name a tag or a digest",
            ExitCode.CONFIGURATION,
        )
    return good(label, f"{name} names one image; its registry is not asked")


def pool_capacity(environment: Environment, name: str, nodes: list[Manifest], pods: list[Manifest] | None) -> Check:
    """Check that the pool has nodes, and report for how many pods they have room now."""
    label = f"pool {name}"
    spec = pool_pod(environment, name)["spec"]
    obstacle = find_obstacle(spec, nodes, None)
    if obstacle and obstacle.kind == "label" and environment.platform != "kubernetes":
        return unknown(label, f"{obstacle.sentence}; right if the pool grows from zero nodes")
    if obstacle:
        code = ExitCode.CONFIGURATION if obstacle.permanent else ExitCode.TRANSIENT
        return bad(label, obstacle.advice, code)
    fitting = [node for node in nodes if find_obstacle(spec, [node], None) is None]
    if pods is None:
        return good(label, f"{len(fitting)} nodes; their free capacity may not be read")
    room_for = sum(capacity(spec, node, pods) for node in fitting)
    needed = sum(_pods(environment, name))
    if room_for < needed:
        return unknown(
            label, f"{len(fitting)} nodes, room for {room_for} of {needed} pods now: the run waits until others end"
        )
    return good(label, f"{len(fitting)} nodes, room for {room_for} pods now, {needed} needed")


def claim(environment: Environment, volume_claim: Manifest | None) -> Check:
    """Check the volume that all pods share."""
    name = environment.volume.claim if environment.volume else ""
    if volume_claim is None:
        return bad("volume", f"no PersistentVolumeClaim '{name}' in namespace {environment.namespace}. Create it")
    modes = volume_claim["spec"].get("accessModes", [])
    if "ReadWriteMany" not in modes:
        return bad(
            "volume", f"'{name}' is {', '.join(modes)}: pods on other nodes cannot mount it. Make it ReadWriteMany"
        )
    phase = volume_claim.get("status", {}).get("phase", "unknown")
    if phase == "Bound":
        return good("volume", f"'{name}' is bound, {', '.join(modes)}")
    return unknown("volume", f"'{name}' is {phase}; it may be bound when the first pod comes")


def retries(config: Manifest | None, namespace: str) -> Check:
    """Check that the workflow controller does not change the meaning of `retries`.

    The default of KFP 2.17 (limit 2, OnError) nests with a step's retries, and does not retry failing exit codes.
    """
    if config is None:
        return unknown(
            "retry policy", f"no ConfigMap workflow-controller-configmap in namespace {namespace} can be read"
        )
    strategy = _defaults(config).get("templateDefaults", {}).get("retryStrategy") or {}
    as_expected = str(strategy.get("limit")) == "0" and strategy.get("retryPolicy") == "Always"
    if as_expected and not strategy.get("expression"):
        return good("retry policy", "a step's retries mean what they say, deleted pods included")
    return unknown(
        "retry policy",
        f"the controller's templateDefaults.retryStrategy is {strategy or 'not set'}: failed steps may not be "
        "retried, and drivers are retried over and over. Set {limit: '0', retryPolicy: Always} in workflowDefaults of "
        f"workflow-controller-configmap in namespace {namespace}",
    )


def deadlines(config: Manifest | None, namespace: str) -> Check:
    """Check that the workflow controller sets no deadlines shorter than those of steps and runs.

    A default `timeout` includes the time that a pod waits, and both deadlines of a template end pods without a timeout
    of their own. A run's default applies if the run has no deadline.
    """
    if config is None:
        return unknown("deadlines", f"no ConfigMap workflow-controller-configmap in namespace {namespace} can be read")
    spec = _defaults(config)
    template = spec.get("templateDefaults", {})
    timeouts = {f"templateDefaults.{name}": template.get(name) for name in ("timeout", "activeDeadlineSeconds")}
    timeouts["activeDeadlineSeconds"] = spec.get("activeDeadlineSeconds")
    if not any(timeouts.values()):
        return good("deadlines", "the controller sets none: a step's timeout and a run's deadline hold")
    limits = ", ".join(f"{name} of {value}" for name, value in timeouts.items() if value)
    return unknown(
        "deadlines",
        f"the controller's workflowDefaults have {limits}: longer steps or runs are ended there, their waits counted, "
        "whatever the environment says. "
        f"Raise it in workflow-controller-configmap in namespace {namespace}, or leave it out",
    )


def _defaults(config: Manifest) -> Manifest:
    """Return the `spec` that the workflow controller merges into every run's."""
    text = (config.get("data") or {}).get("workflowDefaults", "")
    spec: Manifest = (yaml.safe_load(text) or {}).get("spec") or {}
    return spec | {"templateDefaults": spec.get("templateDefaults") or {}}


def used_pools(environment: Environment) -> list[str]:
    """Return the pools of steps and input workers."""
    workers = environment.input_workers
    return list(dict.fromkeys([*environment.placed_pools, *([workers.pool] if workers else [])]))


def has_step_pods(environment: Environment, name: str) -> bool:
    """Return True if the pool runs pods that Kubeflow starts for steps; workers of a gang do not count."""
    steps = (step for step in _steps(environment) if not launches(environment, step))
    return any(environment.pool_name(step) == name for step in steps)


def queued_pods(environment: Environment, name: str) -> int:
    """Return the largest number of pods of the pool that its queue must admit together."""
    return max(_pods(environment, name))


def _pods(environment: Environment, name: str) -> tuple[int, int]:
    """Return the pods of the pool for one step, which are the fewest workers of a training, and for input workers."""
    workers = environment.input_workers
    step_pods = environment.pools[name].min_workers if name in environment.pool_names(TRAIN) else 1
    return step_pods, workers.count if workers and workers.pool == name else 0


def _numbers(text: str) -> tuple[int, ...]:
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else ()


def pool_pod(environment: Environment, name: str) -> Manifest:
    """Build a pod of a run on the pool `name`, which steps or input workers must be placed on.

    The pod of a step lacks Argo's own containers, which `with_argo` adds.
    """
    step = next((step for step in _steps(environment) if name in environment.pool_names(step)), "")
    launched = next((one for one in LISTED if launches(environment, one) and name in environment.pool_names(one)), "")
    if plan := gang_spec(environment, launched or TRAIN) if launched or not step else None:
        options = dict.fromkeys(("code", "examples", "checkpoints", "output"), "doctor")
        attempt = next((attempt for attempt in plan.attempts if attempt.name == name), plan)
        # The batch of a recipe that is not known here divides any number of workers.
        fixed = attempt.pool.model_copy(update={"workers": attempt.workers})
        training = gang(attempt.model_copy(update={"pool": fixed}), recipes.load("digits"), "doctor", options)
        job = worker_job(training if step or training.input is None else training.input)
        template = job["spec"]["template"]
        return _pod(template["metadata"]["labels"], template["spec"], template["metadata"]["annotations"])
    pool = environment.pools[name]
    volume, pull_secrets = environment.volume, environment.image_pull_secrets
    spec = pod_spec(pool, environment.platform, volume, pull_secrets, environment.ca_bundle)
    spec["restartPolicy"] = "Never"
    spec["containers"][0] |= {
        "name": MAIN,
        "image": environment.images[pool.variant],
        "env": variables(environment.pod_variables, environment.secrets),
    }
    if account := environment.service_accounts.run:
        spec["serviceAccountName"] = account
    if seconds := environment.timeout_of(step):
        spec["activeDeadlineSeconds"] = seconds
    queue = {labels.QUEUE: pool.queue} if pool.queue else {}
    return _pod(labels.step_labels(step) | {labels.POOL: name} | queue, spec, {} if pool.is_evictable else labels.KEPT)


def driver_pod(environment: Environment, config: Manifest | None) -> Manifest:
    """Build the pod of Kubeflow's that runs before each step. config: as in `with_argo`."""
    spec: Manifest = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": MAIN, "image": "kfp-driver", "resources": _DRIVER, "securityContext": _HARDENED}],
    }
    if account := environment.service_accounts.run:
        spec["serviceAccountName"] = account
    return with_argo(_pod({}, spec, {}), config)


def with_argo(pod: Manifest, config: Manifest | None) -> Manifest:
    """Return `pod`, of a step or a driver, with the containers of Argo and, in a step, the launcher of Kubeflow.

    config: the ConfigMap of the workflow controller, None if it cannot be read. Quotas and limit ranges count them all.
    A pod of a gang is returned as it is.
    """
    spec = pod["spec"]
    (main,) = spec["containers"]
    if main["name"] != MAIN:
        return pod
    settings = yaml.safe_load(((config or {}).get("data") or {}).get("executor", "")) or {}
    argo = {"image": "argoexec", "securityContext": settings.get("securityContext") or _HARDENED}
    argo |= {"resources": settings.get("resources") or {}}
    launcher = {"name": "kfp-launcher", "image": "kfp-launcher", "resources": _LAUNCHER, "securityContext": _HARDENED}
    first = [{"name": "init", **argo}, *([launcher] if main["image"] != "kfp-driver" else [])]
    return pod | {"spec": spec | {"initContainers": first, "containers": [{"name": WAIT, **argo}, main]}}


def _steps(environment: Environment) -> list[str]:
    """Return Trainyard's steps and those of other pipelines that the environment names."""
    other_steps = {*environment.placement, *environment.timeout_seconds, *environment.retries} - {DEFAULT}
    return list(dict.fromkeys([*OUTPUTS, *STEPS, *sorted(other_steps)]))


def _pod(own_labels: dict[str, str], spec: Manifest, annotations: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "trainyard-doctor-", "labels": own_labels, "annotations": annotations},
        "spec": spec,
    }
