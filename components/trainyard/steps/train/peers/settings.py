"""The environment of a worker: variables and ports that launchers and workers agree on, and its rank."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from typing import TypedDict

WORKERS = "TRAINYARD_WORKERS"
"""host:port of every worker's barrier by index, as `addresses` reads them."""
WORKER_INDEX = "TRAINYARD_WORKER_INDEX"
"""The index of this worker."""
GANG_TOKEN = "TRAINYARD_GANG_TOKEN"  # noqa: S105 - the variable's name
"""The random secret of a gang's workers."""
START_DEADLINE_SECONDS = "TRAINYARD_START_DEADLINE_SECONDS"
"""Timeouts of workers that wait for each other."""
WORKER_COUNTS = "TRAINYARD_WORKER_COUNTS"
"""Numbers of workers with which an elastic gang trains, ascending; not set for a gang of a fixed number."""
REPLACE_SECONDS = "TRAINYARD_REPLACE_SECONDS"
"""Seconds that an elastic gang waits for a missing worker before it trains without it."""
RECIPE = "TRAINYARD_RECIPE"
"""YAML text of the recipe, in a pod."""
INPUT_WORKERS = "TRAINYARD_INPUT_WORKERS"
"""host:port of every input worker in the order of their turns; not set without input workers."""
NODE = "TRAINYARD_NODE"
"""The name of this pod's node."""
LAUNCHER_HEARTBEAT = "TRAINYARD_LAUNCHER_SIGN"
"""URI of the launcher's heartbeat; not set if no launcher watches the gang."""

_NUMBERS = re.compile(r"\[0-([0-9]{1,4})\]")

PORT_RANGE = 8
"""Chosen: TensorFlow, JAX and the ring use the first free of this many ports behind the barrier's."""


def start_deadline_seconds() -> float:
    """Return the time that workers wait for each other and for their input workers."""
    return float(os.environ.get(START_DEADLINE_SECONDS, "300"))


def elastic_variables(counts: list[int], replace_seconds: int) -> dict[str, str]:
    """Return the variables of an elastic gang, which the next two functions read."""
    return {WORKER_COUNTS: ",".join(map(str, counts)), REPLACE_SECONDS: str(replace_seconds)}


def worker_counts(workers: int) -> list[int]:
    """Return the numbers of workers with which a gang that asks for `workers` trains, ascending."""
    return [int(count) for count in os.environ.get(WORKER_COUNTS, str(workers)).split(",")]


def replace_seconds() -> float:
    """Return the seconds that an elastic gang waits for a missing worker."""
    return float(os.environ.get(REPLACE_SECONDS, "60"))


def node() -> str:
    """Return the name of this worker's node, of its machine outside a cluster."""
    return os.environ.get(NODE) or platform.node()


def addresses(variable: str) -> list[str]:
    """Return the addresses in the environment's `variable`, between commas; `[0-3]` stands for the numbers 0 to 3."""
    expanded = []
    for address in filter(None, os.environ.get(variable, "").split(",")):
        last = _NUMBERS.search(address)
        numbers = range(int(last[1]) + 1) if last else [0]
        expanded += [_NUMBERS.sub(str(number), address) for number in numbers]
    return expanded


def input_addresses() -> list[str]:
    """Return host:port of every input worker in the order of their turns; empty without input workers."""
    return addresses(INPUT_WORKERS)


@dataclass(frozen=True)
class Rank:
    """The index of this worker and the number of workers. Worker 0 is the chief."""

    index: int
    workers: int

    @property
    def chief(self) -> bool:
        """True if this process writes checkpoints and the model."""
        return self.index == 0


class _Config(TypedDict):
    cluster: dict[str, list[str]]
    task: dict[str, int | str]


def gang_addresses() -> list[str]:
    """Return host:port of each worker from TF_CONFIG; the worker may listen on its port."""
    return _index_and_addresses()[1]


def current_rank() -> Rank:
    """Return this process's rank from TF_CONFIG; without one it is the only worker."""
    index, addresses = _index_and_addresses()
    return Rank(index, len(addresses) or 1)


def _index_and_addresses() -> tuple[int, list[str]]:
    config: _Config | None = json.loads(os.environ.get("TF_CONFIG") or "null")
    return (int(config["task"]["index"]), config["cluster"]["worker"]) if config else (0, [])
