"""A gang as a pipeline carries it, made when the pipeline is compiled: as parameter `gang` of the train step.

Beside it: the number and the price of its input workers, and its attempts on a list of pools or an elastic one.

Other steps on a list of pools carry theirs as the variable `VARIABLE`, which is in no cache key of Kubeflow's. A recipe
knows no hardware and the launcher knows no environment, so what the environment says of the pools travels with the
pipeline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field, PrivateAttr, TypeAdapter

from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError
from trainyard.graph import STEPS
from trainyard.spec.documents import Strict
from trainyard.spec.environment import DEFAULT, MAX_INPUT_WORKERS, TRAIN, CaBundle, Environment, SecretKey, Volume
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.catalog import Platform
from trainyard.spec.hardware.pools import TRAINER_VARIABLE, Pool, placement
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Recipe

STEP = TRAIN
_FITTING = {("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu")}
"""Variants of images: that of a step's pool, and one that holds all of it."""

VARIABLE = "TRAINYARD_GANG"  # JSON text of the `GangSpec` of a step that a launcher runs in a pod


class InputPods(Strict):
    """Pods that prepare the batches of a gang."""

    image: str
    count: Annotated[int, Field(ge=1)]
    pool: Pool


class PlacedGang(Strict):
    """A gang on one pool.

    name: the pool, '' if attempts are not noted. usd_per_hour: of one worker, with its share of input workers.
    """

    image: str
    workers: Annotated[int, Field(ge=1)]
    pool: Pool
    name: str = ""
    usd_per_hour: float | None = None


class GangSpec(PlacedGang):
    """Pods that train together, or one of any `step`: what they run as, where, and for how long at most.

    fallbacks: where they run next if the pool before has no nodes or loses them.
    """

    step: str = TRAIN
    platform: Platform
    service_account: str
    timeout_seconds: int
    volume: Volume | None = None
    ca_bundle: CaBundle | None = None
    variables: dict[str, str] = {}
    secrets: dict[str, SecretKey] = {}
    image_pull_secrets: list[str] = []
    input_workers: InputPods | None = None
    fallbacks: list[PlacedGang] = []

    @property
    def attempts(self) -> list[GangSpec]:
        """This gang on each of its pools, in the order in which they are tried."""
        alone = self.model_copy(update={"fallbacks": []})
        return [alone, *(alone.model_copy(update=dict(placed)) for placed in self.fallbacks)]


class ElasticGang(Strict):
    """A gang that trains with the workers that are available.

    counts: the numbers of workers that divide the batch evenly, ascending; the last is the number that the gang asks
    for. replace_seconds: how long it waits for a missing worker before it trains without it. start_deadline_seconds:
    how long for the fewest workers before it fails.
    """

    counts: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    replace_seconds: Annotated[int, Field(ge=1)]
    start_deadline_seconds: Annotated[int, Field(ge=1)]


def elastic_gang(recipe: Recipe, pool: Pool | None) -> ElasticGang | None:
    """Return the elastic gang that trains `recipe` on `pool`, None without a range of workers.

    Raises `ConfigurationError` if the batch has `unequal_parts`, or if the recipe asks for another number of workers.
    """
    if pool is None or not pool.is_elastic:
        return None
    if why := other_workers(recipe, pool) or unequal_parts(recipe, pool):
        raise ConfigurationError(f"{recipe.name}: {why}.")
    possible = range(pool.min_workers, pool.max_workers + 1)
    counts = [count for count in possible if not recipe.train.unequal_parts(count, pool.count)]
    return ElasticGang(
        counts=counts, replace_seconds=pool.replace_seconds, start_deadline_seconds=pool.start_deadline_seconds
    )


def other_workers(recipe: Recipe, pool: Pool) -> str:
    """Return the reason why `pool` does not train with the number of workers that `recipe` asks for, or ''."""
    if recipe.train.workers in (1, pool.max_workers):
        return ""
    asked = f"train.workers: {recipe.train.workers} processes were asked for"
    return f"{asked}, and {_bounds(pool)} says how many train. Leave train.workers out"


def unequal_parts(recipe: Recipe, pool: Pool) -> str:
    """Return the reason why the workers of `pool` cannot share the batch equally, with what would do, or ''.

    Of a range of workers, the fewest and the most must divide it.
    """
    train, low, high = recipe.train, pool.min_workers, pool.max_workers
    possible = [count for count in range(low, high + 1) if not train.unequal_parts(count, pool.count)]
    if {low, high} <= {*possible}:
        return ""
    count = high if low in possible else low
    batch = train.nearest_batch(math.lcm(low, high), pool.count)
    why = f"train.{train.unequal_parts(count, pool.count)}"
    if not pool.is_elastic:
        return f"{why}. Give {batch}"
    ends = {"min": (low, possible[0]), "max": (high, possible[-1])} if possible else {}
    near = " and ".join(f"{bound}: {end}" for bound, (given, end) in ends.items() if given != end)
    return f"{why}, for {_bounds(pool)}. Give {f'{near}, or ' if near else ''}a batch of {batch}"


