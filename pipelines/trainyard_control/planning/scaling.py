"""Simulates the scaling of a training from the parts of one worker's step.

Each worker keeps its batch, so n workers process n times the examples, and prepares it itself. A step waits for its
input, computes, waits for the slowest worker, and sums the gradients in a ring.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import TRAIN, Environment
from trainyard.spec.hardware.catalog import catalog, chips, named
from trainyard.spec.recipe import Recipe
from trainyard_control.planning import history
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.hardware import (
    UNKNOWN_NETWORK,
    ExampleCost,
    Hardware,
    communication_seconds,
    local_hardware,
    pool_hardware,
    step_seconds,
)
from trainyard_control.planning.history import Observation
from trainyard_control.planning.plan import decoded_per_second

STEPS = 200  # simulated at each number of workers; chosen: another seed moves no efficiency by half a point
# Seconds of one message between neighbors of a ring, which sends 2 (n - 1) of them one after the other. Chosen: TCP
# between nodes of one data centre, and the links of a TPU slice.
NETWORK_LATENCY = 30e-6
LINK_LATENCY = 1e-6
# Standard deviation of one worker's step by its mean if no run was recorded; chosen.
JITTER = 0.02


@dataclass(frozen=True)
class Parts:
    """The parts of one worker's step without others, in seconds. jitter: relative standard deviation of compute.

    overlap: share of compute during which gradients can be summed; 0, because Trainyard's loop sums after it. origin:
    where the parts come from, for people.
    """

    examples: int
    compute: float
    jitter: float
    input: float = 0.0
    overlap: float = 0.0
    origin: str = ""


@dataclass(frozen=True)
class StepTimes:
    """The step time with `workers` workers, in seconds, and its losses."""

    workers: int
    seconds: float
    examples_per_second: float
    efficiency: float
    all_reduce: float
    stragglers: float
    input: float

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `trainyard plan --scale -o json`. The efficiency and the shares of a step sum to 1."""
        shares = {name: round(getattr(self, name) / self.seconds, 4) for name in ("all_reduce", "stragglers", "input")}
        return {**asdict(self), **shares, "efficiency": round(self.efficiency, 4)}


@dataclass(frozen=True)
class ScalingForecast:
    """The predicted scaling curve of a training on a pool.

    largest: hosts of the largest TPU slice, None for other pools.
    """

    pool: str
    hardware: Hardware
    parts: Parts
    points: list[StepTimes]
    largest: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the answer of `trainyard plan --scale -o json`."""
        points = [point.as_dict() for point in self.points]
        return {"pool": self.pool, "largest": self.largest, "parts": asdict(self.parts), "points": points}


def plan(
    recipe: Recipe,
    environment: Environment,
    data: DataSummary,
    work: ExampleCost,
    observations: list[Observation],
    max_workers: int,
) -> ScalingForecast:
    """Predict the scaling curve of a training on its pool, or on machines like this one.

    Raises `ConfigurationError` if the batch cannot be split equally, or if the hardware has no figures.
    """
    name, hardware, workers = _training_site(recipe, environment)
    batch = recipe.train.batch_size // workers
    if why := recipe.train.unequal_parts(workers, hardware.devices):
        near = recipe.train.nearest_batch(workers, hardware.devices)
        raise ConfigurationError(f"--scale: train.{why} on {name}. Give {near}.")
    model = recipe.model.name or recipe.name
    trainings = [
        training
        for training in history.trainings(environment.storage, recipe.name)
        if training.model == model
        and _examples(training) == batch
        and _alike(training, hardware)
        # Workers of one machine share the cores that each of them saw.
        and not (environment.target == "local" and training.gang.workers > 1)
    ]
    if trainings:
        parts = measured_parts(max(trainings, key=lambda training: training.finished))
    else:
        factor = history.factor(hardware.name, model, observations).expected
        decoding = decoded_per_second(data, replace(hardware, workers=1, input_workers=0))
        parts = predicted_parts(work, batch, recipe.train.accumulation_steps, hardware, factor, decoding)
    known = catalog().accelerators.get(hardware.name)
    slices = [chips(topology) for topology in known.slices] if known else []
    largest = max(slices) // hardware.devices if slices else None
    return ScalingForecast(name, hardware, parts, curve(parts, work, hardware, max_workers), largest)


def _training_site(recipe: Recipe, environment: Environment) -> tuple[str, Hardware, int]:
    """Return the training's pool, hardware of several workers there, and the workers that share the batch."""
    if environment.target == "local":
        here = local_hardware(recipe)
        cores = here.cores * (here.workers if here.cpu else 1)
        name = "machines like this"
        return name, replace(here, cores=cores, network=UNKNOWN_NETWORK, workers=2), recipe.train.workers
    name = environment.pool_name(TRAIN)
    pool = environment.pools[name]
    several = pool.model_copy(update={"workers": max(2, pool.max_workers)})
    return name, pool_hardware(recipe, environment, several), pool.max_workers


