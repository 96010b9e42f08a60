"""What recorded runs teach: a factor on the predicted step time of this hardware and this model, and how sure it is.

The logarithm of (measured / predicted) step time is taken as the sum of what is particular to the hardware, to the
model on it, and to the single run, each normal. The prior says zero; records shrink it towards what they show.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Standard deviations of those logarithms, chosen, because there are too few runs to estimate them.
HARDWARE = {"published": 0.25, "gpu": 0.35, "tpu": 0.5, "CPU": 0.5}
# Hardware whose published runs the roofline meets within a quarter, see docs/experiments/published.md.
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
# 80 % of a normal distribution lie within so many standard deviations.
WITHIN = 1.2816


@dataclass(frozen=True)
class Observation:
    """One run: how many times longer its steps were than predicted without having learned anything. xla: as it was."""

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
    """Return what to multiply a predicted step time of `model` on `hardware` with, by the `observations`."""
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
    """Return, oldest first, the relative error of the speed predicted before each run of the model."""
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
    """Return mean and variance of a normal distribution after a value `seen` with the variance `noise`."""
    gain = variance / (variance + noise)
    return mean + gain * (value - mean), (1 - gain) * variance
