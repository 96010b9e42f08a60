"""Node pools: their description in an environment, and what a pod needs to be scheduled there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag, model_validator

from trainyard.errors import did_you_mean
from trainyard.quantity import in_bytes, in_cores
from trainyard.spec.documents import Strict
from trainyard.spec.hardware.catalog import (
    Kind,
    LabelKey,
    LabelValue,
    Name,
    NodeRequirement,
    Platform,
    Toleration,
    catalog,
    chips,
    hosts,
)

_LABELLED = {"accelerator", "topology", "machine", "gpu"}
DEVICES_VARIABLE = "TRAINYARD_DEVICES"  # the accelerators that a training process must see
ENGINE_VARIABLE = "TRAINYARD_ENGINE"  # tells it by which framework; TensorFlow if it is not set
PREEMPTIONS_VARIABLE = "TRAINYARD_PREEMPTIONS_PER_HOUR"  # tells it how often its gang loses a node
TRAINER_VARIABLE = "TRAINYARD_TRAINER"  # tells every step which image trains, if it holds another TensorFlow, or JAX
SHARED_MEMORY, EPHEMERAL_STORAGE = "1Gi", "10Gi"  # chosen: of a gang's worker
# Kubeflow has no such settings for the pod of a step.
GANG_ONLY = (
    *("priority_class", "grace_seconds", "start_deadline_seconds"),
    *("pending_seconds", "preemptions"),
)
_NUMBERED = re.compile(r"(.+)[-x](\d{1,5})")  # h100x8, v5e-16
_PRODUCT = re.compile(r"(.+?)[-x](\d{1,4}(?:x\d{1,4}){1,2})")  # v6e-2x4, h100x8x2
_TOPOLOGY = re.compile(r"[1-9]\d{0,2}(x[1-9]\d{0,2}){1,2}")
_FAR = 0.5  # chosen: similarity of names as short as l4 and l5
SHOWN_SLICES = 12  # topologies named in a message; a 3D torus has hundreds

EngineName = Literal["tensorflow", "jax"]
Variant = Literal["cpu", "gpu", "tpu", "jax", "jax-gpu"]


@dataclass(frozen=True)
class Placement:
    """The labels, tolerations and accelerators of a pod that lands on a pool.

    slice_label: of a TPU slice of several hosts, the node label whose value they share, '' if none is known.
    """

    node_selector: dict[str, str]
    tolerations: list[Toleration]
    resource: str | None
    count: int
    slice_label: str = ""


def placement(pool: Pool, platform: Platform) -> Placement:
    """Return the pod settings for `pool`; the pool's own values take precedence."""
    marks = catalog().platforms[platform]
    layers = [catalog().kinds[pool.kind]]
    if pool.kind in ("gpu", "tpu"):
        layers.append(marks.gpu if pool.kind == "gpu" else marks.tpu)
    if pool.spot:
        layers.append(marks.spot)
    names = _names(pool)
    known = catalog().accelerators.get(pool.accelerator or "")
    resource = (known.resource if known else None) or layers[0].resource
    selector = {
        key: value.format(**names)
        for layer in layers
        for key, value in layer.node_selector.items()
        if not any(f"{{{name}}}" in value for name in _LABELLED - names.keys())
    }
    return Placement(
        node_selector=selector | pool.node_selector,
        tolerations=[*(toleration for layer in layers for toleration in layer.tolerations), *pool.tolerations],
        resource=resource,
        count=pool.count if resource else 0,
        slice_label=marks.slice_label if pool.kind == "tpu" and pool.max_workers > 1 else "",
    )


