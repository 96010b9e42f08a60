"""Placement: a compiled pipeline that knows no hardware becomes one whose every step runs on the pool that suits it.

It is a pure function of the compiled IR (a dict) and the environment, so it takes any pipeline that `kfp dsl compile`
wrote. For Kubeflow the result is what calls of kfp and kfp-kubernetes in the pipeline's body would have compiled to,
with the conditions around Trainyard's own steps flattened.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard import quantity
from trainyard.contract.gang import STEP as TRAIN
from trainyard.contract.gang import VARIABLE, GangSpec, gang_spec, recipe_image, to_parameter, trainer_variables
from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.graph import STEPS
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.pod_spec import DISK, USER, literal_json, pod_spec
from trainyard.runtime.step import TIMEOUT_VARIABLE
from trainyard.spec.environment import (
    DEFAULT,
    LONGEST_PAUSE_SECONDS,
    LONGEST_SECONDS,
    PAUSE_SECONDS,
    Environment,
    SecretKey,
    pauses,
)
from trainyard.spec.hardware.catalog import catalog
from trainyard.spec.hardware.machines import allocatable, machine_of
from trainyard.spec.hardware.pools import Pool, Resources, training_variables
from trainyard_control.compiler.conditions import flattened
from trainyard_control.compiler.pipeline_spec import GANG, IMAGE, PipelineSpec, Spec

# Chosen: it waits; kfp and the Kubernetes client take a quarter of that memory. In the queue it would hold some of the
# quota that its gang waits for.
LAUNCHER = {
    "resources": Resources.model_validate({"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
    "ephemeral_storage": None,
    "shared_memory": None,
    "queue": "",
    "evictable": True,  # the next one continues within seconds
}
LAUNCHER_SECONDS = 3600  # chosen: what a launcher may take beyond its gang's own timeout, for starts and ends


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

    A step that launches a gang goes to the default pool. The pipeline's parameter `gang` says where the gang of train
    goes, and the variable `VARIABLE` where that of another step goes.
    `platform` is the platform spec that the pipeline was compiled with. What the pipeline's author set stays: the
    environment fills in what is left open. Trainyard's own steps run as the user of its images, others as the
    environment's `run_as_user`, if it names one. A recipe's `train.image` is for the steps that call its code. A
    launcher calls none: it stays on Trainyard's image, and its gang has the recipe's.

    Raises `ConfigurationError` if the environment names a step that the pipeline does not have, or a step requests what
    no node of its pool has.
    """
    if environment.target == "local":
        return PlacedSpec(spec, platform)
    spec = flattened(spec, IMAGE) if environment.target == "kubeflow" else copy.deepcopy(spec)
    pipeline, platform = PipelineSpec(spec), copy.deepcopy(platform or {})
    configs = platform.setdefault("platforms", {}).setdefault("kubernetes", {})
    executors = configs.setdefault("deploymentSpec", {}).setdefault("executors", {})
    _check_names(environment, set(pipeline.steps.values()))
    placements = _placements(pipeline, environment)
    _check_requests(pipeline, executors, placements, environment)
    for placement in placements.values():
        if placement.step == TRAIN and placement.plan:
            default = {"defaultValue": to_parameter(placement.plan), "isOptional": True}
            spec["root"]["inputDefinitions"]["parameters"][GANG] |= default
            break
    for executor, placement in placements.items():
        container, config = pipeline.container(executor), executors.get(executor, {})
        set_by_author = _variables(container, config)
        _place_container(container, placement, environment, set_by_author)
        if environment.target == "kubeflow":
            executors[executor] = _kubernetes(config, placement, environment, set_by_author)
    for task, executor in pipeline.tasks():
        if "retryPolicy" not in task and (retries := environment.retries_of(pipeline.steps[executor])):
            task["retryPolicy"] = _retry_policy(retries, environment)
    if environment.target == "vertex":
        return PlacedSpec(spec, None)
    times = [(placement.step, None if placement.pool.queue else placement.seconds) for placement in placements.values()]
    if deadline := environment.deadline_of(times):
        configs.setdefault("pipelineConfig", {}).setdefault("activeDeadlineSeconds", deadline)
    if environment.keep_seconds:
        configs.setdefault("pipelineConfig", {}).setdefault("resourceTtlOnCompletion", environment.keep_seconds)
    return PlacedSpec(spec, platform)


