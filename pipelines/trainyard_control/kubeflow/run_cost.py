"""What the machines of a run cost: how long its steps held them, at the prices of `plan` and `sweep`.

A step holds a machine from when a node takes its pod until the pod's last container ends, in all attempts that
Kubernetes still knows; its image is pulled meanwhile. Prices are those that environment and catalog have now.

Left out are nodes that start or stand idle, storage, network, what a Beam runner elsewhere takes, Kubeflow's own pods,
and the pod that waits for a gang. A step pays for its whole node, whoever else is on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.contract.training import gang
from trainyard.contract.training.input_workers import usd_per_hour
from trainyard.kubernetes.diagnosis import PodTask
from trainyard.spec.environment import Environment
from trainyard.spec.hardware import machines
from trainyard_control.planning.choice import usd

if TYPE_CHECKING:
    from trainyard_control.kubeflow.run_view import StepView

CACHED = "cached"
"""The cause of a step that needed no pod, for an earlier output was taken."""


@dataclass(frozen=True)
class Cost:
    """USD at list price, None if a pool has no price: those are `unpriced`.

    at_most: some of the time may have gone by before a node was there. so_far: it grows on.
    """

    usd: float | None
    at_most: bool = False
    so_far: bool = False
    unpriced: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.usd is None:
            return "no price"
        return f"{'at most ' if self.at_most else ''}{usd(self.usd)}{' so far' if self.so_far else ''}"


def of_step(step: StepView, environment: Environment, ours: bool, task_seconds: float) -> Cost | None:
    """Return what the machines of the step cost, None of a pod that another step pays for, or that was never placed.

    ours: the run says that it is of `environment`; of another's pipeline the labels of its pods alone are known.
    task_seconds: from start to end by Kubeflow.

    A gang is gone with its Job when its launcher ends, and may outlive that launcher's pod. So it is taken to last,
    with its input workers, as long as Kubeflow's task: at most, for it may wait for its nodes. So may a step of which
    Kubeflow alone tells, and not its pods.
    """
    launches = ours and step.task == PodTask(gang.STEP) and gang.launches(environment)
    placed = environment.pool_name(step.task.step) if ours else ""
    name = step.pool if step.pod and not launches else placed
    if step.task.worker or not name:
        return None
    at_most, so_far = launches or not step.pod, step.going_on
    seconds = max(step.machine_seconds, task_seconds if launches and step.cause != CACHED else 0.0)
    if not seconds:
        return Cost(0.0, so_far=so_far)
    input_workers = [environment.input_workers.pool] if launches and environment.input_workers else []
    prices = {pool: _usd_per_hour(pool, environment) for pool in [name, *input_workers]}
    if unpriced := tuple(pool for pool, price in prices.items() if price is None):
        return Cost(None, at_most, so_far, unpriced)
    hourly = usd_per_hour(environment, environment.pools[name]) if launches else prices[name]
    return Cost(_rounded(seconds / 3600 * (hourly or 0.0)), at_most, so_far)


def total(costs: Iterable[Cost | None]) -> Cost | None:
    """Return the sum of those that are one, None if none is."""
    known = [cost for cost in costs if cost]
    if not known:
        return None
    unpriced = tuple(dict.fromkeys(pool for cost in known for pool in cost.unpriced))
    dollars = None if unpriced else _rounded(sum(cost.usd or 0.0 for cost in known))
    return Cost(dollars, any(cost.at_most for cost in known), any(cost.so_far for cost in known), unpriced)


def _usd_per_hour(name: str, environment: Environment) -> float | None:
    """Return what an hour of one node of the pool costs, None if it has no price, or if it is there no more."""
    pool = environment.pools.get(name)
    price = machines.price(pool, environment.platform) if pool else None
    return price.usd_per_hour if price else None


def _rounded(dollars: float) -> float:
    return float(f"{dollars:.4g}")
