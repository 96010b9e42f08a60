"""The plan: the forecast of a training on every pool."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from trainyard.contract.epochs import backbone_share, operations
from trainyard.contract.gang import input_usd_per_hour, unequal_parts, usd_per_hour
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import TRAIN, Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool, WorkerRange, nearest_that_trains, placement
from trainyard.spec.recipe import Recipe
from trainyard_control.planning import learning
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.hardware import THIS_MACHINE, Hardware, local_hardware, pool_hardware
from trainyard_control.planning.learning import Estimate, Observation
from trainyard_control.planning.roofline import ExampleCost, max_bytes, needed_bytes, step_seconds

Class = Literal["minutes", "hours", "days", "week", "month"]

# Upper limits in hours of the classes of duration.
CLASSES: dict[Class, float] = {"minutes": 1, "hours": 24, "days": 7 * 24, "week": 28 * 24, "month": math.inf}
ADVICE: dict[Class, str] = {
    "minutes": "iterate, many times a day",
    "hours": "run several side by side, and compare them when all have ended",
    "days": "avoid: too slow to iterate",
    "week": "avoid, except for a training that must run",
    "month": "avoid",
}
# Seconds before the first step. Import, build and compilation: measured here on the bundled recipes. A pod: 12 to 20 s.
START_SECONDS = 10
POD_SECONDS = 20
# Images of 224 pixels that one core decodes a second. Measured here: 0.6 of the 2,800 of a bare libjpeg-turbo loop.
DECODED_PIXELS = 0.6 * 2800 * 224 * 224


@dataclass(frozen=True)
class Candidate:
    """The forecast on one pool; fields are None if the training cannot run there or no price is known.

    input_cost_usd: the part of cost_usd for input workers, None without them.
    """

    pool: str
    workers: int
    devices: int
    examples_per_second: Estimate | None = None
    hours: Estimate | None = None
    cost_usd: float | None = None
    feasible: bool = False
    chosen: bool = False
    why: str = ""
    errors: tuple[float, ...] = ()
    machine: str = "node"
    price: machines.Price | None = None
    selector: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    input_cost_usd: float | None = None

    @property
    def expected_hours(self) -> float:
        """The expected hours of the training, infinite if it cannot run."""
        return self.hours.expected if self.hours else math.inf

    @property
    def duration(self) -> Class | None:
        """The class of the expected duration."""
        hours = self.hours
        return next((name for name, limit in CLASSES.items() if hours.expected < limit), "month") if hours else None

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `trainyard plan -o json`."""
        return {
            "pool": self.pool,
            "workers": self.workers,
            "devices": self.devices,
            "examples_per_second": _rounded(self.examples_per_second, 1),
            "hours": _rounded(self.hours, 4),
            "class": self.duration,
            "cost_usd": None if self.cost_usd is None else round(self.cost_usd, 4),
            "input_cost_usd": None if self.input_cost_usd is None else round(self.input_cost_usd, 4),
            "feasible": self.feasible,
            "chosen": self.chosen,
            "why": self.why,
        }


