"""Learns from recorded runs a factor on the predicted step time of hardware and model, with its uncertainty.

The logarithm of (measured / predicted) step time is modeled as the sum of three normal effects: of the hardware, of the
model on it, and of the run. The prior is zero; records shrink the estimate towards what they show.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Standard deviations of those logarithms, chosen, because there are too few runs to estimate them.
HARDWARE = {"published": 0.25, "gpu": 0.35, "tpu": 0.5, "CPU": 0.5}
# Hardware whose published runs the roofline predicts within 25 %, see docs/experiments/published.md.
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