def _names(pool: Pool) -> dict[str, str]:
    """Return the values of the placeholders in the platforms' labels, as far as the pool has them."""
    known = catalog().accelerators.get(pool.accelerator or "")
    values = {
        "accelerator": pool.accelerator,
        "topology": pool.topology,
        "machine": pool.machine,
        "gpu": known.gpu if known else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def training_variables(pool: Pool) -> dict[str, str]:
    """Return the environment variables of a training pod on `pool`: devices that it must see, engine, preemptions.

    Without devices on a cpu pool, and without an engine if it is TensorFlow.
    """
    variables = {}
    if pool.kind != "cpu":
        variables[DEVICES_VARIABLE] = json.dumps(
            {"kind": pool.kind, "accelerator": pool.accelerator, "count": pool.count}
        )
    if pool.trained_by != "tensorflow":
        variables[ENGINE_VARIABLE] = pool.trained_by
    if pool.preemption_rate is not None:
        variables[PREEMPTIONS_VARIABLE] = repr(pool.preemption_rate * pool.max_workers)
    return variables


def _written(value: object) -> object:
    """YAML reads `cpu: 2` as a number; Kubernetes takes it as the quantity "2"."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _some_cpu(cpu: str) -> str:
    if not 0.001 <= in_cores(cpu) <= _MOST_CORES:
        raise ValueError(f"1m to {_MOST_CORES} cores are possible")
    return cpu


def _some_memory(memory: str) -> str:
    if not 1 << 20 <= in_bytes(memory) <= 1 << 50:
        raise ValueError("1Mi to 1Pi are possible. Give a unit, such as 4Gi")
    return memory


_MOST_CORES = 4096
_MOST_WORKERS = 1024
_PREEMPTIONS = 3  # chosen, for each worker: Spot nodes that go so often in one training are scarce

# The spellings that KFP's set_cpu_request and set_memory_request take.
Cpu = Annotated[
    str,
    StringConstraints(pattern=r"^([0-9]{0,9}[.])?[0-9]{1,9}m?$"),
    AfterValidator(_some_cpu),
    BeforeValidator(_written),
]
Memory = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{1,18}(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)?$"),
    AfterValidator(_some_memory),
    BeforeValidator(_written),
]


class Requests(Strict):
    """Kubernetes requests of a pod."""

    cpu: Cpu = Field(description="Cores, such as 2 or 500m.")
    memory: Memory = Field(description="Such as 4Gi.")


class Limits(Strict):
    """Kubernetes limits of a pod; without a cpu limit it may use idle cores."""

    cpu: Cpu | None = Field(None, description="Cores; required for Vertex AI, which chooses the machine by it.")
    memory: Memory = Field(description="Must equal requests.memory.")


class Resources(Strict):
    """Kubernetes resources of a pod on the pool."""

    requests: Requests
    limits: Limits

    @model_validator(mode="after")
    def _memory(self) -> Self:
        if self.requests.memory != self.limits.memory:
            raise ValueError(
                f"requests.memory ({self.requests.memory}) and limits.memory ({self.limits.memory}) differ: "
                "a pod above its request is killed first when the node fills up. Give the same"
            )
        if self.limits.cpu is not None and in_cores(self.requests.cpu) > in_cores(self.limits.cpu):
            raise ValueError(f"requests.cpu ({self.requests.cpu}) is more than limits.cpu ({self.limits.cpu})")
        return self


class WorkerRange(Strict):
    """The numbers of workers with which an elastic gang trains."""

    min: Annotated[int, Field(ge=1, le=_MOST_WORKERS)] = Field(description="Fewest workers that train.")
    max: Annotated[int, Field(ge=1, le=_MOST_WORKERS)] = Field(description="Workers that the gang asks for.")


def _form(workers: object) -> str:
    return "range" if isinstance(workers, dict | WorkerRange) else "number"


def _number(workers: object) -> object:
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise ValueError("is no number of workers and no range. Give 4, or {min: 2, max: 4}")
    return workers


# Told apart by their form, so that a fault is one of the form that was given.
Workers = Annotated[
    Annotated[int, Field(ge=1, le=_MOST_WORKERS), BeforeValidator(_number), Tag("number")]
    | Annotated[WorkerRange, Tag("range")],
    Discriminator(_form),
]


class Pool(Strict):
    """Nodes of one kind. A step gets all `count` accelerators of a node."""

    kind: Kind = Field("cpu", description="Kind of hardware; an accelerator gives its own.")
    accelerator: Annotated[str, Field(max_length=253)] | None = Field(
        None,
        description="gpu and tpu: GKE's name, such as nvidia-l4, or a short one that also gives count, topology and "
        "workers: l4, h100x8, v5e-16. npu (inference only): inferentia2, edge-tpu.",
    )
    count: Annotated[int, Field(ge=0, le=64)] = Field(
        0, description="gpu, tpu and npu: accelerators per node (TPU: chips per host)."
    )
    topology: Annotated[str, Field(max_length=32)] | None = Field(
        None, description="tpu: shape of the slice, such as 2x4."
    )
    engine: Literal["auto", "tensorflow", "jax"] = Field(
        "auto",
        description="tpu and gpu: training engine. auto: JAX on slices of several hosts or if TensorFlow has no build, "
        "otherwise TensorFlow. gpu: JAX with one worker.",
    )
    trains: bool = Field(True, description="false: only evaluate, export and predict run here.")
    spot: bool = Field(False, description="Spot nodes, which may be preempted at any time.")
    preemption_rate: Annotated[float, Field(ge=0, le=60)] | None = Field(
        None,
        description="Preemptions and failures per node and hour that you expect. With few of them and costly "
        "checkpoints, or with many, training saves less or more often. Default: checkpoints cost at most 1 %.",
    )
    evictable: bool | None = Field(
        None,
        description="Whether the cluster autoscaler or Karpenter may end pods to remove a node. Default: only if spot.",
    )
    workers: Workers = Field(
        1,
        description="Number of nodes that train together, as a gang. {min: 2, max: 4}: as many of 4 as there are, "
        "at least 2.",
    )
    replace_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(
        60,
        description="Seconds that a gang with min and max waits for a missing worker before it trains without it; less "
        "than start_deadline_seconds.",
    )
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="Maximum number of nodes.")
    machine: LabelValue | None = Field(None, description="Machine type of the nodes, such as g2-standard-8.")
    price_per_hour: Annotated[float, Field(ge=0, le=100_000)] | None = Field(
        None, description="USD per node and hour. Default: the catalog's list price of the machine."
    )
    queue: Name | Literal[""] = Field(
        "", description="Kueue LocalQueue of a gang, and of the pods of steps; a launcher does not queue."
    )
    priority_class: Name | Literal[""] = Field("", description="PriorityClass of a gang's workers.")
    shared_memory: Memory | None = Field(
        None,
        description="Size of /dev/shm, part of the memory. Default: 1Gi for a gang's worker and a step with several "
        "GPUs, otherwise that of the node.",
    )
    ephemeral_storage: Memory | None = Field(
        None,
        description="Disk for /tmp: bucket examples and staged outputs. Default: 10Gi for a gang's worker, no limit "
        "for a step. Kubeflow reserves it for steps without accelerators only.",
    )
    grace_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(
        30, description="Seconds between SIGTERM and SIGKILL of a gang's worker; a checkpoint must fit."
    )
    start_deadline_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = Field(
        900, description="Seconds that a gang waits for a worker's node, image and start."
    )
    pending_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = Field(
        600,
        description="Seconds that a step on a list of pools waits for nodes, or for its queue, before it goes to the "
        "next pool.",
    )
    preemptions: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None,
        description="Preemptions per worker, of a gang or of a step on a list of pools, before the next pool is "
        "tried; the last pool then fails. Default: 3, and no limit on the last pool.",
    )
    resources: Resources
    node_selector: dict[LabelKey, LabelValue] = Field(
        {}, alias="nodeSelector", max_length=100, description="Node labels, besides those of the platform."
    )
    node_affinity: list[NodeRequirement] = Field(
        [], alias="nodeAffinity", max_length=100, description="Conditions that a node's labels must all meet."
    )
    tolerations: list[Toleration] = Field([], max_length=100, description="Tolerations, besides those of the platform.")

    @property
    def max_workers(self) -> int:
        """The number of workers that the gang asks for."""
        return self.workers.max if isinstance(self.workers, WorkerRange) else self.workers

    @property
    def min_workers(self) -> int:
        """The number of workers with which the gang trains at least; `max_workers` without a range."""
        return self.workers.min if isinstance(self.workers, WorkerRange) else self.workers

    @property
    def is_elastic(self) -> bool:
        """True if the pool gives a range of workers."""
        return isinstance(self.workers, WorkerRange)

    @property
    def is_evictable(self) -> bool:
        """True if a node may be removed while pods run on it."""
        return self.spot if self.evictable is None else self.evictable

    def allowed_preemptions(self, last: bool) -> int | None:
        """Return the number of preemptions per worker, None without a limit. last: no other pool is left to try."""
        return self.preemptions if last or self.preemptions else _PREEMPTIONS

    @property
    def trained_by(self) -> EngineName:
        """The engine that trains on the pool, with auto resolved."""
        if self.engine != "auto":
            return self.engine
        return "jax" if self.kind == "tpu" and _beyond_tensorflow(self) else "tensorflow"

    @property
    def variant(self) -> Variant:
        """The image variant that the pool's pods need."""
        if self.kind == "npu":  # runs beside it; no step of ours computes on it
            return "cpu"
        if self.trained_by == "jax":
            return "jax-gpu" if self.kind == "gpu" else "jax"
        return self.kind

    @property
    def why_no_training(self) -> str:
        """The reason why no training runs on the pool, '' if one can."""
        if not self.trains:
            return "its pool says trains: false"
        known = catalog().accelerators.get(self.accelerator or "")
        return f"{self.accelerator} infers only ({known.why_not})" if known and not known.trains else ""

    @property
    def why_no_nodes(self) -> str:
        """The reason why no step can be placed on the pool, '' if one can."""
        known = catalog().accelerators.get(self.accelerator or "")
        if known is None or not known.plan_only:
            return ""
        return f"no platform has nodes with {self.accelerator}, it can only be planned"

    @model_validator(mode="before")
    @classmethod
    def _short_name(cls, fields: Any) -> Any:
        """Replace a short name of an accelerator by the fields that it stands for; fields beside it stay.

        Any name of an accelerator gives the kind.
        """
        name = fields.get("accelerator") if isinstance(fields, dict) else None
        if not isinstance(name, str):
            return fields
        meant = catalog().short_names.get(name, {"accelerator": name})
        known = catalog().accelerators.get(str(meant["accelerator"]))
        kind = fields.get("kind", known and known.kind)
        if why := _beyond_one_machine(name, fields.get("workers", 1)):
            raise ValueError(f"accelerator: {why}")
        if kind is None:
            raise _unknown(name, [*catalog().accelerators])
        if known is None or kind not in catalog().kinds:
            return fields
        if kind != known.kind:
            raise ValueError(f"kind: {name} is a {known.kind}, '{kind}' was given. Leave kind out")
        count = fields.get("count")
        if why := _beside_number(name, meant, fields):
            raise ValueError(why)
        if "topology" in meant and isinstance(count, int) and count > 0:
            meant = meant | {"workers": hosts(str(meant["topology"]), count)}
        return {"kind": kind} | meant | fields | {"accelerator": meant["accelerator"]}

    @model_validator(mode="after")
    def _hardware(self) -> Self:
        known = {name: entry for name, entry in catalog().accelerators.items() if entry.kind == self.kind}
        if self.kind not in ("gpu", "tpu") and self.engine == "jax":
            raise ValueError("engine: JAX trains on gpu and tpu pools. Leave it out")
        if self.kind == "gpu" and self.engine == "jax" and self.max_workers > 1:
            raise ValueError(
                f"engine: JAX trains on the GPUs of one node, and {self.max_workers} workers are given. Give 1 worker, "
                "or leave engine out"
            )
        if self.kind == "cpu":
            if self.accelerator or self.count or self.topology:
                raise ValueError("a cpu pool has no accelerator, count or topology")
            return self
        if self.accelerator is None:
            raise ValueError(f"accelerator: is required: the name of the {self.kind}. Known: {', '.join(known)}")
        if self.accelerator not in known:
            raise _unknown(self.accelerator, [*known], f"{self.kind} ")
        if not self.count:
            raise ValueError("count: is required, at least 1: how many accelerators a node has")
        if self.kind == "tpu":
            _check_slice(self, known[self.accelerator].slices)
            if self.engine == "tensorflow" and (why := _beyond_tensorflow(self)):
                raise ValueError(f"engine: TensorFlow {why}. Give jax, or leave it out")
        elif self.topology:
            raise ValueError("topology: is for tpu pools. Leave it out")
        return self

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"workers: min is {self.min_workers}, more than max, {self.max_workers}. "
                f"Give {{min: {self.max_workers}, max: {self.min_workers}}}"
            )
        if not self.is_elastic and self.replace_seconds != Pool.model_fields["replace_seconds"].default:
            instead = "" if self.kind == "tpu" else f", or give workers: {{min: 1, max: {max(2, self.max_workers)}}}"
            raise ValueError(
                f"replace_seconds: is for a gang that trains with fewer workers, and workers is {self.max_workers}. "
                f"Leave it out{instead}"
            )
        if self.is_elastic and self.replace_seconds >= self.start_deadline_seconds:
            raise ValueError(
                f"replace_seconds: {self.replace_seconds} s, and start_deadline_seconds ends a gang without worker 0 "
                f"after {self.start_deadline_seconds} s. Give less than {self.start_deadline_seconds}, or raise "
                "start_deadline_seconds"
            )
        if self.nodes is not None and self.max_workers > self.nodes:
            raise ValueError(f"workers: {self.max_workers} on a pool of {self.nodes} nodes. Give at most nodes")
        return self