def _bounds(pool: Pool) -> str:
    bounds = f"{{min: {pool.min_workers}, max: {pool.max_workers}}}" if pool.is_elastic else pool.max_workers
    return f"the pool's workers: {bounds}"


def check_one_cpu(recipe: Recipe, environment: Environment) -> None:
    """Raise `ConfigurationError` if `environment` trains boosted trees on more than they use: one worker on a CPU."""
    if recipe.model.name == TREES and (why := _no_cpu_alone(environment)):
        raise ConfigurationError(
            f"{recipe.name}: model.name: {why}. Place train on a pool of kind cpu with one worker, or name mlp."
        )


def why_no_trees(environment: Environment) -> str:
    """Return the reason why `environment` cannot train boosted trees, '' if it can."""
    if environment.input_workers is not None:
        return "boosted_trees reads the examples itself, and the environment has input workers"
    return _no_cpu_alone(environment)


def _no_cpu_alone(environment: Environment) -> str:
    pools = {name: environment.pools[name] for name in environment.pool_names(TRAIN) if name in environment.pools}
    for name, pool in pools.items():
        if pool.kind != "cpu" or pool.max_workers > 1:
            has = f"{pool.max_workers} workers" if pool.kind == "cpu" else f"kind {pool.kind}"
            return f"boosted_trees trains in one process on a CPU, and the pool '{name}' has {has}"
    return ""


def launches(environment: Environment, step: str = TRAIN) -> bool:
    """Return True if the pod of `step` in `environment` only starts a gang and waits for it."""
    return environment.target == "kubeflow" and (
        has_list(environment, step)
        or (step == TRAIN and (environment.input_workers is not None or environment.pool_of(TRAIN).max_workers > 1))
    )


def has_list(environment: Environment, step: str = TRAIN) -> bool:
    """Return True if the environment names a list of pools for `step`."""
    return isinstance(environment.placement.get(step), list)


def notes_attempts(environment: Environment, step: str = TRAIN) -> bool:
    """Return True if a run notes where `step` ran, and what it cost: on a list of pools, or an elastic training."""
    return has_list(environment, step) or (step == TRAIN and environment.pool_of(TRAIN).is_elastic)


def trainer_variables(environment: Environment) -> dict[str, str]:
    """Return the variable that tells Trainyard's steps which image trains, if it holds another TensorFlow, or JAX."""
    trainer = environment.pool_of(TRAIN).variant
    return {TRAINER_VARIABLE: trainer} if trainer in ("tpu", "jax", "jax-gpu") else {}


def recipe_image(recipe: Recipe, step: str, pool: Pool, environment: Environment) -> str | None:
    """Return `train.image` if `step` calls the recipe's code on a `pool` that the image fits, otherwise None.

    The image is built from Trainyard's image for the pool of train. That for a gpu pool holds all that a cpu pool's
    does; the others only train.
    """
    if step == TRAIN:
        return recipe.train.image
    calls_code = recipe.module is not None and step in STEPS and bool(STEPS[step].hook)
    fits = (pool.variant, environment.pool_of(TRAIN).variant) in _FITTING
    return recipe.train.image if calls_code and fits else None


def gang_spec(environment: Environment, step: str = TRAIN, recipe: Recipe | None = None) -> GangSpec | None:
    """Return the gang that executes `step` in `environment`, or None if the step's own pod does.

    recipe: the one whose `train.image` the pods of a step other than train may have. Train's launcher reads its own.

    Raises `ConfigurationError` if the launcher would wait on accelerators.
    """
    if not launches(environment, step):
        return None
    name = environment.pool_name(step)
    launcher = environment.pool_name(DEFAULT)
    if environment.pools[launcher].kind != "cpu":
        raise ConfigurationError(
            f"{environment.name}: placement.{DEFAULT}: '{launcher}' is a {environment.pools[launcher].kind} pool, and "
            f"the launcher of the gang on '{name}' would wait there. Name a cpu pool."
        )
    trains = step == TRAIN
    code = None if trains else recipe
    first, *fallbacks = (_placed(environment, step, name, code) for name in environment.pool_names(step))
    return GangSpec(
        **dict(first),
        fallbacks=fallbacks,
        step=step,
        platform=environment.platform,
        service_account=environment.service_accounts.worker,
        timeout_seconds=environment.timeout_of(step) or STEPS[step].timeout_seconds,
        volume=environment.volume,
        ca_bundle=environment.ca_bundle,
        variables=environment.pod_variables | ({} if trains else trainer_variables(environment)),
        secrets=environment.secrets,
        image_pull_secrets=environment.image_pull_secrets,
        input_workers=_input_pods(environment) if trains else None,
    )


def _placed(environment: Environment, step: str, name: str, recipe: Recipe | None) -> PlacedGang:
    pool, noted = environment.pools[name], notes_attempts(environment, step)
    workers = pool.max_workers if step == TRAIN else 1
    price = hourly_price(environment, step, pool) if noted else None
    image = recipe_image(recipe, step, pool, environment) if recipe else None
    return PlacedGang(
        image=image or environment.images[pool.variant],
        workers=workers,
        pool=_without_cost_fields(pool, environment.platform),
        name=name if noted else "",
        usd_per_hour=None if price is None else price / workers,
    )


