"""The catalog of accelerators and platforms, so that code contains no label, taint or topology."""

from __future__ import annotations

import math
from functools import cache, cached_property
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainyard.spec import documents
from trainyard.spec.documents import Strict

LONGEST_EDGE = 256  # chips; that of the topologies in Google's xpk, system_characteristics.py

Kind = Literal["cpu", "gpu", "tpu", "npu"]
Platform = Literal["kubernetes", "gke", "eks", "karpenter", "aks"]


# Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
LabelKey = Annotated[
    str,
    Field(max_length=317, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"),
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
# Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names
Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


@cache
def catalog() -> Catalog:
    """Return Trainyard's catalog."""
    return documents.load(Path(__file__).with_name("hardware.yaml"), Catalog)


def named(product: str) -> str | None:
    """Return the catalog name of a GPU by its product name, such as NVIDIA L4, or the GPU operator's NVIDIA-L4."""
    label = product.strip().replace(" ", "-").removesuffix("-SHARED")
    return next((name for name, known in catalog().accelerators.items() if label in known.products), None)


class Toleration(Strict):
    """A Kubernetes toleration."""

    key: LabelKey = Field(description="Key of the taint.")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Exists: any value; omit value.")
    value: LabelValue | None = Field(None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; default: any."
    )

    @model_validator(mode="after")
    def _no_value(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(f"value: operator Exists takes none, '{self.value}' was given. Leave one of them out")
        return self


class NodeRequirement(Strict):
    """A condition on a label of a node, as in a Kubernetes node affinity."""

    key: LabelKey = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        "In", description="Exists and DoesNotExist: omit values."
    )
    values: list[LabelValue] = Field([], max_length=100, description="Values of the label.")

    @model_validator(mode="after")
    def _values(self) -> Self:
        if bool(self.values) != (self.operator in ("In", "NotIn")):
            needed = "takes none. Leave them out" if self.values else "needs some. Name at least one"
            raise ValueError(f"values: operator {self.operator} {needed}")
        return self


def hosts(topology: str, count: int) -> int:
    """Return the number of hosts with `count` chips in the slice `topology`, such as 4 for 4x4 with 4 chips a host."""
    return max(1, chips(topology) // count)


def chips(topology: str) -> int:
    """Return the number of chips in the slice `topology`.

    >>> chips("4x4")
    16
    """
    return math.prod(map(int, topology.split("x")))


class Accelerator(Strict):
    """One kind of accelerator. vertex is its name at Vertex AI Pipelines, None if no step can ask for it there.

    topologies: for a TPU, the chips that one host may hold, by the topology of the slice. cubes: for a 3D torus, the
    most cubes of 4x4x4 chips in a slice. tensorflow: whether TensorFlow runs on it. gpu: its name in Karpenter's
    labels. short, cores: see `Catalog.short_names`. products: its names in the labels of the GPU operator. trains:
    whether any training can run on it; why_not is the reason. resource: what a pod asks for, if not what its kind does.
    plan_only: no platform has nodes of it, so that it can be planned and compared alone. per_machine: GPUs of the
    largest machine of a cloud. Figures are of one chip, see hardware.yaml; None: not published.
    """

    kind: Literal["gpu", "tpu", "npu"]
    short: str = ""
    cores: int = 1
    per_machine: int = 8
    vertex: str | None = None
    gpu: str | None = None
    products: list[str] = []
    memory_gib: float | None = None
    float32_tflops: float | None = None
    mixed_tflops: float | None = None
    memory_gb_per_second: float | None = None
    link_gb_per_second: float | None = None
    watts: float | None = None
    topologies: dict[str, list[int]] = {}
    cubes: int = 0
    tensorflow: bool = True
    plan_only: bool = False
    trains: bool = True
    why_not: str = ""
    resource: str | None = None

    @cached_property
    def slices(self) -> dict[str, list[int]]:
        """The possible chips a host of every existing slice, by topology, the smallest first."""
        known = dict(self.topologies)
        edges = range(4, min(4 * self.cubes, LONGEST_EDGE) + 1, 4)
        for x, y, z in combinations_with_replacement(edges, 3):
            if x * y * z <= 64 * self.cubes:
                known[f"{x}x{y}x{z}"] = [4]
        return dict(sorted(known.items(), key=lambda entry: chips(entry[0])))


class Marks(Strict):
    """Labels and taints of one kind of nodes, and the resource that pods request from them."""

    resource: str | None = None
    node_selector: dict[str, str] = Field({}, alias="nodeSelector")
    tolerations: list[Toleration] = []


class PlatformMarks(Strict):
    """The labels and taints that a platform adds to nodes of each kind, and to Spot nodes.

    slice_label: the label whose value the hosts of one TPU slice share.
    """

    gpu: Marks = Marks()
    tpu: Marks = Marks()
    spot: Marks = Marks()
    slice_label: str = ""


class Core(Strict):
    """The speed of one CPU core."""

    float32_gflops: float
    memory_gb_per_second: float


class Catalog(Strict):
    """The hardware catalog."""

    core: Core

    accelerators: Annotated[dict[str, Accelerator], Field(min_length=1)]
    kinds: dict[Kind, Marks]
    platforms: dict[Platform, PlatformMarks]

    @cached_property
    def short_names(self) -> dict[str, dict[str, str | int]]:
        """The pool's fields by short name: `l4` and `h100x8` of a node, `v5e-16` of a slice.

        The number of a slice counts its chips times `cores`. Of the topologies with as many chips the most compact one
        is meant, and of its hosts those with the most chips.
        """
        known: dict[str, dict[str, str | int]] = {}
        for name, entry in self.accelerators.items():
            if entry.kind == "gpu" and entry.short:
                for count in (count for count in (1, 2, 4, 8, 16) if count <= entry.per_machine):
                    known[f"{entry.short}x{count}"] = {"accelerator": name, "count": count}
                known[entry.short] = known[f"{entry.short}x1"]
            for topology in sorted(entry.slices, key=_longest_edge, reverse=True) if entry.short else ():
                count = max(entry.slices[topology])
                known[f"{entry.short}-{chips(topology) * entry.cores}"] = {
                    "accelerator": name,
                    "topology": topology,
                    "count": count,
                    "workers": hosts(topology, count),
                }
        return known


def _longest_edge(topology: str) -> int:
    return max(map(int, topology.split("x")))