def candidates(
    recipe: Recipe, environment: Environment, data: DataSummary, work: ExampleCost, observations: list[Observation]
) -> list[Candidate]:
    """Forecast the training on each pool of the environment, or on this machine, without choosing one.

    A pool with a range of workers is forecast with the most of them, then with the fewest.
    """

    def on_this_machine(workers: int) -> Candidate:
        hardware = local_hardware(recipe, workers)
        candidate = Candidate(THIS_MACHINE, hardware.workers, hardware.replicas)
        return _predicted(candidate, hardware, recipe, data, work, observations)

    if environment.target == "local":
        own = environment.pools.get(environment.pool_name(TRAIN))
        if own is None or not own.is_elastic:
            return [on_this_machine(recipe.train.workers)]
        if why := unequal_parts(recipe, own):
            return [Candidate(THIS_MACHINE, own.max_workers, own.max_workers, why=why)]
        return _with_fewest(lambda pool: on_this_machine(pool.max_workers), own)
    vertex = environment.target == "vertex"  # Vertex AI knows only machine types

    def on_pool(name: str, pool: Pool) -> Candidate:
        needs = placement(pool, environment.platform)
        machine = machines.machine_of(pool, environment.platform)
        candidate = Candidate(
            pool=name,
            workers=pool.max_workers,
            devices=pool.max_workers * (pool.count or 1),
            machine=pool.machine or (f"{machine[0]} (assumed)" if machine else "node"),
            price=machines.price(pool, environment.platform),
            selector=() if vertex else tuple(f"{key}={value}" for key, value in needs.node_selector.items()),
            tolerations=()
            if vertex
            else tuple(dict.fromkeys(_taint_text(taint.key, taint.value, taint.effect) for taint in needs.tolerations)),
        )
        if why := pool.why_no_training:
            return replace(candidate, why=f"cannot train: {why}. {nearest_that_trains(environment.pools)}")
        if pool.variant not in environment.images:
            return replace(candidate, why=f"images.{pool.variant} is not in {environment.name}")
        if why := unequal_parts(recipe, environment.pools[name]):
            return replace(candidate, why=why)
        try:
            hardware = pool_hardware(recipe, environment, pool)
        except ConfigurationError as error:
            return replace(candidate, why=str(error))
        predicted = _priced(
            _predicted(candidate, hardware, recipe, data, work, observations, pods=True), environment, pool
        )
        if not pool.why_no_nodes:
            return predicted
        # Shown for comparison, and never chosen: there is no node to place a step on.
        why = "; ".join(filter(None, [pool.why_no_nodes, predicted.why]))
        return replace(predicted, feasible=False, why=why, selector=(), tolerations=())

    return [row for name, pool in environment.pools.items() for row in _with_fewest(partial(on_pool, name), pool)]


def _with_fewest(forecast: Callable[[Pool], Candidate], pool: Pool) -> list[Candidate]:
    """Return the forecast of a pool; of one with a range of workers, also with the fewest, which is never chosen."""
    rows = [forecast(pool)]
    if pool.min_workers < pool.max_workers and (rows[0].feasible or pool.why_no_nodes):
        fewest = forecast(pool.model_copy(update={"workers": WorkerRange(min=pool.min_workers, max=pool.min_workers)}))
        count = f"{pool.min_workers} worker{'s' if pool.min_workers > 1 else ''}"
        why = f"with {count}, if no other comes"
        why = "; ".join(filter(None, [why, fewest.why]))
        rows.append(replace(fewest, feasible=False, why=why, selector=(), tolerations=()))
    return rows


def _predicted(
    candidate: Candidate,
    hardware: Hardware,
    recipe: Recipe,
    data: DataSummary,
    work: ExampleCost,
    observations: list[Observation],
    pods: bool = False,
) -> Candidate:
    batch, slices = recipe.train.batch_size, recipe.train.accumulation_steps
    if why := recipe.train.unequal_parts(hardware.workers, hardware.devices):
        near = recipe.train.nearest_batch(hardware.workers, hardware.devices)
        return replace(candidate, why=f"train.{why}. Give {near}")
    needed, limit = needed_bytes(work, batch, hardware, slices), max_bytes(work, batch, hardware, slices)
    if hardware.memory_bytes and needed > hardware.memory_bytes:
        least = f"{_gib(needed)} GiB a device, of {_gib(hardware.memory_bytes)}"
        return replace(candidate, why=f"needs at least {least}; {_smaller_parts(work, batch, hardware)}")
    notes = []
    if hardware.memory_bytes and limit > hardware.memory_bytes and not (hardware.fused or recipe.train.xla):
        notes.append(
            f"needs {_gib(needed)} to {_gib(limit)} GiB a device, of {_gib(hardware.memory_bytes)}: set train.xla, and "
            "raise train.accumulation_steps if its memory runs out"
        )
    model = recipe.model.name or recipe.name
    learned = learning.factor(hardware.name, model, observations)
    base = step_seconds(work, batch, hardware, slices)
    ceiling = decoded_per_second(data, hardware)
    speeds = [min(batch / (base * factor), ceiling) for factor in (learned.high, learned.expected, learned.low)]
    speed = Estimate(*speeds)
    hours = Estimate(*(_hours(recipe, data, rate, pods) for rate in reversed(speeds)))
    return replace(
        candidate,
        feasible=True,
        examples_per_second=speed,
        hours=hours,
        errors=tuple(learning.past_errors(model, hardware.name, observations)),
        why="; ".join(filter(None, [_input_note(hardware, speed.expected, ceiling), *notes])),
    )


