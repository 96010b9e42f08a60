"""How many input workers would feed a training that waits for its input."""

from __future__ import annotations

import math

from trainyard.contract.artifacts.train import Training
from trainyard.spec.environment import MOST_INPUT_WORKERS


def input_workers_needed(hosts: int, step_seconds: float, fed_step_seconds: float) -> int | None:
    """Return how many would make a step as short as one whose input is there, by what `hosts` make it take now.

    hosts: those that prepare the batches: the input workers, or else the workers that train. Each new one is taken to
    do what one of them does. None if an environment can name no such number.
    """
    needed = math.ceil(round(hosts * step_seconds / fed_step_seconds, 6))
    return needed if needed <= MOST_INPUT_WORKERS else None


def training_needs(training: Training) -> int | None:
    """Return how many would have fed `training`; None unless its input bound it."""
    if training.bottleneck != "input" or not training.cached_step_ms:
        return None
    return input_workers_needed(training.input_workers or training.workers, training.step_ms, training.cached_step_ms)