def hourly_price(environment: Environment, step: str, pool: Pool) -> float | None:
    """Return the price of `step` on `pool` for an hour, None without a known price: one node if it does not train."""
    if step == TRAIN:
        return usd_per_hour(environment, pool)
    price = machines.price(pool, environment.platform)
    return price.usd_per_hour if price else None


def _input_pods(environment: Environment) -> InputPods | None:
    workers = environment.input_workers
    if workers is None:
        return None
    pool = environment.pools[workers.pool]
    return InputPods(
        image=environment.images[pool.variant],
        count=workers.count,
        pool=_without_cost_fields(pool, environment.platform),
    )


def _without_cost_fields(pool: Pool, platform: Platform) -> Pool:
    """Return `pool` without values that do not change the gang, because KFP would train again if one of them changed.

    The machine stays on platforms that label their nodes by it.
    """
    free = pool.model_copy(update={"nodes": None, "price_per_hour": None})
    without_machine = free.model_copy(update={"machine": None})
    return without_machine if placement(without_machine, platform) == placement(free, platform) else free


def check_input_workers(recipe: Recipe, count: int) -> None:
    """Raise `ConfigurationError` if `count` input workers have nothing to do for `recipe`."""
    if count and recipe.model.name == TREES:
        raise ConfigurationError(
            f"{recipe.name}: model.name: boosted_trees reads the examples itself, and the environment has {count} "
            "input workers. Leave input_workers out of it."
        )
    if count and recipe.train.command is not None:
        raise ConfigurationError(
            f"{recipe.name}: train.command: a custom program reads the examples itself, and the environment has "
            f"{count} input workers. Leave input_workers out of it."
        )


def to_parameter(plan: GangSpec | ElasticGang | None) -> str:
    """Return the parameter's text; '' if there is no gang."""
    return plan.model_dump_json(by_alias=True, exclude_defaults=True) if plan else ""


def input_workers_needed(hosts: int, step_seconds: float, fed_step_seconds: float) -> int | None:
    """Return the number of input workers that make a step as short as one with prefetched input.

    hosts: the processes that prepare the batches now: input workers, otherwise training workers. Each new worker is
    assumed to do the work of one of them. None if the number exceeds the environment's limit.
    """
    needed = math.ceil(round(hosts * step_seconds / fed_step_seconds, 6))
    return needed if needed <= MAX_INPUT_WORKERS else None


def training_needs(training: Training) -> int | None:
    """Return the number of input workers that `training` needed; None unless its input was the bottleneck."""
    if training.speed.bottleneck != "input" or not training.speed.cached_step_ms:
        return None
    return input_workers_needed(
        training.speed.input_workers or training.gang.workers, training.speed.step_ms, training.speed.cached_step_ms
    )


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


class Attempt(BaseModel):
    """The training on one pool, as its launcher sees it.

    waited_seconds: without enough running workers. worker_seconds: of all running workers together. usd_per_hour: of
    one worker. preempted: names of pods. why: the reason why the next pool was tried, '' for the last attempt. running,
    waits, seen: what the launcher last saw, and when in Unix time: another launcher continues from there.
    """

    pool: str = ""
    spot: bool = False
    workers: int = 1
    usd_per_hour: float | None = None
    waited_seconds: float = 0.0
    worker_seconds: float = 0.0
    preempted: list[str] = []
    why: str = ""
    running: int = 0
    waits: bool = True
    seen: float | None = None
    _on_change: Callable[[], None] | None = PrivateAttr(default=None)

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` called when an observation changes more than the time."""
        self._on_change = call

    def observe(self, running: int, waits: bool, preempted: set[str]) -> None:
        """Count the time since the last observation, and the pods that were `preempted` since then.

        running: number of running workers. waits: True if they are too few to train.
        """
        lost = sorted(preempted.difference(self.preempted))
        changed = bool(lost) or self.seen is None or (running, waits) != (self.running, self.waits)
        now = time.time()
        passed = max(0.0, now - (now if self.seen is None else self.seen))
        self.worker_seconds += passed * self.running
        self.waited_seconds += passed * self.waits
        self.preempted += lost
        self.running, self.waits, self.seen = running, waits, now
        if changed and self._on_change:
            self._on_change()

    @property
    def cost_usd(self) -> float | None:
        """The cost of its workers, None without a price."""
        return None if self.usd_per_hour is None else self.worker_seconds / 3600 * self.usd_per_hour

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `attempts` in a run's record, with `seen` while workers run."""
        return {
            **self.model_dump(include={"pool", "spot", "workers", "why"}),
            "waited_seconds": round(self.waited_seconds, 1),
            "worker_seconds": round(self.worker_seconds, 1),
            "preemptions": len(self.preempted),
            "cost_usd": None if self.cost_usd is None else round(self.cost_usd, 4),
            **({"seen": self.seen} if self.running else {}),
        }


ATTEMPTS = TypeAdapter(dict[str, list[Attempt]])
"""Attempts by the name of their gang: a later run that trains the same model begins with the first pool again."""
