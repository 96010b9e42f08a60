"""The environment: where a recipe runs. It names pools, storage and images, and knows no model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from trainyard.core import documents
from trainyard.core.documents import Strict
from trainyard.core.errors import ConfigurationError, did_you_mean
from trainyard.core.hardware import Kind, Platform, catalog
from trainyard.core.pools import Pool

BUNDLED = Path(__file__).parent.parent / "environments"
DEFAULT = "default"


class Beam(Strict):
    """How preprocessing runs."""

    runner: str = Field("DirectRunner", description="DirectRunner, PrismRunner, FlinkRunner, DataflowRunner …")
    options: dict[str, str | int | float | bool] = Field({}, description="Further options of Beam, by their own names.")

    @property
    def command_line(self) -> str:
        """The options as Beam's command line, quoted as a shell does."""
        words = [f"--runner={self.runner}"]
        for name, value in self.options.items():
            if value is True:
                words.append(f"--{name}")
            elif value is not False:
                words.append(f"--{name}={value}")
        return shlex.join(words)


class Environment(Strict):
    """Where a recipe runs: on this machine (local), on Kubernetes with Kubeflow Pipelines, or on Vertex AI Pipelines."""

    target: Literal["local", "kubeflow", "vertex"]
    platform: Platform = Field("kubernetes", description="Whose labels and taints the nodes carry.")
    storage: Annotated[str, Field(min_length=1)] = Field(
        description="Root of all outputs: a folder, gs://bucket/folder or s3://bucket/folder."
    )
    images: dict[Kind, str] = Field({}, description="Container image of each variant that a pool's kind needs.")
    beam: Beam = Beam()
    pools: dict[str, Pool] = {}
    placement: dict[str, str] = Field({}, description="Pool of each step; default is for those that are not named.")
    timeout_seconds: dict[str, Annotated[int, Field(gt=0)]] = Field(
        {}, description="Longest time a step's pod may run, by step or default."
    )
    retries: dict[str, Annotated[int, Field(ge=0, le=10)]] = Field(
        {}, description="How often a failed step is started again, by step or default."
    )
    _name: str = PrivateAttr("environment")

    @property
    def name(self) -> str:
        """The environment's file, for messages."""
        return self._name

    def pool_of(self, step: str) -> Pool:
        """Return the pool that `step` is placed on."""
        return self.pools[self.placement.get(step, self.placement[DEFAULT])]


def load(name: str) -> Environment:
    """Return the environment `name` (see `documents.find`), consistent in itself, its storage absolute where it is a folder.

    Raises `ConfigurationError` with every fault.
    """
    path = documents.find("environment", name, BUNDLED)
    environment = documents.load(path, Environment)
    environment._name = path.name
    if faults := [*_placement_faults(environment), *_target_faults(environment)]:
        raise ConfigurationError("\n".join(f"{path.name}: {fault}" for fault in faults))
    if "://" in environment.storage:
        return environment
    return environment.model_copy(update={"storage": str(Path(environment.storage).expanduser().absolute())})


def _placement_faults(environment: Environment) -> list[str]:
    faults = []
    defined = f"Defined: {', '.join(environment.pools) or 'none'}."
    for step, pool in environment.placement.items():
        if pool not in environment.pools:
            faults.append(f"placement.{step}: no pool '{pool}'. {defined}{did_you_mean(pool, environment.pools)}")
    if environment.target != "local" and DEFAULT not in environment.placement:
        faults.append(f"placement.{DEFAULT}: is required for target {environment.target}: name a pool. {defined}")
    used = [
        (pool, environment.pools[pool].kind) for pool in environment.placement.values() if pool in environment.pools
    ]
    for pool, kind in dict.fromkeys(used):
        if environment.target != "local" and kind not in environment.images:
            faults.append(f"images.{kind}: is required, for steps are placed on the {kind} pool '{pool}'.")
    return faults


def _target_faults(environment: Environment) -> list[str]:
    faults = []
    if environment.target != "local" and not environment.storage.startswith(("gs://", "s3://")):
        faults.append(
            f"storage: '{environment.storage}' is a folder of one machine, and the steps run on many. "
            "Give gs://bucket/folder or s3://bucket/folder."
        )
    if environment.target != "vertex":
        return faults
    if environment.timeout_seconds:
        faults.append("timeout_seconds: Vertex AI Pipelines has no timeout of a step. Leave it out.")
    for name, pool in environment.pools.items():
        if pool.node_selector or pool.tolerations:
            faults.append(f"pools.{name}: Vertex AI has no nodeSelector and no tolerations. Leave them out.")
        if pool.resources.limits.cpu is None:
            faults.append(f"pools.{name}.resources.limits.cpu: is required: Vertex AI picks the machine by its limits.")
        if pool.spot:
            faults.append(f"pools.{name}.spot: a step of Vertex AI Pipelines cannot ask for Spot. Leave it out.")
        if pool.accelerator and catalog().accelerators[pool.accelerator].vertex is None:
            faults.append(f"pools.{name}.accelerator: no step of Vertex AI Pipelines can ask for {pool.accelerator}.")
    return faults
