"""The train step: trains the recipe's model on preprocessed examples and saves the model of the best epoch."""

from __future__ import annotations

from pathlib import Path

from trainyard.contract.gang import ElasticGang, check_input_workers
from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.environment import MAX_INPUT_WORKERS
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.devices import check_devices
from trainyard.steps.train.engines import engine
from trainyard.steps.train.process import train_in_process


def run(
    recipe: Recipe,
    examples: str,
    checkpoints: str,
    output: Path,
    start: str = "",
    input_workers: str = "0",
    elastic: str = "",
) -> None:
    """Write model.keras, training.json and tensorboard/ to `output`; resume from `checkpoints` if there are any.

    start: folder or URI of a pushed version whose weights initialize the model; '' for none. input_workers: number of
    separate processes that prepare the batches; 0 if the training does. elastic: JSON text of an `ElasticGang`; '' for
    `train.workers`.

    Several workers run as local processes. So do JAX (a process has one engine, and this one may have loaded
    TensorFlow), a custom training program, and a training with input workers.
    """
    check_devices()
    if not input_workers.isdecimal() or int(input_workers) > MAX_INPUT_WORKERS:
        raise ConfigurationError(
            f"--input-workers: '{input_workers}' is not a number of processes. Give 0 to {MAX_INPUT_WORKERS}."
        )
    count = int(input_workers)
    check_input_workers(recipe, count)
    gang = documents.parse(elastic, ElasticGang, name="--elastic") if elastic else None
    alone = recipe.train.command is None and recipe.train.workers == 1 and not count and gang is None
    if alone and (recipe.model.name == TREES or engine.engine_name() == "tensorflow"):
        train_in_process(recipe, examples, checkpoints, output, start=start)
        return
    from trainyard.steps.train.gang import local_gang

    local_gang.run(recipe, examples, checkpoints, output, start, count, gang)
