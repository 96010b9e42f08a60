"""Expected time and cost of a training on a list of pools, some of which are preempted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard.steps.train.loop.checkpoint import CHECKPOINT_SECONDS, SaveSchedule
from trainyard_control.cli.main import app
from trainyard_control.planning.plan import checkpoint_seconds, expected_stays

RATE, LOST = 0.3, 0.2  # preemptions an hour, and hours that each costs


def simulated(pools: list[tuple[str, float, float, float, int | None]], draw: random.Random) -> list[float]:
    """Return the hours of one training on each pool, drawn preemption by preemption."""
    left, hours = 1.0, []
    for _, whole, rate, lost, allowed in pools:
        spent, seen = 0.0, 0
        while left > 0:
            until = draw.expovariate(rate) if rate else float("inf")
            if until >= left * whole:
                spent, left = spent + left * whole, 0.0
                break
            spent, left, seen = spent + until + lost, left - until / whole, seen + 1
            if allowed is not None and seen > allowed:
                break
        hours.append(spent)
    return hours


def test_the_expectation_is_the_mean_of_trainings_drawn_at_random() -> None:
    pools = [("spot", 8.0, RATE, LOST, 2), ("calm", 12.0, 0.0, LOST, None)]
    draw, count = random.Random(1), 20_000
    runs = [simulated(pools, draw) for _ in range(count)]
    stays = expected_stays(pools)
    for index, stay in enumerate(stays):
        assert stay.hours == pytest.approx(sum(run[index] for run in runs) / count, rel=0.02)
    assert stays[0].preemptions == pytest.approx((stays[0].hours - stays[0].preemptions * LOST) * RATE)


def test_the_next_pool_is_left_nothing_without_a_limit_or_without_preemptions() -> None:
    assert [stay.hours for stay in expected_stays([("a", 8, 0.0, 1, 3), ("b", 8, 0.0, 1, None)])] == [8.0, 0.0]
    assert [stay.hours for stay in expected_stays([("a", 8, 0.5, 1, None), ("b", 8, 0.0, 1, None)])] == [12.0, 0.0]
    often = expected_stays([("a", 8, 1e6, 0.001, 3), ("b", 8, 0.0, 1, None)])
    assert often[0].preemptions == pytest.approx(4) and often[1].hours == pytest.approx(8)


@pytest.mark.parametrize(
    ("every", "step_seconds"), [(None, 0.1), (None, 0.4), (None, 1.0), (None, 30.0), (10, 0.1), (1, 9.0)]
)
def test_the_plan_expects_checkpoints_as_far_apart_as_a_training_writes_them(
    every: int | None, step_seconds: float
) -> None:
    recipe = recipes.load("digits", [f"train.checkpoints.every_steps={every or 'null'}", "train.batch_size=50"])
    schedule, saved = SaveSchedule(recipe.train.checkpoints, 100), []
    schedule.note_saved(0)
    for step in range(1, 1001):
        schedule.note_steps(1, step_seconds, CHECKPOINT_SECONDS)
        if step % 100 == 0 or schedule.is_due(step):
            saved.append(step)
            schedule.note_saved(step)
    expected = checkpoint_seconds(recipe.train, 5000, 50 / step_seconds)
    assert expected == pytest.approx(1000 / len(saved) * step_seconds)


def environment(folder: Path, train: Any) -> Path:
    resources = {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    pool = {"kind": "cpu", "resources": resources, "price_per_hour": 4.0}
    content = {
        "target": "kubeflow",
        "storage": str(folder / "runs"),
        "volume": {"claim": "runs", "path": str(folder)},
        "images": {"cpu": "example/cpu:1"},
        "pools": {"spot": pool | {"spot": True, "price_per_hour": 1.0}, "calm": pool},
        "placement": {"default": "calm", "train": train},
    }
    file = folder / "own.yaml"
    file.write_text(json.dumps(content))
    return file


def test_the_plan_prices_a_list_of_pools_at_the_stated_rate(tmp_path: Path) -> None:
    command = [
        "plan",
        "digits",
        "--examples",
        "5000000",
        "-o",
        "json",
        "-e",
        str(environment(tmp_path, ["spot", "calm"])),
    ]
    runs = {rate: CliRunner().invoke(app, [*command, "--preemption-rate", rate]) for rate in ("0", "0.5", "3600")}
    rows = {rate: json.loads(run.stdout) for rate, run in runs.items()}
    assert [row["pool"] for row in rows["0"]] == ["spot", "calm", "spot, then calm"]
    spot, calm, undisturbed = rows["0"]
    assert (undisturbed["hours"], undisturbed["cost_usd"]) == (spot["hours"], spot["cost_usd"])
    half, often = rows["0.5"][2], rows["3600"][2]
    assert spot["hours"]["expected"] < half["hours"]["expected"] and spot["cost_usd"] < half["cost_usd"]
    assert often["cost_usd"] == pytest.approx(calm["cost_usd"], rel=0.1)
    assert half["why"].startswith("at 0.5 preemptions per Spot node and hour: spot ") and "calm" in half["why"]
    assert not half["chosen"]
    file = environment(tmp_path, ["spot", "calm"])
    content = json.loads(file.read_text())
    content["pools"]["spot"]["preemption_rate"] = 0.5
    file.write_text(json.dumps(content))
    own = json.loads(CliRunner().invoke(app, command).stdout)[2]
    assert (own["hours"], own["cost_usd"]) == (half["hours"], half["cost_usd"])


def test_the_forecast_of_a_list_counts_its_own_input_workers_and_names_a_last_pool_that_fails(tmp_path: Path) -> None:
    file = environment(tmp_path, ["spot", "calm"])
    content = json.loads(file.read_text())
    content["pools"]["calm"] |= {"spot": True, "preemptions": 2}
    content["pools"]["feeds"] = content["pools"]["calm"] | {"price_per_hour": 0.5, "spot": False, "preemptions": None}
    file.write_text(json.dumps(content | {"input_workers": {"count": 2, "pool": "feeds"}}))
    command = ["plan", "digits", "--examples", "5000000", "-e", str(file), "--preemption-rate", "20"]
    row = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)[-1]
    assert row["input_cost_usd"] == pytest.approx(row["hours"]["expected"] * 2 * 0.5, abs=1e-3)
    assert row["why"].endswith("; the run fails after more than 2 preemptions on calm")


def test_the_table_shows_the_cost_with_the_fewest_workers(tmp_path: Path) -> None:
    file = environment(tmp_path, "spot")
    content = json.loads(file.read_text())
    content["pools"]["spot"]["workers"] = {"min": 1, "max": 2}
    file.write_text(json.dumps(content))
    table = CliRunner().invoke(app, ["plan", "digits", "--examples", "5000000", "-e", str(file)]).stdout
    all_workers, fewest = (line.split()[-1] for line in table.splitlines() if line[2:].startswith("spot  "))
    assert float(all_workers) > 0 and float(fewest) > 0


def test_a_rate_of_preemption_needs_a_list(tmp_path: Path) -> None:
    for name in (str(environment(tmp_path, "spot")), "local"):
        refused = CliRunner().invoke(app, ["plan", "digits", "-e", name, "--preemption-rate", "0.1"])
        assert isinstance(refused.exception, ConfigurationError)
        assert "--preemption-rate needs a list of pools, and placement.train is not a list." in str(refused.exception)
