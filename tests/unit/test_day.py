"""What a plan's hours mean for the day, and how a run lies to what was predicted of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_planning import load, pool
from tests.unit.test_pool_benchmark import leave, trained

from trainyard.contract.artifacts.train import Prediction
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard_control.api import forecast
from trainyard_control.planning import cost, data
from trainyard_control.planning.expectation import predicted
from trainyard_control.planning.history import read_history
from trainyard_control.planning.plan import candidates


@pytest.mark.parametrize(
    ("deadline", "budget", "sentence"),
    [
        (None, None, ""),
        (9.0, None, "A sweep of 4 such trainings on l4, one after the other, fits 9 h."),
        (None, 50.0, "A sweep of 10 such trainings on l4 fits 50 USD."),
        (30.0, 50.0, "A sweep of 10 such trainings on l4 fits 50 USD, and one after the other they fit 30 h."),
        (
            9.0,
            50.0,
            "A sweep of 10 such trainings on l4 fits 50 USD; one after the other only 4 fit 9 h, so run 3 in parallel.",
        ),
        (1.0, 50.0, ""),  # not one fits, which the pool's own line says
    ],
)
def test_the_trainings_that_fit_the_limits_are_counted(
    deadline: float | None, budget: float | None, sentence: str
) -> None:
    assert forecast._trials_sentence(pool("l4", 2, 5.0), deadline, budget) == sentence


def test_a_training_of_days_is_told_how_much_faster_it_must_be_and_what_would_be(tmp_path: Path) -> None:
    environment, recipe = load(tmp_path)
    known = data.find(recipe, None, 1_281_167)
    by_pool = {
        candidate.pool: candidate
        for candidate in candidates(recipe, environment, known, cost.from_recipe(recipe, known), [])
    }
    l4, more = by_pool["l4"], (recipe, environment, known, [])
    alone, beside = forecast._help_sentence(l4, [l4], *more), forecast._help_sentence(l4, [*by_pool.values()], *more)
    assert l4.duration == "days" and "l4 would have to be 2." in alone and "learn-curve" in alone
    assert "b200 takes" in beside and "b200" not in alone
    assert "would take" in alone and "trainyard sweep --family" in alone
    assert forecast._help_sentence(by_pool["b200"], [l4], *more) == ""


def test_a_run_of_this_machine_is_held_against_what_was_known_before_it(tmp_path: Path) -> None:
    environment = environments.load("local").model_copy(update={"storage": str(tmp_path)})
    recipe = recipes.load("digits")
    first = trained(1000, 1, "CPU").model_copy(update={"finished": "2026-01-01T00:00:00"})
    second = first.model_copy(update={"finished": "2026-01-02T00:00:00"})
    unseen = predicted(recipe, environment, first)
    leave(tmp_path, "digits", first, "one")
    leave(tmp_path, "digits", second, "two")
    assert unseen and predicted(recipe, environment, first) == unseen  # neither itself nor a later one teaches
    learned = predicted(recipe, environment, second)
    assert learned and learned.high / learned.low < unseen.high / unseen.low
    assert predicted(recipes.load("digits", ["model.width=2"]), environment, first) is None


def test_what_xla_did_teaches_no_plan_without_it(tmp_path: Path) -> None:
    environment = environments.load("local").model_copy(update={"storage": str(tmp_path)})
    leave(tmp_path, "digits", trained(1000, 1, "CPU").model_copy(update={"finished": "2026", "xla": True}), "one")
    with_xla = recipes.load("digits", ["train.xla=true"])
    assert len(read_history(environment, with_xla).observations) == 1
    assert read_history(environment, recipes.load("digits")).observations == []


def test_a_speed_outside_of_the_interval_is_named_so() -> None:
    prediction = Prediction(low=80, expected=100, high=125)
    assert prediction.beside(100).endswith("measured 100 (1.00 of it, within the interval)")
    assert prediction.beside(70).endswith("measured 70 (0.70 of it, below the interval)")