def _alike(training: Training, hardware: Hardware) -> bool:
    """Return True if a worker of the training had the devices and cores of `hardware`, so that its step parts apply."""
    name = training.machine.hardware if training.machine.hardware == "CPU" else named(training.machine.hardware)
    devices = training.gang.replicas // training.gang.workers
    same_cores = not hardware.cpu or abs(training.machine.cores - hardware.cores) < 0.5
    alone = training.finished and not training.speed.input_workers
    return bool(alone) and name == hardware.name and devices == hardware.devices and same_cores


def curve(parts: Parts, work: ExampleCost, hardware: Hardware, max_workers: int) -> list[StepTimes]:
    """Return the step times of 1, 2, 4 … and `max_workers` workers."""
    numbers = [2**power for power in range(max_workers.bit_length()) if 2**power < max_workers]
    return [simulated(parts, all_reduce_seconds(work, hardware, number), number) for number in [*numbers, max_workers]]


def simulated(parts: Parts, all_reduce: float, workers: int) -> StepTimes:
    """Simulate STEPS steps of `workers` workers, whose gradients take `all_reduce` seconds to sum."""
    chance = random.Random(workers)  # noqa: S311  # no secret
    slowest = statistics.fmean(
        max(max(0.0, chance.gauss(parts.compute, parts.jitter * parts.compute)) for _ in range(workers))
        for _ in range(STEPS)
    )
    stragglers = max(0.0, slowest - parts.compute) if workers > 1 else 0.0
    shown = max(0.0, all_reduce - parts.overlap * parts.compute)
    seconds = parts.compute + stragglers + shown + parts.input
    return StepTimes(
        workers, seconds, workers * parts.examples / seconds, parts.compute / seconds, shown, stragglers, parts.input
    )


def all_reduce_seconds(work: ExampleCost, hardware: Hardware, workers: int) -> float:
    """Return the seconds that `workers` take to sum their gradients: the ring's bytes and its messages."""
    latency = NETWORK_LATENCY if hardware.network else LINK_LATENCY
    ring = replace(hardware, workers=workers)
    messages = 2 * ((workers if hardware.network else ring.replicas) - 1)
    return communication_seconds(work, ring) + messages * latency


def predicted_parts(
    work: ExampleCost, batch: int, slices: int, hardware: Hardware, factor: float, decoding: float
) -> Parts:
    """Predict the parts of one worker's step by the roofline, times the learned `factor`.

    batch: of one worker. decoding: images per second that its cores decode at most.
    """
    one = replace(hardware, workers=1)
    compute = (step_seconds(work, batch, one, slices) - communication_seconds(work, one)) * factor
    return Parts(
        batch,
        compute,
        JITTER,
        max(0.0, batch / decoding - compute),
        origin="predicted: no run of this batch and hardware is recorded",
    )


def measured_parts(training: Training) -> Parts:
    """Return the parts of one worker's step from a recorded training."""
    split = training.speed.step_split_ms
    alone = split.get("compute", training.speed.step_ms - training.speed.all_reduce_ms) / 1000
    epochs = [epoch.examples_per_second for epoch in training.history[1:] if epoch.examples_per_second]
    jitter = statistics.stdev(1 / speed for speed in epochs) * statistics.fmean(epochs) if len(epochs) > 2 else JITTER
    waited = max(0.0, split.get("input", 0.0)) / 1000
    return Parts(_examples(training), alone, jitter, waited, origin=f"measured, run of {training.finished[:10]}")


def _examples(training: Training) -> int:
    """Return the examples in one worker's step."""
    return round(training.speed.batch_size / training.gang.workers)
