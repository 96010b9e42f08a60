"""Which worker of the gang a process is."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rank:
    """The number of this worker, and how many there are. Worker 0 is the chief: it alone writes."""

    index: int
    workers: int

    @property
    def chief(self) -> bool:
        """Whether this process writes checkpoints and the model."""
        return self.index == 0


def current_rank() -> Rank:
    """Return this process's rank in the gang that TF_CONFIG describes; without one it is the only worker."""
    config: dict[str, dict[str, Any]] = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return Rank(0, 1)
    return Rank(int(config["task"]["index"]), len(config["cluster"]["worker"]))