def nearest_that_trains(pools: dict[str, Pool]) -> str:
    """Return a sentence with an alternative pool: the smallest with accelerators, otherwise a cpu one."""
    able = [name for name, pool in pools.items() if not (pool.why_no_training or pool.why_no_nodes)]
    if not able:
        return "No pool of the environment trains; add one of kind cpu, gpu or tpu"
    nearest = min(able, key=lambda name: (pools[name].kind == "cpu", pools[name].max_workers * pools[name].count))
    return f"The nearest that trains is '{nearest}'"


def _beyond_tensorflow(pool: Pool) -> str:
    """Return the reason why TensorFlow cannot train on a tpu pool, '' if it can.

    TensorFlow finds the hosts of a slice only by the Cloud TPU API, which knows no Kubernetes nodes
    (docs/decisions/0010).
    """
    if not catalog().accelerators[pool.accelerator or ""].tensorflow:
        return f"has no build for {pool.accelerator}"
    return "trains on the TPUs of one host" if hosts(pool.topology or "", pool.count) > 1 else ""


def _check_slice(pool: Pool, known: dict[str, list[int]]) -> None:
    """Reject a slice that does not exist, or a gang on part of a slice: its pods would stay Pending forever."""
    topology, count, workers = pool.topology, pool.count, pool.workers
    if topology not in known:
        listed = [*known][:SHOWN_SLICES]
        more = f" and {len(known) - len(listed)} larger ones" if len(known) > len(listed) else ""
        raise ValueError(
            f"topology: no slice '{topology}'. Known: {', '.join(listed)}{more}.{_nearest_slice(topology or '', known)}"
        )
    if count not in known[topology]:
        raise ValueError(
            f"count: a host of {topology} has {' or '.join(map(str, known[topology]))} chips, {count} was given"
        )
    needed = hosts(topology, count)
    if isinstance(workers, WorkerRange):
        raise ValueError(
            f"workers: a TPU slice has a fixed shape, and {topology} trains on all its hosts or on none. "
            f"Give {needed} instead of min and max"
        )
    if needed != workers:
        many = "1 host" if needed == 1 else f"{needed} hosts"
        raise ValueError(
            f"workers: {topology} with {count} chips a host is {many}, and a gang has one worker on each; {workers} "
            f"given. Give {needed}, or name another slice"
        )