@dataclass(frozen=True)
class _StepPlacement:
    """The placement of one step's pod.

    seconds: the longest time that it may run. use: '2' for the step's second task, and so on.
    ours: whether it is a step of Trainyard; plan: the gang that it starts, None if it starts none.
    image: what the recipe names for it, if it names one.
    """

    step: str
    name: str
    pool: Pool
    seconds: int | None
    ours: bool
    use: str = ""
    plan: GangSpec | None = None
    image: str | None = None


def _placements(pipeline: PipelineSpec, environment: Environment) -> dict[str, _StepPlacement]:
    """Return the placement of each executor."""
    uses: Counter[str] = Counter()
    placements = {}
    for executor in sorted(pipeline.steps, key=lambda executor: (len(executor), executor)):  # as KFP numbers them
        step = pipeline.steps[executor]
        uses[step] += 1
        use = str(uses[step]) if uses[step] > 1 else ""
        placements[executor] = _step_placement(pipeline, executor, use, environment)
    return {executor: placements[executor] for executor in pipeline.steps}


def _step_placement(pipeline: PipelineSpec, executor: str, use: str, environment: Environment) -> _StepPlacement:
    step, recipe = pipeline.steps[executor], pipeline.recipe
    seconds = environment.timeout_of(step)
    own_image = recipe_image(recipe, step, environment.pool_of(step), environment) if recipe else None
    ours = pipeline.container(executor)["image"] in (IMAGE, own_image, *environment.images.values())
    takes_gang = pipeline.takes_gang(executor) if step == TRAIN else ours and pipeline.runs_task(executor)
    plan = gang_spec(environment, step, recipe) if takes_gang else None
    if plan is None:
        name = environment.pool_name(step)
        return _StepPlacement(step, name, environment.pools[name], seconds, ours, use, image=own_image)
    name = environment.pool_name(DEFAULT)
    pool = environment.pools[name].model_copy(update=LAUNCHER)
    # A queue may let a gang wait for days, and its timeout begins when it is admitted.
    queues = any(attempt.pool.queue for attempt in plan.attempts)
    longest = None if queues else len(plan.attempts) * (plan.timeout_seconds + LAUNCHER_SECONDS)
    return _StepPlacement(step, name, pool, longest, ours, use, plan)


def table(spec: Spec, environment: Environment) -> list[tuple[str, str, str, str]]:
    """Return the task, step, pool and accelerators of every container of the pipeline, in the order of the tasks."""
    if environment.target == "local":
        return []
    pipeline = PipelineSpec(spec)
    placements = _placements(pipeline, environment)
    rows = []
    for task, executor in pipeline.tasks():
        step, placement = pipeline.steps[executor], placements[executor]
        pool = environment.pool_of(step) if placement.plan else placement.pool
        pools = ", then ".join(environment.pool_names(step))
        name = f"{placement.name} (launches a gang on {pools})" if placement.plan else ""
        accelerators = f"{pool.count} x {pool.accelerator}" if pool.accelerator else "none"
        rows.append((task["taskInfo"]["name"], step, name or placement.name, accelerators))
    return rows


def _check_requests(
    pipeline: PipelineSpec, configs: Spec, placements: dict[str, _StepPlacement], environment: Environment
) -> None:
    """Raise `ConfigurationError` if a step requests accelerators, cores or memory that no node of its pool has.

    A step whose author chose the nodes in its one of the `configs` is left to the author.
    """
    faults = []
    for executor, placement in placements.items():
        if not configs.get(executor, {}).get("nodeSelector"):
            requested = pipeline.container(executor).get("resources", {})
            faults += [
                f"{environment.name}: placement: the step '{placement.step}' requests {wanted}, and pool "
                f"'{placement.name}' {has}. Place it on another pool, or change its request."
                for wanted, has in _unmet(requested, placement, environment)
            ]
    if faults:
        raise ConfigurationError(*dict.fromkeys(faults))


