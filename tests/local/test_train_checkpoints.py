"""When a training saves that names no interval, and what it then saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gang_processes
import numpy as np
import pytest
import train_folders
from gang_processes import free_port

from trainyard.data.examples import open_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import session
from trainyard.steps.train.engines import engine
from trainyard.steps.train.engines.variable_names import SCALE

EPOCHS, EPOCH, HALF = 2, 233, 117  # 466 examples, two a step


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=600)


def test_a_checkpoint_halfway_is_left_out_where_it_costs_too_much_and_both_workers_agree(
    examples: str, tmp_path: Path
) -> None:
    ends = [EPOCH * epoch for epoch in range(EPOCHS + 1)]
    for cost in (0, 3):
        message, other = saved(tmp_path / str(cost), examples, cost)
        assert message == other
        halfway = [step for step in message if step not in ends]
        assert [step for step in message if step in ends] == ends
        assert {*halfway} <= {HALF, EPOCH + HALF} and bool(halfway) == (cost == 0)


def saved(folder: Path, examples: str, cost: int) -> list[list[int]]:
    """Return the steps that each of two workers saved at."""
    gang_processes.write_recipe(folder, 2, epochs=EPOCHS, every_steps="null")
    recipe = (folder / "recipe.yaml").read_text().replace("batch_size: 32", "batch_size: 2")
    (folder / "recipe.yaml").write_text(recipe)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    script, own = Path(__file__).with_name("checkpointing.py"), str(folder / "recipe.yaml")
    processes = []
    for index in range(2):
        (folder / str(index)).mkdir()
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, script, str(cost), own, examples, str(folder)],
                stdout=subprocess.PIPE,
                stderr=(folder / str(index) / "log").open("w"),
                text=True,
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
            )
        )
    try:
        return [[int(line) for line in iter(process.stdout.readline, "done\n")] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_what_a_checkpoint_took_of_the_state_stays_as_it_was_when_steps_follow(examples: str) -> None:
    folder = open_examples(examples)
    settings = {"name": "tiny", "data": {"format": "image_folder", "path": "/nowhere"}, "model": {"name": "cnn_small"}}
    trains = engine.create_engine()
    trains.join()
    data, steps = session.prepare(Recipe.model_validate(settings), folder, trains, (0.0, 1.0), "float32")
    batches = iter(steps.distributed(data.train(0)))
    steps.train(batches, 1, [0.0])
    taken = steps.arrays()
    before = {name: value.copy() for name, value in taken.items()}
    steps.train(batches, 3, [0.0])
    steps.loss_sum = 0.0
    now = steps.arrays()
    for name, value in taken.items():
        np.testing.assert_array_equal(value, before[name], name)
        assert not np.array_equal(value, now[name]) or value.dtype != np.float32 or name == SCALE, name