def _unknown(name: str, known: list[str], kind: str = "") -> ValueError:
    near = _nearest_accelerator(name, [*catalog().accelerators])  # another kind's name says which kind it is
    return ValueError(f"accelerator: no {kind}'{name}'. Known: {', '.join(known)}.{near}")


def _beyond_one_machine(name: str, workers: object) -> str:
    """Return the reason why no machine has as many GPUs as the short name `name` says, with a gang that has, or ''."""
    match = _NUMBERED.fullmatch(name)
    by_short = {known.short: known for known in catalog().accelerators.values() if known.kind == "gpu" and known.short}
    known = by_short.get(match[1]) if match else None
    is_begun = any(short.startswith(name) for short in by_short)  # a100-80 of a100-80gb
    if match is None or known is None or int(match[2]) <= known.per_machine or is_begun:
        return ""
    limit = known.per_machine
    machines = math.ceil(int(match[2]) / limit)
    more = f"workers: {machines * workers}" if isinstance(workers, int) else f"{machines} times the workers"
    return f"'{name}' is more than the {limit} of the largest machine. Give {known.short}x{limit} and {more}"


def _beside_number(name: str, meant: dict[str, str | int], fields: dict[str, Any]) -> str:
    """Return the fault of a count or topology that contradicts the number in the short `name`, '' if there is none."""
    if name not in catalog().short_names or not _NUMBERED.fullmatch(name):
        return ""
    count, topology = fields.get("count"), fields.get("topology")
    if "topology" not in meant:
        if not isinstance(count, int) or count == meant["count"]:
            return ""
        plain = name.rpartition("x")[0]
        instead = f"{plain}x{count}" if f"{plain}x{count}" in catalog().short_names else f"{plain} beside it"
        gpus = f"{meant['count']} GPU{'s' if meant['count'] != 1 else ''}"
        return f"count: {name} has {gpus} a node, {count} was given. Leave count out, or give accelerator: {instead}"
    if not isinstance(topology, str) or not _TOPOLOGY.fullmatch(topology):
        return ""
    has = chips(str(meant["topology"]))
    if chips(topology) == has:
        return ""
    return (
        f"topology: {name} has {has} chips, and {topology} has {chips(topology)}. Leave topology out, or give "
        f"accelerator: {meant['accelerator']}"
    )