def _unmet(requested: Spec, placement: _StepPlacement, environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield the resources that the author requests and the pool lacks, with what the pool has."""
    wanted = requested.get("accelerator", {})
    kind = wanted.get("resourceType") or wanted.get("type")
    if kind and kind != DISK:
        count = str(wanted.get("resourceCount") or wanted.get("count") or 1)
        has = _resources(placement.pool, environment).get("accelerator")
        if has is None or has["type"] == DISK:
            yield f"{count} x {kind}", "has no accelerators"
        elif kind not in (has["type"], has["resourceType"]) or (count.isdigit() and int(count) > int(has["count"])):
            yield f"{count} x {kind}", f"has {has['count']} x {has['type']} a node"
    known = machine_of(placement.pool, environment.platform)
    if known is None:
        return
    name, machine = known
    cores, memory = allocatable(machine, environment.platform)
    cpu, size = requested.get("resourceCpuRequest", ""), requested.get("resourceMemoryRequest", "")
    if _is_quantity(cpu) and quantity.in_cores(cpu) > cores:
        yield f"{cpu} cores", f"has nodes of {name}, which have {cores:.4g} for pods"
    if _is_quantity(size) and quantity.in_bytes(size) > memory:
        yield f"{size} of memory", f"has nodes of {name}, which have {memory / 2**30:.4g}Gi for pods"


def _is_quantity(text: str) -> bool:
    """Return True if `text` is a number with or without a unit, and no placeholder of KFP's."""
    return re.fullmatch(r"[0-9.]+[A-Za-z]*", text) is not None


def _check_names(environment: Environment, steps: set[str]) -> None:
    known = sorted({*steps, *STEPS, DEFAULT})
    faults = [
        f"{environment.name}: {section}.{name}: no step '{name}'. Known: {', '.join(known)}.{did_you_mean(name, known)}"
        for section in ("placement", "timeout_seconds", "retries")
        for name in getattr(environment, section)
        if name not in known
    ]
    if faults:
        raise ConfigurationError(*faults)


def _variables(container: Spec, config: Spec) -> set[str]:
    """Return the environment variables that the author set for the step in any way."""
    names = {str(variable["name"]) for variable in container.get("env", [])}
    from_maps = [*config.get("secretAsEnv", []), *config.get("configMapAsEnv", [])]
    names |= {str(key["envVar"]) for one in from_maps for key in one["keyToEnv"]}
    return names | {str(one["name"]) for one in config.get("fieldPathAsEnv", [])}


def _place_container(
    container: Spec, placement: _StepPlacement, environment: Environment, set_by_author: set[str]
) -> None:
    """Give `container` image, resources and variables, unless its author set them. set_by_author: variables."""
    if container["image"] == IMAGE:
        container["image"] = placement.image or environment.images[placement.pool.variant]
    container["resources"] = _completed(container.get("resources", {}), _resources(placement.pool, environment))
    added = training_variables(placement.pool) if placement.step == TRAIN else {}
    if placement.ours:
        added = added | trainer_variables(environment)
    if placement.plan and placement.step != TRAIN:
        added = added | {VARIABLE: literal_json(to_parameter(placement.plan))}
    if environment.target == "vertex" and placement.seconds:
        added = added | {TIMEOUT_VARIABLE: str(placement.seconds)}  # it has no timeout of a task: the step ends itself
    if environment.run_as_user and not placement.ours:
        added = added | {"HOME": "/tmp"}  # noqa: S108 - the pod's: KFP's components install packages below it
    variables = {**environment.pod_variables, **added}
    missing = [{"name": name, "value": value} for name, value in variables.items() if name not in set_by_author]
    if missing:
        container["env"] = [*container.get("env", []), *missing]


def _completed(requested: Spec, ours: Spec) -> Spec:
    """Add to `requested` the values of `ours` for resources that it does not name: a request must fit its limit."""
    named = [sort for sort in ("cpu", "memory", "accelerator") if any(sort in name.lower() for name in requested)]
    return requested | {name: value for name, value in ours.items() if not any(sort in name.lower() for sort in named)}


def _resources(pool: Pool, environment: Environment) -> Spec:
    """As kfp's set_cpu_request and its like compile: the quantity, and for older installations its value too.

    Vertex AI knows limits only, and its own accelerator names.
    """
    vertex = environment.target == "vertex"
    amounts = pod_spec(pool, environment.platform)["containers"][0]["resources"]
    resources: Spec = {}
    for end, bounds in (("Limit", amounts["limits"]), ("Request", {} if vertex else amounts["requests"])):
        if "cpu" in bounds:
            resources |= {f"cpu{end}": quantity.in_cores(bounds["cpu"]), f"resourceCpu{end}": bounds["cpu"]}
        if "memory" in bounds:
            in_gigabytes = quantity.in_bytes(bounds["memory"]) / 1e9
            resources |= {f"memory{end}": in_gigabytes, f"resourceMemory{end}": bounds["memory"]}
    if vertex and pool.accelerator:
        resources["accelerator"] = _accelerator(catalog().accelerators[pool.accelerator].vertex, pool.count)
    for name in () if vertex else amounts["limits"].keys() - {"cpu", "memory"}:
        amount = amounts["limits"][name]
        resources["accelerator"] = _accelerator(name, int(quantity.in_bytes(amount)) if name == DISK else amount)
    return resources


def _accelerator(name: str | None, count: int | str) -> Spec:
    return {"type": name, "count": str(count), "resourceType": name, "resourceCount": str(count)}


def _retry_policy(retries: int, environment: Environment) -> Spec:
    """As set_retry compiles. Nothing ends the attempts together but the run's own deadline.

    To Vertex AI `backoffMaxDuration` is the longest pause between two attempts. Kubeflow hands it to Argo as
    `retryStrategy.backoff.maxDuration`, within which all attempts with their waits must end: no attempt begins after
    it, and a running one is killed at it. Left out it is 0 there, which is no retry at all. Timeouts do not add up to
    such a bound, for a pod may be pending for any time.
    Source: KFP 2.17.0 argocompiler/container.go, Argo 4.0.5 operator.go (processNodeRetries) and workflowpod.go
    (getDeadline).
    """
    waits = pauses(retries)
    bound = LONGEST_PAUSE_SECONDS if environment.target == "vertex" else LONGEST_SECONDS
    return {
        "maxRetryCount": retries,
        "backoffDuration": f"{waits[0]}s",
        "backoffFactor": 2.0 if waits[0] == PAUSE_SECONDS else 1.0,
        "backoffMaxDuration": f"{bound}s",
    }


def bounded_retries(placed: PlacedSpec, environment: Environment) -> list[str]:
    """Return a sentence for each task whose retries Kubeflow ends early, by the author's own retryPolicy."""
    if environment.target != "kubeflow":
        return []
    sentences = []
    pipeline = PipelineSpec(placed.pipeline)
    for task, executor in pipeline.tasks():
        policy = task.get("retryPolicy", {})
        retries, bound = policy.get("maxRetryCount", 0), _seconds(policy.get("backoffMaxDuration", "0s"))
        first = _seconds(policy.get("backoffDuration", "0s"))
        pause = sum(first * policy.get("backoffFactor", 2.0) ** index for index in range(retries))
        timeout = environment.timeout_of(pipeline.steps[executor])
        if retries and (timeout is None or bound < (retries + 1) * timeout + pause) and bound < LONGEST_SECONDS:
            sentences.append(
                f"{task['taskInfo']['name']}: its {retries} retries end {bound:g} s after the first attempt began, "
                f"the running one too. Give a longer time, as set_retry(…, backoff_max_duration='365d')"
            )
    return sentences


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def _kubernetes(config: Spec, placement: _StepPlacement, environment: Environment, known: set[str]) -> Spec:
    """Return the executor's platform config, as kfp-kubernetes writes it; what the author set in `config` stays."""
    volume, pull_secrets = environment.volume, environment.image_pull_secrets
    spec = pod_spec(placement.pool, environment.platform, volume, pull_secrets, environment.ca_bundle)
    result = copy.deepcopy(config)
    step_labels = labels.step_labels(placement.step) | {labels.POOL: placement.name}
    if placement.use:
        step_labels[labels.USE] = placement.use
    if placement.plan:
        step_labels[labels.LAUNCHES] = GANG
    if placement.pool.queue:
        step_labels[labels.QUEUE] = placement.pool.queue
    metadata = result.setdefault("podMetadata", {})
    metadata["labels"] = step_labels | metadata.get("labels", {})
    if not placement.pool.is_evictable:
        metadata["annotations"] = labels.KEPT | metadata.get("annotations", {})
    if user := USER if placement.ours else environment.run_as_user:
        result.setdefault("securityContext", {"runAsUser": str(user), "runAsNonRoot": True})
    if "nodeSelector" in spec:
        selector = result.setdefault("nodeSelector", {})
        selector["labels"] = spec["nodeSelector"] | selector.get("labels", {})
    for toleration in spec.get("tolerations", []):
        _add(result, "tolerations", toleration)
    if "affinity" in spec:
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        result.setdefault("nodeAffinity", terms)
    for secret in spec.get("imagePullSecrets", []):
        name = secret["name"]
        reference = {"secretName": name, "secretNameParameter": {"runtimeValue": {"constant": name}}}
        _add(result, "imagePullSecret", reference)
    _mount(result, spec)
    for variable, source in environment.secrets.items():
        if variable not in known:
            _add(result, "secretAsEnv", _secret_as_env(variable, source))
    if placement.seconds:
        result.setdefault("activeDeadlineSeconds", str(placement.seconds))
    return result


def _mount(config: Spec, spec: Manifest) -> None:
    """Mount the volumes of the pod `spec`, unless the author has mounted one at the same path."""
    mounted = {mount.get("mountPath") for mount in config.get("emptyDirMounts", [])}
    for volume, mount in zip(spec["volumes"], spec["containers"][0]["volumeMounts"], strict=True):
        path = mount["mountPath"]
        if claim := volume.get("persistentVolumeClaim", {}).get("claimName"):
            name_parameter = {"runtimeValue": {"constant": claim}}
            _add(config, "pvcMount", {"constant": claim, "pvcNameParameter": name_parameter, "mountPath": path})
        elif "secret" in volume:
            _add(config, "secretAsVolume", _as_volume("secret", volume["secret"]["secretName"], path))
        elif "configMap" in volume:
            _add(config, "configMapAsVolume", _as_volume("configMap", volume["configMap"]["name"], path))
        elif path not in mounted:
            _add(config, "emptyDirMounts", {"volumeName": volume["name"], "mountPath": path, **volume["emptyDir"]})


def _as_volume(kind: str, name: str, path: str) -> Spec:
    """As kfp-kubernetes' use_secret_as_volume and use_config_map_as_volume compile."""
    parameter = {"runtimeValue": {"constant": name}}
    return {f"{kind}Name": name, f"{kind}NameParameter": parameter, "mountPath": path, "optional": False}


def _add(config: Spec, section: str, entry: Spec) -> None:
    """Leave `entry` in the list `section`, once."""
    if entry not in config.setdefault(section, []):
        config[section].append(entry)


def _secret_as_env(variable: str, source: SecretKey) -> Spec:
    """As kfp-kubernetes' use_secret_as_env compiles: the name as a parameter, and once more for older installations."""
    return {
        "secretName": source.secret,
        "secretNameParameter": {"runtimeValue": {"constant": source.secret}},
        "keyToEnv": [{"secretKey": source.key, "envVar": variable}],
        "optional": False,
    }
