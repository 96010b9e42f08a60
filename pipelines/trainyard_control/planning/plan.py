"""The plan: the forecast of a training on every pool and on a list of them, and the choice with a reason for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from trainyard.contract.epochs import backbone_share, operations
from trainyard.contract.gang import input_usd_per_hour, other_workers, unequal_parts, usd_per_hour
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import TRAIN, Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool, WorkerRange, nearest_that_trains, placement
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Train
from trainyard_control.planning import history
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.hardware import (
    THIS_MACHINE,
    ExampleCost,
    Hardware,
    local_hardware,
    max_bytes,
    needed_bytes,
    pool_hardware,
    step_seconds,
)
from trainyard_control.planning.history import Estimate, Observation

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
# Cores of one process that decode at this speed. Measured: the 16 beside an H100 gave 7,200 images a second of 224
# pixels and 33,078 of 96, as 4.3 and 3.6 such cores would. Why, and what more cores give, is not known.
DECODING_CORES = 4
ALIKE = 1.05  # chosen: a smaller speedup does not justify more devices


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
        if why := other_workers(recipe, own) or unequal_parts(recipe, own):
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
        given = environment.pools[name]
        if why := (other_workers(recipe, given) if given.max_workers > 1 else "") or unequal_parts(recipe, given):
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
    learned = history.factor(hardware.name, model, observations)
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
        errors=tuple(history.past_errors(model, hardware.name, observations)),
        why="; ".join(filter(None, [_input_note(hardware, speed.expected, ceiling), *notes])),
    )


def _input_note(hardware: Hardware, speed: float, ceiling: float) -> str:
    """Say if the input keeps up with `speed`, as far as it is known; '' if it does without input workers."""
    if speed == ceiling:
        return f"bound by decoding on {'its input workers' if hardware.input_workers else 'the CPU'}"
    if not hardware.input_workers:
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
    if hardware.input_workers:
        processes, cores = hardware.input_workers, hardware.input_cores
    else:
        processes, cores = hardware.workers, hardware.cores
    return processes * min(cores, DECODING_CORES) * DECODED_PIXELS / (data.image[0] * data.image[1])


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


def choose(candidates: list[Candidate], deadline: float | None, budget: float | None) -> list[Candidate]:
    """Choose at most one candidate: the cheapest that meets deadline (hours) and budget (USD).

    Without limits, choose the cheapest whose training takes minutes or hours, otherwise the fastest. A pool without a
    price is chosen only if no pool with a price qualifies, and never against a budget; such pools are ranked by speed.
    """
    feasible = [candidate for candidate in candidates if candidate.feasible]
    within_limits = [candidate for candidate in feasible if not _objection(candidate, deadline, budget)]
    within_a_day = [candidate for candidate in within_limits if candidate.duration in ("minutes", "hours")]
    if deadline is not None or budget is not None:
        best = _cheapest(within_limits)
        why = f"{_compared('cheapest', within_limits)} within {_limits(deadline, budget)}"
    elif within_a_day:
        best = _cheapest(within_a_day)
        why = f"{_compared('cheapest', within_a_day)} whose training takes minutes or hours"
    else:
        best, why = _fastest(within_limits), f"{_compared('fastest', within_limits)}; none takes less than a day"
    if best and best.cost_usd is None:
        why = _compared("fastest", within_limits) + ("" if best.pool == THIS_MACHINE else "; it has no price")
    unpriced = [candidate for candidate in feasible if candidate.cost_usd is None]
    unpriced.sort(key=lambda candidate: candidate.expected_hours)

    def judged(candidate: Candidate) -> Candidate:
        if not candidate.feasible:
            return candidate
        if candidate is best:
            late = deadline is not None and candidate.hours is not None and candidate.hours.high > deadline
            reasons = [why, "may miss the deadline" if late else "", candidate.why]
            return replace(candidate, chosen=True, why="; ".join(filter(None, reasons)))
        against = _objection(candidate, deadline, budget) or _against(candidate, best, unpriced)
        return replace(candidate, why="; ".join(filter(None, [against, candidate.why])))

    return [judged(candidate) for candidate in candidates]


def _objection(candidate: Candidate, deadline: float | None, budget: float | None) -> str:
    """Return the limit that the candidate misses, as a sentence, '' if it misses none."""
    if deadline is not None and candidate.expected_hours > deadline:
        return f"takes {_number(candidate.expected_hours)} h, the deadline is {deadline:g} h"
    if budget is not None and candidate.cost_usd is None:
        return "no price, so the budget cannot be held: set price_per_hour"
    if budget is not None and candidate.cost_usd is not None and candidate.cost_usd > budget:
        return f"costs {usd(candidate.cost_usd)} USD, the budget is {budget:g}"
    return ""


def _against(candidate: Candidate, best: Candidate | None, unpriced: list[Candidate]) -> str:
    if best is None:
        return ""
    if candidate.cost_usd is None:
        speed = _speed(candidate, best)
        if best.cost_usd is None:  # no pool has a price: speed alone decides
            return speed
        rank = (
            f", number {unpriced.index(candidate) + 1} by speed of {len(unpriced)} without" if len(unpriced) > 1 else ""
        )
        return f"no price, {speed}{rank}: set price_per_hour to have its cost compared"
    if best.cost_usd is not None and candidate.cost_usd >= best.cost_usd:
        faster = best.expected_hours / candidate.expected_hours
        return f"costs {usd(candidate.cost_usd - best.cost_usd)} USD more" + (
            f", {faster:.1f} times as fast" if faster > 1.05 else ""
        )
    return "cheaper, but slower"


def _speed(candidate: Candidate, best: Candidate) -> str:
    times = best.expected_hours / candidate.expected_hours
    if 1 / ALIKE <= times <= ALIKE:
        return f"about as fast as {best.pool}" + (" with more devices" if candidate.devices > best.devices else "")
    return (
        f"{times:.3g} times as fast as {best.pool}" if times > 1 else f"{1 / times:.3g} times slower than {best.pool}"
    )


def usd(amount: float) -> str:
    """Format an amount in USD, with two significant digits below ten cents."""
    return f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"


def _cheapest(pools: list[Candidate]) -> Candidate | None:
    """Return the cheapest pool with a price, otherwise the fastest."""
    if priced := _with_price(pools):
        return min(priced, key=lambda candidate: (candidate.cost_usd or 0.0, candidate.expected_hours))
    return _fastest(pools)


def _fastest(pools: list[Candidate]) -> Candidate | None:
    """Return the fastest pool; of similar ones, the one with the fewest devices."""
    limit = ALIKE * min((candidate.expected_hours for candidate in pools), default=0.0)
    return min(
        (candidate for candidate in pools if candidate.expected_hours <= limit),
        key=lambda candidate: (candidate.devices, candidate.expected_hours),
        default=None,
    )


def _with_price(pools: list[Candidate]) -> list[Candidate]:
    return [candidate for candidate in pools if candidate.cost_usd is not None]


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _compared(adjective: str, pools: list[Candidate]) -> str:
    """Describe the pools that the choice was compared with; prices compare only pools that have one."""
    compared = _with_price(pools) if adjective == "cheapest" else pools
    with_price = " with a price" if len(compared) < len(pools) else ""
    return (
        f"the only pool{with_price}" if len(compared) == 1 else f"the {adjective} of {len(compared)} pools{with_price}"
    )


def _limits(deadline: float | None, budget: float | None) -> str:
    parts = [f"{deadline:g} h" if deadline is not None else "", f"{budget:g} USD" if budget is not None else ""]
    return " and ".join(filter(None, parts))


@dataclass(frozen=True)
class Stay:
    """The expected part of a training on one pool: hours on it with lost work, and preemptions."""

    pool: str
    hours: float
    preemptions: float


def with_list(
    forecasts: list[Candidate], recipe: Recipe, environment: Environment, data: DataSummary, rate: float | None
) -> list[Candidate]:
    """Return `forecasts` and the one of train's list of pools.

    rate: preemptions per Spot node and hour; None: each pool's own.
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
    row = Candidate(", then ".join(names), rows[0].workers, rows[0].devices)
    if bad := next((candidate for candidate in rows if candidate.hours is None), None):
        return [*forecasts, replace(row, why=f"{bad.pool}: {bad.why}")]
    stays = {bound: _stays(bound, rows, recipe, environment, data, rate) for bound in ("low", "expected", "high")}
    prices = [usd_per_hour(environment, environment.pools[name]) for name in names]
    costs = [price and stay.hours * price for price, stay in zip(prices, stays["expected"], strict=True)]
    parts = [
        f"{stay.pool} {round(stay.hours, 6):.3g} h"
        + (f" with {stay.preemptions:.2g} preemptions" if stay.preemptions else "")
        for stay in stays["expected"]
    ]
    rates = "the pools' rates of preemption" if rate is None else f"{rate:g} preemptions per Spot node and hour"
    why = f"at {rates}: {', '.join(parts)}; nodes are assumed to come at once"
    last, expected_last = environment.pools[names[-1]], stays["expected"][-1]
    if expected_last.preemptions and (allowed := last.allowed_preemptions(last=True)) is not None:
        why += f"; the run fails after more than {allowed * last.max_workers} preemptions on {names[-1]}"
    low, expected, high = (sum(stay.hours for stay in stays[bound]) for bound in ("low", "expected", "high"))
    cost = None if any(one is None for one in costs) else sum(one or 0.0 for one in costs)
    input_cost = None if cost is None else expected * (input_usd_per_hour(environment) or 0.0) or None
    return [
        *forecasts,
        replace(
            row,
            feasible=True,
            examples_per_second=rows[0].examples_per_second,
            hours=Estimate(low, expected, high),
            cost_usd=cost,
            input_cost_usd=input_cost,
            why=why,
        ),
    ]


