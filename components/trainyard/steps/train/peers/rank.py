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


class _Config(TypedDict):
    cluster: dict[str, list[str]]
    task: dict[str, int | str]


def gang_addresses() -> list[str]:
    """Return host:port of each worker in the gang that TF_CONFIG describes; on each port that worker may listen."""
    return _index_and_addresses()[1]


def current_rank() -> Rank:
    """Return this process's rank in the gang that TF_CONFIG describes; without one it is the only worker."""
    index, addresses = _index_and_addresses()
    return Rank(index, len(addresses) or 1)


def _index_and_addresses() -> tuple[int, list[str]]:
    config: _Config | None = json.loads(os.environ.get("TF_CONFIG") or "null")
    return (int(config["task"]["index"]), config["cluster"]["worker"]) if config else (0, [])
