"""The expected time and cost of a training on a list of pools, at a rate of preemption that the caller states."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainyard.contract.gang import usd_per_hour
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import TRAIN, Environment
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Train
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.learning import Estimate
from trainyard_control.planning.plan import POD_SECONDS, START_SECONDS, Candidate


@dataclass(frozen=True)
class Stay:
    """The expected part of a training on one pool: hours on it with lost work, and preemptions."""

    pool: str
    hours: float
    preemptions: float


def with_list(
    forecasts: list[Candidate], recipe: Recipe, environment: Environment, data: DataSummary, rate: float
) -> list[Candidate]:
    """Return `forecasts` and the one of train's list of pools, at `rate` preemptions per Spot node and hour.

    A preempted worker is replaced at once; the gang loses half of the time between checkpoints and that of a start.
    Raises `ConfigurationError` if train has no list.
    """
    if environment.target != "kubeflow" or not isinstance(environment.placement.get(TRAIN), list):
        raise ConfigurationError(
            f"{environment.name}: --preemption-rate needs a list of pools, and placement.{TRAIN} is not a list. "
            f"Write it as {TRAIN}: [spot-pool, other-pool], or leave --preemption-rate out."
        )
    names = environment.pool_names(TRAIN)
    first = {row.pool: row for row in reversed(forecasts)}  # of a pool with a range of workers, the one with the most
    rows = [first[name] for name in names]
    row = replace(rows[0], pool=", then ".join(names), chosen=False, errors=(), price=None, selector=(), tolerations=())
    if bad := next((candidate for candidate in rows if candidate.hours is None), None):
        return [*forecasts, replace(row, hours=None, cost_usd=None, feasible=False, why=f"{bad.pool}: {bad.why}")]
    stays = {bound: _stays(bound, rows, recipe, environment, data, rate) for bound in ("low", "expected", "high")}
    prices = [usd_per_hour(environment, environment.pools[name]) for name in names]
    costs = [price and stay.hours * price for price, stay in zip(prices, stays["expected"], strict=True)]
    parts = [
        f"{stay.pool} {stay.hours:.3g} h" + (f" with {stay.preemptions:.2g} preemptions" if stay.preemptions else "")
        for stay in stays["expected"]
    ]
    why = f"at {rate:g} preemptions per Spot node and hour: {', '.join(parts)}; nodes are assumed to come at once"
    low, expected, high = (sum(stay.hours for stay in stays[bound]) for bound in ("low", "expected", "high"))
    cost = None if any(one is None for one in costs) else sum(one or 0.0 for one in costs)
    return [*forecasts, replace(row, hours=Estimate(low, expected, high), cost_usd=cost, feasible=True, why=why)]


def _stays(
    bound: str, rows: list[Candidate], recipe: Recipe, environment: Environment, data: DataSummary, rate: float
) -> list[Stay]:
    """Return the stays on the pools of `rows` if each takes the hours at the `bound` of its interval."""
    pools = []
    for row in rows:
        pool, last = environment.pools[row.pool], row is rows[-1]
        speed = row.examples_per_second.expected if row.examples_per_second else math.inf
        lost = (checkpoint_seconds(recipe.train, data.train, speed) / 2 + POD_SECONDS + START_SECONDS) / 3600
        allowed = None if last else pool.allowed_preemptions(last)
        frequency = rate * pool.max_workers if pool.spot else 0.0
        times = None if allowed is None else allowed * pool.max_workers
        pools.append((row.pool, float(getattr(row.hours, bound)), frequency, lost, times))
    return expected_stays(pools)


def checkpoint_seconds(train: Train, examples: int, speed: float) -> float:
    """Return the seconds between checkpoints of a training with `speed` examples per second; their cost is ignored."""
    from trainyard.steps.train.loop.checkpoint import CHECKPOINT_SECONDS, steps_between  # NumPy

    every, steps = train.checkpoints.every_steps, math.ceil(examples / train.batch_size)
    seconds = steps_between(every, steps) * train.batch_size / speed
    return seconds if every or seconds >= CHECKPOINT_SECONDS else examples / speed


def expected_stays(pools: list[tuple[str, float, float, float, int | None]]) -> list[Stay]:
    """Return the expected stay on each of `pools`; the training moves to the next when a budget is spent.

    pools: name, hours of the whole training there, preemptions per hour of all its nodes, hours that each costs, and
    how many are allowed, None for any number. Preemptions are a Poisson process over the hours of training. The work
    that is left for a pool is taken at its mean.

    >>> expected_stays([("spot", 10, 0.1, 1, None), ("calm", 10, 0, 1, None)])[0].hours
    11.0
    """
    stays, left = [], 1.0
    for name, hours, rate, lost, allowed in pools:
        work = left * hours
        done = work if allowed is None or not rate else _until_spent(work, rate, allowed + 1)
        preemptions = rate * done
        stays.append(Stay(name, done + preemptions * lost, preemptions))
        left -= done / hours if hours else left
    return stays


def _until_spent(hours: float, rate: float, count: int) -> float:
    """Return the expected hours until the `count`-th preemption, at most `hours`.

    The mean of min(hours, Gamma(count, rate)): the sum over k < count of P(more than k preemptions in `hours`) / rate.
    """
    mean, at_most, term = rate * hours, 0.0, math.exp(-rate * hours)
    total = 0.0
    for number in range(count):
        at_most += term
        total += max(0.0, 1.0 - at_most)
        term *= mean / (number + 1)
    return min(hours, total / rate)
