"""What those who start a gang and its workers agree on: environment variables and ports."""

from __future__ import annotations

import os

WORKERS = "TRAINYARD_WORKERS"
"""host:port of every worker's barrier, in the order of their indices, with commas between them."""
WORKER_INDEX = "TRAINYARD_WORKER_INDEX"
"""Which of them this process is."""
GANG_TOKEN = "TRAINYARD_GANG_TOKEN"  # noqa: S105 - the variable's name
"""A random text that all workers of one gang share."""
START_DEADLINE_SECONDS = "TRAINYARD_START_DEADLINE_SECONDS"
"""How long the workers wait for each other."""
RECIPE = "TRAINYARD_RECIPE"
"""YAML text of the recipe, in a pod."""
INPUT_WORKERS = "TRAINYARD_INPUT_WORKERS"
"""host:port of every input worker, in the order of their turns; not set if those that train prepare their batches."""
LAUNCHER_HEARTBEAT = "TRAINYARD_LAUNCHER_SIGN"
"""URI of the launcher's heartbeat; not set if no launcher watches the gang."""

PORT_RANGE = 8
"""Chosen: TensorFlow, JAX and the ring take the first free of so many ports behind the barrier's."""


def start_deadline_seconds() -> float:
    """Return how long the workers wait for each other, and for their input workers."""
    return float(os.environ.get(START_DEADLINE_SECONDS, "300"))


def input_addresses() -> list[str]:
    """Return host:port of every input worker, in the order of their turns; none if the environment names none."""
    return [address for address in os.environ.get(INPUT_WORKERS, "").split(",") if address]
