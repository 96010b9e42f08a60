"""The catalog of accelerators and of platforms, so that no label, taint or topology stands in code."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainyard.core import documents
from trainyard.core.documents import Strict

Kind = Literal["cpu", "gpu", "tpu"]
Platform = Literal["kubernetes", "gke", "eks", "karpenter", "aks"]


@cache
def catalog() -> Catalog:
    """Return the catalog that comes with Trainyard."""
    return documents.load(Path(__file__).with_name("hardware.yaml"), Catalog)


class Toleration(Strict):
    """A pod's toleration of a taint, with the keys of Kubernetes."""

    key: str
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class Accelerator(Strict):
    """One kind of accelerator. vertex is its name at Vertex AI Pipelines, None where no step can ask for it there.

    topologies: for a TPU, the chips that one host may hold, by the topology of the slice.
    """

    kind: Literal["gpu", "tpu"]
    vertex: str | None = None
    topologies: dict[str, list[int]] = {}


class Marks(Strict):
    """How the nodes of one sort are labelled and tainted, and the resource that a pod asks of them."""

    resource: str | None = None
    node_selector: dict[str, str] = Field({}, alias="nodeSelector")
    tolerations: list[Toleration] = []


class PlatformMarks(Strict):
    """What a platform adds to the nodes of each kind, and to those that may be taken back at any time."""

    gpu: Marks = Marks()
    tpu: Marks = Marks()
    spot: Marks = Marks()


class Catalog(Strict):
    """All that is known of hardware."""

    accelerators: Annotated[dict[str, Accelerator], Field(min_length=1)]
    kinds: dict[Kind, Marks]
    platforms: dict[Platform, PlatformMarks]
