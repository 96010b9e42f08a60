"""Which worker of the gang a process is."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Which worker of the gang this process is. Worker 0 is the chief: it alone writes."""

    index: int
    workers: int

    @property
    def chief(self) -> bool:
        """Whether this process writes checkpoints and the model."""
        return self.index == 0


def place() -> Place:
    """Return this process's place in the gang that TF_CONFIG describes; the only worker where there is none."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return Place(0, 1)
    return Place(int(config["task"]["index"]), len(config["cluster"]["worker"]))
