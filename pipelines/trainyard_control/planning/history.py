"""What an environment's storage remembers of earlier runs, asked for no longer than a plan may take."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import TrainyardError
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.planning import data, records
from trainyard_control.planning.learning import Observation

BUCKET_SECONDS = 1.2  # chosen: a plan answers within two seconds, whatever a bucket does


@dataclass
class History:
    """The runs that the storage tells of, and the recipe's last preprocessing. warning: why that may not be all."""

    observations: list[Observation] = field(default_factory=list)
    examples: Examples | None = None
    warning: str = ""


def read_history(environment: Environment, recipe: Recipe) -> History:
    """Return what the environment's storage remembers; of a bucket, what it answers within BUCKET_SECONDS."""
    history, root = History(), environment.storage
    if "://" not in root:
        _read(environment, recipe, history)
        return history
    # A daemon, so that a bucket that does not answer keeps nobody from leaving.
    reader = threading.Thread(target=_read, args=(environment, recipe, history), daemon=True)
    reader.start()
    reader.join(BUCKET_SECONDS)
    if reader.is_alive():
        history.warning = f"{root} did not tell all of its runs in {BUCKET_SECONDS:g} s"
    return history


def _read(environment: Environment, recipe: Recipe, history: History) -> None:
    try:
        history.examples = data.last_preprocessed(recipe, environment.storage)
        for observation in records.observations(environment.storage, one_machine=environment.target == "local"):
            # XLA changes a speed on a CPU by several times, either way.
            if observation.xla == recipe.train.xla:
                history.observations.append(observation)
    except TrainyardError as error:
        history.warning = str(error)
