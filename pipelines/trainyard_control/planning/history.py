"""The earlier runs in an environment's storage, read within the time that a plan may take, and what they teach.

The logarithm of (measured / predicted) step time is modeled as the sum of three normal effects: of the hardware, of the
model on it, and of the run. The prior is zero; records shrink the estimate towards what they show.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import Document
from trainyard.contract.pipeline import Pipeline
from trainyard.errors import TrainyardError
from trainyard.spec.environment import Environment
from trainyard.spec.hardware.catalog import named
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.planning.hardware import (
    ExampleCost,
    Hardware,
    accelerator_hardware,
    communication_seconds,
    cpu_hardware,
    step_seconds,
)

_Document = TypeVar("_Document", bound=Document)
MAX_RUNS = 200  # chosen: maximum number of recorded runs read per recipe, the last by name
BUCKET_SECONDS = 1.2  # chosen: a plan answers within two seconds, even if a bucket is slow
# Standard deviations of those logarithms, chosen, because there are too few runs to estimate them.
HARDWARE = {"published": 0.25, "gpu": 0.35, "tpu": 0.5, "CPU": 0.5}
# Hardware whose published runs the roofline predicts within 25 %, see docs/explanation/planning.md.
PUBLISHED = (
    "nvidia-tesla-v100",
    "nvidia-tesla-p100",
    "nvidia-h100-80gb",
    "tpu-v2",
    "tpu-v3-device",
    "tpu-v3-slice",
    "tpu-v4-podslice",
)
MODEL = 0.35
RUN = 0.15
# 80 % of a normal distribution lie within this number of standard deviations.
WITHIN = 1.2816


@dataclass
class History:
    """The recorded runs and the recipe's last preprocessing. warning: why they may be incomplete."""

    observations: list[Observation] = field(default_factory=list)
    examples: Examples | None = None
    warning: str = ""


def read_history(environment: Environment, recipe: Recipe) -> History:
    """Read the earlier runs of an environment; from a bucket, those that it returns within BUCKET_SECONDS."""
    history, root = History(), environment.storage
    if "://" not in root:
        _read(environment, recipe, history)
        return history
    # A daemon thread, so that a silent bucket does not block the exit.
    reader = threading.Thread(target=_read, args=(environment, recipe, history), daemon=True)
    reader.start()
    reader.join(BUCKET_SECONDS)
    if reader.is_alive():
        history.warning = f"{root} did not tell all of its runs in {BUCKET_SECONDS:g} s"
    return history


def _read(environment: Environment, recipe: Recipe, history: History) -> None:
    try:
        history.examples = last_preprocessed(recipe, environment.storage)
        for observation in observations(environment.storage, one_machine=environment.target == "local"):
            # XLA changes a speed on a CPU by several times, either way.
            if observation.xla == recipe.train.xla:
                history.observations.append(observation)
    except TrainyardError as error:
        history.warning = str(error)


def last_preprocessed(recipe: Recipe, root: str) -> Examples | None:
    """Return the manifest of this source's last preprocessing, otherwise of any source's; None if there is none."""
    uris = outputs(root, recipe.name, "preprocess")
    exact = ""
    if len(uris) > 1 and "://" not in (recipe.data.path or ""):  # a bucket's objects take too long to list
        with suppress(TrainyardError):
            exact = Pipeline(root, recipe).place("preprocess").output
    by_preference = (uri for uri in [exact, *reversed(uris)] if uri in uris)
    return next(readable(Examples, by_preference), None)


def observations(root: str, one_machine: bool) -> Iterator[Observation]:
    """Yield the observations of the trainings below the storage `root`. Raises if a bucket cannot be read.

    one_machine: the workers of a gang shared the cores that each of them saw.
    """
    for recipe in storage.children(root):
        for training in trainings(root, recipe):
            yield from _observed(training, one_machine)


def outputs(root: str, recipe: str, step: str) -> list[str]:
    """Return the output folders of `step`, the newest last; those in a bucket by name."""
    folder = storage.join(root, recipe, step)
    uris = [storage.join(folder, key) for key in storage.children(folder)]
    return uris if "://" in root else sorted(uris, key=lambda uri: Path(uri).stat().st_mtime)


