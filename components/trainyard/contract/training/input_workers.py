"""Input workers: the number that a training needs, and their price."""

from __future__ import annotations

import math

from trainyard.contract.artifacts.train import Training
from trainyard.spec.environment import MAX_INPUT_WORKERS, Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool


def input_workers_needed(hosts: int, step_seconds: float, fed_step_seconds: float) -> int | None:
    """Return the number of input workers that make a step as short as one with prefetched input.

    hosts: the processes that prepare the batches now: input workers, otherwise training workers. Each new worker is
    assumed to do the work of one of them. None if the number exceeds the environment's limit.
    """
    needed = math.ceil(round(hosts * step_seconds / fed_step_seconds, 6))
    return needed if needed <= MAX_INPUT_WORKERS else None


def training_needs(training: Training) -> int | None:
    """Return the number of input workers that `training` needed; None unless its input was the bottleneck."""
    if training.bottleneck != "input" or not training.cached_step_ms:
        return None
    return input_workers_needed(training.input_workers or training.workers, training.step_ms, training.cached_step_ms)


def input_pool(environment: Environment) -> Pool | None:
    """Return the pool of the environment's input workers, None without a separate pool."""
    workers = environment.input_workers
    return environment.pools[workers.pool] if workers and workers.pool else None


def input_usd_per_hour(environment: Environment) -> float | None:
    """Return the price of all input workers for an hour, 0 without separate nodes, None without a known price."""
    pool = input_pool(environment)
    price = machines.price(pool, environment.platform) if pool else machines.Price(0.0, False)
    return None if price is None else environment.input_count * price.usd_per_hour


def usd_per_hour(environment: Environment, pool: Pool) -> float | None:
    """Return the price of a training on `pool` for an hour, with its input workers, None without a known price."""
    price, input_price = machines.price(pool, environment.platform), input_usd_per_hour(environment)
    return None if price is None or input_price is None else pool.max_workers * price.usd_per_hour + input_price
