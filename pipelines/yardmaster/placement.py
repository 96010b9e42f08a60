"""Placement: a compiled pipeline that knows no hardware becomes one whose every step runs on the pool that suits it.

It is a pure function of the compiled IR (a dict) and the environment, so it takes any pipeline that `kfp dsl compile`
wrote. For Kubeflow the result is what the calls of kfp and kfp-kubernetes in the pipeline's body would have compiled to.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.core.environment import DEFAULT, Environment
from trainyard.core.errors import ConfigurationError, did_you_mean
from trainyard.core.hardware import Toleration, catalog
from trainyard.core.keys import STEPS
from trainyard.core.pools import Placement, Pool, placement

Spec = dict[str, Any]

IMAGE = "trainyard/cpu"  # what the components are compiled with: stands for the variant that the pool's kind needs
SUMMARY = "summary"
RUN_AS_USER = 65532  # the images' user; numeric, for Pod Security "restricted" asks the kubelet to verify it
BACKOFF_SECONDS = 30  # chosen: long enough for an object store's 503 to pass, doubled at each retry by KFP
MAX_BACKOFF_SECONDS = 600


@dataclass(frozen=True)
class PlacedSpec:
    """A placed pipeline: its IR and, for Kubeflow, the platform spec that goes with it."""

    pipeline: Spec
    platform: Spec | None

    @property
    def documents(self) -> list[Spec]:
        """The YAML documents of the package, in the order that KFP reads them."""
        return [self.pipeline] if self.platform is None else [self.pipeline, self.platform]


def place(spec: Spec, environment: Environment, platform: Spec | None = None) -> PlacedSpec:
    """Return `spec` with every container step placed on its pool of `environment`; the arguments stay as they are.

    `platform` is the platform spec that the pipeline was compiled with: what the author set there stays. Raises
    `ConfigurationError` where the environment names a step that the pipeline does not have.
    """
    if environment.target == "local":
        return PlacedSpec(spec, platform)
    spec = copy.deepcopy(spec)
    steps = _container_steps(spec)
    _check_names(environment, set(steps.values()))
    for executor, step in steps.items():
        container = spec["deploymentSpec"]["executors"][executor]["container"]
        pool = environment.pool_of(step)
        if container["image"] == IMAGE:
            container["image"] = environment.images[pool.kind]
        container["resources"] = container.get("resources", {}) | _resources(pool, environment)
    for task, step in _tasks(spec, steps):
        if retries := environment.retries.get(step, environment.retries.get(DEFAULT)):
            task["retryPolicy"] = _retry_policy(retries)
    if environment.target == "vertex":
        return PlacedSpec(spec, None)
    platform = copy.deepcopy(platform or {})
    configs = platform.setdefault("platforms", {}).setdefault("kubernetes", {})
    executors = configs.setdefault("deploymentSpec", {}).setdefault("executors", {})
    for executor, step in steps.items():
        executors[executor] = _kubernetes(executors.get(executor, {}), step, environment)
    return PlacedSpec(spec, platform)


def _container_steps(spec: Spec) -> dict[str, str]:
    """Return the step's name by executor. KFP calls the second use of a component `name-2`: it is the same step."""
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    labels = {name.removeprefix("exec-") for name in executors}
    steps = {}
    for executor, content in executors.items():
        if "container" in content:
            label = executor.removeprefix("exec-")
            base = re.sub(r"-\d+$", "", label)
            steps[executor] = base if base in labels else label
    return steps


def _check_names(environment: Environment, steps: set[str]) -> None:
    known = sorted({*steps, *STEPS, SUMMARY, DEFAULT})
    faults = [
        f"{environment.name}: {section}.{name}: no step '{name}'. Known: {', '.join(known)}.{did_you_mean(name, known)}"
        for section in ("placement", "timeout_seconds", "retries")
        for name in getattr(environment, section)
        if name not in known
    ]
    if faults:
        raise ConfigurationError("\n".join(faults))


def _tasks(spec: Spec, steps: dict[str, str]) -> Iterator[tuple[Spec, str]]:
    """Yield every task that runs a container, however deep in loops, conditions and exit handlers, with its step."""
    components = spec["components"]
    for dag in (spec["root"].get("dag"), *(component.get("dag") for component in components.values())):
        for task in (dag or {}).get("tasks", {}).values():
            executor = components[task["componentRef"]["name"]].get("executorLabel")
            if executor in steps:
                yield task, steps[executor]


def _resources(pool: Pool, environment: Environment) -> Spec:
    """As kfp's set_cpu_request and its like compile: the quantity, and for older installations its value too.

    Vertex AI knows limits only, and accelerators by names of its own.
    """
    requests, limits = pool.resources.requests, pool.resources.limits
    resources: Spec = {"memoryLimit": _gigabytes(limits.memory), "resourceMemoryLimit": limits.memory}
    if limits.cpu:
        resources |= {"cpuLimit": _cores(limits.cpu), "resourceCpuLimit": limits.cpu}
    if environment.target == "vertex":
        if pool.accelerator:
            resources["accelerator"] = _accelerator(catalog().accelerators[pool.accelerator].vertex, pool.count)
        return resources
    resources |= {"cpuRequest": _cores(requests.cpu), "resourceCpuRequest": requests.cpu}
    resources |= {"memoryRequest": _gigabytes(requests.memory), "resourceMemoryRequest": requests.memory}
    needs = placement(pool, environment.platform)
    if needs.resource:
        resources["accelerator"] = _accelerator(needs.resource, needs.count)
    return resources


def _accelerator(name: str | None, count: int) -> Spec:
    return {"type": name, "count": str(count), "resourceType": name, "resourceCount": str(count)}


def _cores(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def _gigabytes(quantity: str) -> float:
    """Return a memory quantity in 10^9 bytes, the unit of the IR's memoryLimit."""
    unit = quantity.lstrip("0123456789")
    factor = float((1024 if unit.endswith("i") else 1000) ** " KMGTPE".index(unit[:1] or " "))
    return float(quantity.removesuffix(unit)) * factor / 1000**3


def _retry_policy(retries: int) -> Spec:
    return {
        "maxRetryCount": retries,
        "backoffDuration": f"{BACKOFF_SECONDS}s",
        "backoffFactor": 2.0,
        "backoffMaxDuration": f"{MAX_BACKOFF_SECONDS}s",
    }


def _kubernetes(config: Spec, step: str, environment: Environment) -> Spec:
    """Return the executor's platform config, as kfp-kubernetes writes it; what the author set in `config` stays."""
    name = environment.placement.get(step, environment.placement[DEFAULT])
    needs: Placement = placement(environment.pools[name], environment.platform)
    result = copy.deepcopy(config)
    labels = {
        "app.kubernetes.io/name": "trainyard",
        "app.kubernetes.io/component": step,
        "trainyard/pool": name,
    }
    metadata = result.setdefault("podMetadata", {})
    metadata["labels"] = metadata.get("labels", {}) | labels
    result.setdefault("securityContext", {"runAsUser": str(RUN_AS_USER), "runAsNonRoot": True})
    if needs.node_selector:
        selector = result.setdefault("nodeSelector", {})
        selector["labels"] = selector.get("labels", {}) | needs.node_selector
    for toleration in map(_toleration, needs.tolerations):
        if toleration not in result.setdefault("tolerations", []):
            result["tolerations"].append(toleration)
    if timeout := environment.timeout_seconds.get(step, environment.timeout_seconds.get(DEFAULT)):
        result["activeDeadlineSeconds"] = str(timeout)
    return result


def _toleration(toleration: Toleration) -> Spec:
    return toleration.model_dump(exclude_none=True)