def readable(document: type[_Document], uris: Iterable[str]) -> Iterator[_Document]:
    """Yield the documents of the committed outputs `uris`, without those of other versions of Trainyard."""
    for uri in uris:
        with suppress(TrainyardError):
            yield document.read(uri)


def trainings(root: str, recipe: str) -> Iterator[Training]:
    """Yield the committed trainings of `recipe` below the storage `root`."""
    folder = storage.join(root, recipe, "train")
    yield from readable(Training, (storage.join(folder, key) for key in storage.children(folder)[-MAX_RUNS:]))


def _observed(training: Training, one_machine: bool) -> Iterator[Observation]:
    """Yield the observation of a training.

    None if it is unfinished, if it recorded no cost (trees, custom programs), or if the number of its workers changed.
    """
    hardware = _hardware(training, one_machine)
    if (
        hardware is None
        or len(training.gang.worker_counts) > 1
        or not training.costs.flops_per_example
        or not training.finished
    ):
        return
    work = ExampleCost(training.parameters, **training.costs.model_dump())
    predicted = step_seconds(work, training.speed.batch_size, hardware) - communication_seconds(work, hardware)
    measured = (training.speed.step_ms - training.speed.all_reduce_ms) / 1000
    if measured > 0:
        yield Observation(hardware.name, training.model, measured / predicted, training.finished, training.xla)


def _hardware(training: Training, one_machine: bool) -> Hardware | None:
    """Return the hardware of a training, None if the catalog lacks it or no pool trains so (JAX on CPUs)."""
    if training.machine.hardware == "CPU":
        if training.machine.engine != "tensorflow":
            return None
        return cpu_hardware(
            training.machine.cores / (training.gang.workers if one_machine else 1), training.gang.workers, None
        )
    name = named(training.machine.hardware)
    if name is None:
        return None
    precision = "float32" if training.precision == "float32" else "auto"
    return accelerator_hardware(
        precision,
        name,
        training.gang.replicas // training.gang.workers,
        training.gang.workers,
        training.machine.cores,
        None,
    )


@dataclass(frozen=True)
class Observation:
    """A run: the ratio of its step time to the prediction without learning. xla: its setting."""

    hardware: str
    model: str
    ratio: float
    finished: str
    xla: bool = False


@dataclass(frozen=True)
class Estimate:
    """An expected value within its 80 % interval."""

    low: float
    expected: float
    high: float


def factor(hardware: str, model: str, observations: Iterable[Observation]) -> Estimate:
    """Return the factor for the predicted step time of `model` on `hardware`, given the `observations`."""
    groups: dict[str, list[float]] = defaultdict(list)
    for observation in observations:
        if observation.hardware == hardware:
            groups[observation.model].append(math.log(observation.ratio))
    mean, variance = 0.0, HARDWARE[_prior(hardware)] ** 2
    for other, logs in groups.items():
        if other != model:
            mean, variance = _update(mean, variance, sum(logs) / len(logs), MODEL**2 + RUN**2 / len(logs))
    variance += MODEL**2
    if own := groups.get(model):
        mean, variance = _update(mean, variance, sum(own) / len(own), RUN**2 / len(own))
    spread = WITHIN * math.sqrt(variance + RUN**2)
    return Estimate(math.exp(mean - spread), math.exp(mean), math.exp(mean + spread))


def past_errors(model: str, hardware: str, observations: Sequence[Observation]) -> list[float]:
    """Return the relative errors of the speeds predicted before each run of the model, the oldest first."""
    ordered = sorted(observations, key=lambda observation: observation.finished)
    return [
        observation.ratio / factor(hardware, model, ordered[:index]).expected - 1
        for index, observation in enumerate(ordered)
        if (observation.model, observation.hardware) == (model, hardware)
    ]


def _prior(hardware: str) -> str:
    if hardware in PUBLISHED:
        return "published"
    return "CPU" if hardware == "CPU" else "tpu" if hardware.startswith("tpu") else "gpu"


def _update(mean: float, variance: float, value: float, noise: float) -> tuple[float, float]:
    """Update mean and variance of a normal distribution with a `value` of variance `noise`."""
    gain = variance / (variance + noise)
    return mean + gain * (value - mean), (1 - gain) * variance
