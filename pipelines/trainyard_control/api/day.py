"""What the hours of a training mean for the day of who waits for it: how many fit the limits, and what would help."""

from __future__ import annotations

import math

from trainyard.errors import TrainyardError
from trainyard.spec.environment import Environment
from trainyard.spec.networks import LADDERS, Network
from trainyard.spec.recipe import Recipe
from trainyard_control.planning import cost
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.learning import Observation
from trainyard_control.planning.plan import CLASSES, Candidate, candidates

_DAY = CLASSES["hours"]


def trials(candidate: Candidate, deadline: float | None, budget: float | None) -> str:
    """Return how many such trainings fit a deadline (hours) and a budget (USD); '' without limits or a duration."""
    if candidate.hours is None:
        return ""
    in_turn = None if deadline is None else math.floor(deadline / max(candidate.hours.expected, 1e-9))
    paid = None if budget is None or not candidate.cost_usd else math.floor(budget / candidate.cost_usd)
    if 0 in (in_turn, paid) or (in_turn is None and paid is None):
        return ""  # of a missed limit the pool's own line says by how much
    where = f"on {candidate.pool}"
    if paid is None:
        return f"A sweep of {in_turn:,} such trainings {where}, one after the other, fits {deadline:g} h."
    if in_turn is None:
        return f"A sweep of {paid:,} such trainings {where} fits {budget:g} USD."
    if paid <= in_turn:
        return (
            f"A sweep of {paid:,} such trainings {where} fits {budget:g} USD, and one after the other they fit "
            f"{deadline:g} h."
        )
    beside = math.ceil(paid / in_turn)
    return (
        f"A sweep of {paid:,} such trainings {where} fits {budget:g} USD; one after the other only {in_turn:,} fit "
        f"{deadline:g} h, so run {beside:,} side by side."
    )


def help_for(
    candidate: Candidate,
    others: list[Candidate],
    recipe: Recipe,
    environment: Environment,
    data: DataSummary,
    observations: list[Observation],
) -> str:
    """Return what brings a training of more than a day below one; '' if it takes less."""
    if candidate.hours is None or candidate.expected_hours < _DAY:
        return ""

    def hours_with(name: Network) -> float | None:
        model = recipe.model.model_copy(update={"name": name, "width": 1.0, "depth": 1.0, "freeze": "none"})
        other = recipe.model_copy(update={"model": model})
        try:
            forecasts = candidates(other, environment, data, cost.of_recipe(other, data), observations)
        except TrainyardError:
            return None
        pools = (row for row in forecasts if row.pool == candidate.pool and row.hours and row.feasible)
        return next((row.expected_hours for row in pools), None)

    times = candidate.expected_hours / _DAY
    advice = [f"The training on {candidate.pool} would have to be {times:,.1f} times as fast to take less than a day."]
    able = [other for other in others if other.feasible and other.hours]
    faster = min(able, key=lambda other: other.expected_hours, default=candidate)
    if faster.expected_hours < _DAY:
        advice.append(f"{faster.pool} takes {faster.expected_hours:.2g} h.")
    pictures = recipe.data.is_image and recipe.model.name is not None
    for name in reversed(LADDERS["efficient"]) if pictures else ():
        hours = hours_with(name) if name != recipe.model.name else None
        if hours is not None and hours < _DAY:
            advice.append(
                f"On {candidate.pool} {name} would take {hours:.2g} h; `trainyard sweep --ladder` compares networks."
            )
            break
    advice.append(
        "Part of the data (data.fraction) tells sooner which settings are good; `trainyard learn-curve` what is lost."
    )
    return " ".join(advice)
