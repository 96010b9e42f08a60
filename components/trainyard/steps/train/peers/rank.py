"""Which worker of the gang a process is."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True)
class Rank:
    """The number of this worker, and how many there are. Worker 0 is the chief: it alone writes."""

    index: int
    workers: int

    @property
    def chief(self) -> bool:
        """Whether this process writes checkpoints and the model."""
        return self.index == 0


class _Cluster(TypedDict):
    worker: list[str]


class _Task(TypedDict):
    index: int


class _Config(TypedDict):
    cluster: _Cluster
    task: _Task


def gang_addresses() -> list[str]:
    """Return host:port of each worker in the gang that TF_CONFIG describes; on each port that worker may listen."""
    config = _config()
    return config["cluster"]["worker"] if config else []


def current_rank() -> Rank:
    """Return this process's rank in the gang that TF_CONFIG describes; without one it is the only worker."""
    config = _config()
    return Rank(int(config["task"]["index"]), len(config["cluster"]["worker"])) if config else Rank(0, 1)


def _config() -> _Config | None:
    config: _Config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    return config or None
