"""The plan's forecast of a run's training, which `explain` compares with the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.contract.artifacts.train import Prediction, Training
from trainyard.contract.gang import STEP as TRAIN
from trainyard.errors import TrainyardError
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.planning import cost, data
from trainyard_control.planning.history import Estimate, read_history
from trainyard_control.planning.plan import Candidate, candidates


@dataclass(frozen=True)
class Expectation:
    """The expected examples/s of a training on `pool`, with an 80 % interval, and its USD, None without a price."""

    pool: str
    speed: Estimate
    cost_usd: float | None = None

    def __str__(self) -> str:
        low, expected, high = map(_number, (self.speed.low, self.speed.expected, self.speed.high))
        return f"{expected} ({low}–{high}) examples/s on pool {self.pool}"

    def against(self, measured: float) -> Literal["slower", "faster", ""]:
        """Return slower or faster if the measured speed is outside the interval, otherwise ''."""
        return "slower" if measured < self.speed.low else "faster" if measured > self.speed.high else ""


def expect(recipe: Recipe, environment: Environment) -> Expectation | None:
    """Return the plan's forecast for the pool of train, None if there is none."""
    pool = environment.pool_name(TRAIN)
    forecast = next((candidate for candidate in _forecasts(recipe, environment) if candidate.pool == pool), None)
    if not pool or forecast is None or forecast.examples_per_second is None:
        return None
    cost = None if forecast.cost_usd is None else float(f"{forecast.cost_usd:.4g}")
    return Expectation(pool, forecast.examples_per_second, cost)


def predicted(recipe: Recipe, environment: Environment, training: Training) -> Prediction | None:
    """Return the forecast that `trainyard plan` would have made before this `training` on this machine.

    None if there is none, or if the network would have to be built.
    """
    model = recipe.model
    if recipe.train.command or recipe.train.teacher or model.name is None or model.width != 1 or model.depth != 1:
        return None
    forecasts = _forecasts(recipe, environment, before=training.finished)
    speed = forecasts[0].examples_per_second if forecasts else None
    return Prediction(**vars(speed)) if speed else None


def _forecasts(recipe: Recipe, environment: Environment, before: str | None = None) -> list[Candidate]:
    """Return the plan of each pool, from the runs that finished before `before`; empty if there is no forecast."""
    past = read_history(environment, recipe)
    seen = [observation for observation in past.observations if before is None or observation.finished < before]
    try:
        known = data.find(recipe, past.examples, None)
        return candidates(recipe, environment, known, cost.from_recipe(recipe, known), seen)
    except TrainyardError:  # such as a bucket with an unknown number of examples
        return []


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
