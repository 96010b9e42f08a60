"""Input workers: how many would feed a training that waits for its input, and what they cost beside it."""

from __future__ import annotations

import math

from trainyard.contract.artifacts.train import Training
from trainyard.spec.environment import MAX_INPUT_WORKERS, Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool


def input_workers_needed(hosts: int, step_seconds: float, fed_step_seconds: float) -> int | None:
    """Return how many would make a step as short as one whose input is there, by what `hosts` make it take now.

    hosts: those that prepare the batches: the input workers, or else the workers that train. Each new one is taken to
    do what one of them does. None if an environment can name no such number.
    """
    needed = math.ceil(round(hosts * step_seconds / fed_step_seconds, 6))
    return needed if needed <= MAX_INPUT_WORKERS else None


def training_needs(training: Training) -> int | None:
    """Return how many would have fed `training`; None unless its input bound it."""
    if training.bottleneck != "input" or not training.cached_step_ms:
        return None
    return input_workers_needed(training.input_workers or training.workers, training.step_ms, training.cached_step_ms)


def input_pool(environment: Environment) -> Pool | None:
    """Return the pool that the input workers of `environment` have nodes of; None if they have none of their own."""
    workers = environment.input_workers
    return environment.pools[workers.pool] if workers and workers.pool else None


def input_usd_per_hour(environment: Environment) -> float | None:
    """Return what an hour of all input workers costs, a node each; 0 without nodes of their own, None unpriced."""
    pool = input_pool(environment)
    price = machines.price(pool, environment.platform) if pool else machines.Price(0.0, False)
    return None if price is None else environment.input_count * price.usd_per_hour


def usd_per_hour(environment: Environment, pool: Pool) -> float | None:
    """Return what an hour of a training on the nodes of `pool` costs, with its input workers; None unpriced."""
    price, input_price = machines.price(pool, environment.platform), input_usd_per_hour(environment)
    return None if price is None or input_price is None else pool.workers * price.usd_per_hour + input_price
