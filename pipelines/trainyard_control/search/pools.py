"""The pools of a cluster beside each other: how fast and for how much a recipe trains on each, as measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.contract import keys
from trainyard.contract.artifacts.train import Training
from trainyard.spec.hardware import machines
from trainyard.storage import storage

if TYPE_CHECKING:
    from trainyard.spec.environment import Environment
    from trainyard.spec.recipe import Recipe
    from trainyard_control.search.certificate import Certificate, Speed


@dataclass(frozen=True)
class Measured:
    """certificate: of the pools that have been measured, None if none has. missing: the others."""

    certificate: Certificate | None
    missing: list[str]


def collect(recipe: Recipe, environment: Environment, runs: Mapping[str, str]) -> Measured:
    """Return what the runs have measured; `runs` are their names by pool, the first of which others are held against.

    Raises `TransientError` if a bucket cannot be reached.
    """
    from trainyard_control.search import certificate

    found = {pool: training for pool, run in runs.items() if (training := _training(recipe, environment, run))}
    missing = [pool for pool in runs if pool not in found]
    if not found:
        return Measured(None, missing)
    speeds = [_speed(recipe, environment, pool, training) for pool, training in found.items()]
    where = f"pools of {environment.name}"
    left_out = dict.fromkeys(missing, "It has not been measured yet.")
    return Measured(certificate.certificate_of(recipe.name, list(found.values()), where, speeds, left_out), missing)


def _training(recipe: Recipe, environment: Environment, run: str) -> Training | None:
    """Return the training of the run that was given this name, None if it is not there."""
    folder = storage.join(environment.storage, recipe.name, "train")
    for name in storage.children(folder):
        output = storage.join(folder, name)
        if name.endswith(keys.labelled("", run)) and storage.committed(output) is not None:
            return Training.read(output)
    return None


def _speed(recipe: Recipe, environment: Environment, pool: str, training: Training) -> Speed:
    from trainyard_control.search.certificate import Setting, speed_of

    node, price = environment.pools[pool], machines.price(environment.pools[pool], environment.platform)
    hardware = training.hardware if training.replicas == 1 else f"{training.replicas} x {training.hardware}"
    return speed_of(Setting(pool, {}), recipe.train.batch_size, training).model_copy(
        update={
            "pool": pool,
            "hardware": hardware,
            "dollars_per_hour": None if price is None else round(node.workers * price.usd_per_hour, 4),
        }
    )


def table(speeds: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the page's table."""
    base = speeds[0].examples_per_second
    rows = [
        [
            speed.pool,
            speed.hardware,
            f"{speed.workers}",
            f"{speed.examples_per_second:,.0f}",
            f"{speed.examples_per_second / base:.2f}",
            "–" if speed.dollars_per_hour is None else f"{speed.dollars_per_hour:,.2f}",
            "–" if speed.examples_per_dollar is None else f"{speed.examples_per_dollar:,.0f}",
            *(f"{speed.step_split_ms.get(part, 0.0):.1f}" for part in ("compute", "all_reduce", "input")),
        ]
        for speed in speeds
    ]
    head = ["pool", "devices", "workers", "examples/s", "×", "$/h", "examples/$"]
    return [*head, "of a step: computation, ms", "sum of gradients, ms", "input, ms"], rows


def sentences(speeds: Sequence[Speed]) -> list[str]:
    """Return how the other pools compare with the first, by speed and by money."""
    base, said = speeds[0], []
    for speed in speeds[1:]:
        times = speed.examples_per_second / base.examples_per_second
        money = ""
        if speed.examples_per_dollar and base.examples_per_dollar:
            money = f", and {speed.examples_per_dollar / base.examples_per_dollar:.2f} times as many examples a dollar"
        said.append(f"{speed.pool} ({speed.hardware}) trains {times:.2f} times as fast as {base.pool}{money}.")
    return said