def _stays(
    bound: str, rows: list[Candidate], recipe: Recipe, environment: Environment, data: DataSummary, rate: float | None
) -> list[Stay]:
    """Return the stays on the pools of `rows` if each takes the hours at the `bound` of its interval."""
    pools = []
    for row in rows:
        pool, last = environment.pools[row.pool], row is rows[-1]
        speed = row.examples_per_second.expected if row.examples_per_second else math.inf
        lost = (checkpoint_seconds(recipe.train, data.train, speed) / 2 + POD_SECONDS + START_SECONDS) / 3600
        allowed = None if last else pool.allowed_preemptions(last)
        own = (pool.preemption_rate or 0.0) if rate is None else rate * pool.spot
        frequency = own * pool.max_workers
        times = None if allowed is None else allowed * pool.max_workers
        pools.append((row.pool, float(getattr(row.hours, bound)), frequency, lost, times))
    return expected_stays(pools)


def checkpoint_seconds(train: Train, examples: int, speed: float) -> float:
    """Return the seconds between checkpoints of a training with `speed` examples per second; their cost is ignored."""
    from trainyard.steps.train.loop.checkpoint import CHECKPOINT_SECONDS  # NumPy

    epoch, every = examples / speed, train.checkpoints.every_steps
    seconds = max(1, every // 2) * train.batch_size / speed if every else CHECKPOINT_SECONDS
    return min(seconds, epoch) if every else epoch / max(1, round(epoch / seconds))


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
