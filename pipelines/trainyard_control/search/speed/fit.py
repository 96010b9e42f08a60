"""Whether a recipe's batch fits the memory of what shall be measured, before anything starts."""

from __future__ import annotations

from trainyard import memory
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.planning import cost, data, sites
from trainyard_control.planning.roofline import needed_bytes

_GIB = 1 << 30


def require_memory(recipe: Recipe, environment: Environment, pool: str | None = None) -> None:
    """Raise `ConfigurationError` if a step needs more memory than a device of `pool` has, by default of this machine.

    Nothing is raised if the sizes are not known yet, such as of pictures that nothing has read.
    """
    try:
        site = sites.here(recipe) if pool is None else sites.of_pool(recipe, environment, environment.pools[pool])
    except ConfigurationError:  # the catalog has no figures of it
        return
    most = memory.usable_bytes() if pool is None and site.cpu else site.memory_bytes
    if most is None:
        return
    try:
        root = environment.storage
        document = None if storage.is_bucket(root) else data.last_preprocessed(recipe, root)  # a bucket may not answer
        work = cost.of_recipe(recipe, data.find(recipe, document, 1))  # how many examples there are does not matter
    except TrainyardError:
        return
    train = recipe.train
    # The workers of a gang on this machine share its memory.
    needed = (site.workers if site.cpu and pool is None else 1) * needed_bytes(
        work, train.batch_size, site, train.accumulation_steps
    )
    if needed > most:
        where = f"pool '{pool}'" if pool else "this machine"
        raise ConfigurationError(
            f"{recipe.name}: train.batch_size {train.batch_size:,} needs at least {needed / _GIB:,.1f} GiB of memory, "
            f"and {where} has {most / _GIB:,.1f} GiB. Give fewer examples, or split it by train.accumulation_steps."
        )