def _input_note(hardware: Hardware, speed: float, ceiling: float) -> str:
    """Say if the input keeps up with `speed`, as far as it is known; '' if it does without input workers."""
    if speed == ceiling:
        return f"bound by decoding on {'the CPU' if hardware.input_cores is None else 'its input workers'}"
    if hardware.input_cores is None:
        return ""
    if ceiling == math.inf:
        return "whether its input workers keep up is not known: nothing of this split is decoded in every epoch"
    return (
        f"its input workers decode {ceiling:,.0f} examples/s at most; what else they do, and the network to them, is "
        "not counted"
    )


def _priced(candidate: Candidate, environment: Environment, pool: Pool) -> Candidate:
    """Add the cost of the candidate, if it can train and all its nodes have a price."""
    if candidate.hours is None:
        return candidate
    total, input_price = usd_per_hour(environment, pool), input_usd_per_hour(environment)
    workers = environment.input_workers
    if workers and input_price is None:
        unpriced = f"its input workers have no price: set price_per_hour of pool '{workers.pool}'"
        return replace(candidate, why="; ".join(filter(None, [candidate.why, unpriced])))
    if total is None or input_price is None:
        return candidate
    hours = candidate.hours.expected
    return replace(candidate, cost_usd=hours * total, input_cost_usd=hours * input_price or None)


def _smaller_parts(work: ExampleCost, batch: int, hardware: Hardware) -> str:
    """Advise how to fit the batch: the smallest number of parts, otherwise more devices."""
    for parts in range(2, batch // hardware.replicas + 1):
        if batch % (parts * hardware.replicas) == 0 and needed_bytes(work, batch, hardware, parts) <= (
            hardware.memory_bytes or 0
        ):
            return f"set train.accumulation_steps to {parts}, or take more devices"
    return "take more devices, or a smaller network"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.0f}"


def decoded_per_second(data: DataSummary, hardware: Hardware) -> float:
    """Return the examples/s that the cores or input workers can decode; infinite if examples are decoded only once."""
    if not data.streamed or data.image is None:
        return math.inf
    cores = hardware.workers * hardware.cores if hardware.input_cores is None else hardware.input_cores
    return cores * DECODED_PIXELS / (data.image[0] * data.image[1])


def _hours(recipe: Recipe, data: DataSummary, speed: float, pods: bool) -> float:
    batch = recipe.train.batch_size
    evaluation = operations(1, 0) / operations(1, backbone_share(recipe))  # of a step: it computes forward only
    steps = math.ceil(data.train / batch) + evaluation * math.ceil(data.eval / batch)
    start = START_SECONDS + (POD_SECONDS if pods else 0)
    return (recipe.train.epochs * steps * batch / speed + start) / 3600


def _taint_text(key: str, value: str | None, effect: str | None) -> str:
    return f"{key}{f'={value}' if value else ''}{f':{effect}' if effect else ''}"


def _rounded(values: Estimate | None, digits: int) -> dict[str, float] | None:
    if values is None:
        return None
    return {name: round(getattr(values, name), digits) for name in ("low", "expected", "high")}
