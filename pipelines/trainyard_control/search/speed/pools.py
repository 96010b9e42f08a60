"""What runs on the pools of a cluster have measured of a recipe's speed, from what they left in its storage."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.contract import keys
from trainyard.contract.artifacts.train import Training
from trainyard.contract.training.input_workers import usd_per_hour
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.search.speed.certificate import Certificate
from trainyard_control.search.speed.measuring import Setting, certificate_of, speed_of
from trainyard_control.search.speed.speed import Speed


def collect(recipe: Recipe, environment: Environment, runs: Mapping[str, str]) -> tuple[Certificate | None, list[str]]:
    """Return the certificate of what the runs have measured, None if nothing, and the pools that have not been.

    runs: their names by pool, with the first of which others are compared.

    Raises `TransientError` if a bucket cannot be reached.
    """
    results = {pool: result[1] for pool, run in runs.items() if (result := training_of(environment, recipe.name, run))}
    missing = [pool for pool in runs if pool not in results]
    if not results:
        return None, missing
    speeds = [_speed(recipe, environment, pool, training) for pool, training in results.items()]
    where = f"pools of {environment.name}"
    skipped = dict.fromkeys(missing, "It has not been measured yet.")
    return certificate_of(recipe.name, list(results.values()), where, speeds, skipped), missing


def training_of(environment: Environment, recipe: str, run: str) -> tuple[str, Training] | None:
    """Return the model's folder and the training of the run that was given this name, None if there is none yet."""
    folder = storage.join(environment.storage, recipe, "train")
    for name in storage.children(folder):
        output = storage.join(folder, name)
        if output.endswith(keys.labelled("", run)) and storage.committed(output) is not None:
            return output, Training.read(output)
    return None


def _speed(recipe: Recipe, environment: Environment, pool: str, training: Training) -> Speed:
    node, price = environment.pools[pool], usd_per_hour(environment, environment.pools[pool])
    hardware = training.hardware if training.replicas == 1 else f"{training.replicas} x {training.hardware}"
    chips = node.workers * (node.count or 1)
    return speed_of(Setting(pool, {}), recipe.train.batch_size, training, chips).model_copy(
        update={
            "pool": pool,
            "hardware": hardware,
            "dollars_per_hour": None if price is None else round(price, 4),
        }
    )