def _nearest_accelerator(name: str, known: list[str]) -> str:
    """Return ' Did you mean X?' with the short name of the nearest family and number, otherwise by letters.

    known: full names.
    """
    entries = catalog().accelerators
    short = [one for one, meant in catalog().short_names.items() if meant["accelerator"] in known]
    families = {label: entries[one].short for one in known for label in (one, entries[one].short) if entries[one].short}
    name = name.strip().lower().removeprefix("tpu-")
    product, begun = _PRODUCT.fullmatch(name), name.rpartition("x")[0]
    if product and product[1] in families and not any(label.startswith(begun) for label in families):
        family = [entry for entry in entries.values() if entry.short == families[product[1]]]
        cores = max((entry.cores for entry in family if {product[2], f"{product[2]}x1"} & {*entry.slices}), default=1)
        name = f"{product[1]}-{chips(product[2]) * cores}"
    if match := _NUMBERED.fullmatch(name):
        near = [families[label] for label in get_close_matches(match[1], families, 1, _FAR)]
        candidates = [candidate for one in short if (candidate := _NUMBERED.fullmatch(one)) and candidate[1] in near]
        number = int(match[2])
        if candidates and number <= 4 * max(int(candidate[2]) for candidate in candidates):
            nearest = min(candidates, key=lambda candidate: (abs(int(candidate[2]) - number), -int(candidate[2])))
            return f" Did you mean '{nearest[0]}'?"
    plain = [one for one in short if not _NUMBERED.fullmatch(one)]  # a name without a number asks for none
    return did_you_mean(name, [*known, *plain]) or did_you_mean(name, short) or did_you_mean(name, plain, _FAR)


def _nearest_slice(topology: str, known: Iterable[str]) -> str:
    """Return ' Did you mean X?' with the slice nearest in chips, the larger of two."""
    if not _TOPOLOGY.fullmatch(topology):
        return did_you_mean(topology, known)
    edges = topology.split("x")

    def distance(other: str) -> tuple[int, int, int, int]:
        theirs = other.split("x")
        unlike = sum(abs(int(a) - int(b)) for a, b in zip(sorted(edges), sorted(theirs), strict=False))
        return abs(len(theirs) - len(edges)), abs(chips(other) - chips(topology)), unlike, -chips(other)

    return f" Did you mean '{min(known, key=distance)}'?"
