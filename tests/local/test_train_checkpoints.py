"""When a training saves that names no interval, and what it then saves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gang_processes
import numpy as np
import pytest
import train_folders
from ports import free_port

from trainyard.data.examples import open_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import session
from trainyard.steps.train.engines import engine
from trainyard.steps.train.engines.steps import SCALE

pytestmark = pytest.mark.usefixtures("warm_processes")

EPOCHS, EPOCH, BATCH = 2, 117, 4  # 466 examples
COSTS = ("0", "1.5")  # seconds of CPU for a checkpoint


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=600)


def test_a_checkpoint_within_an_epoch_is_left_out_where_it_costs_too_much_and_both_workers_agree(
    examples: str, tmp_path: Path
) -> None:
    for cost in COSTS:
        gang_processes.write_recipe(tmp_path / cost, 2, epochs=EPOCHS, every_steps="null")
        recipe = tmp_path / cost / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("batch_size: 32", f"batch_size: {BATCH}"))
    script = Path(__file__).with_name("checkpointing.py")
    folders = [tmp_path / cost for cost in COSTS]
    subprocess.run(
        [sys.executable, script, f"{free_port()},{free_port()}", examples, *folders], check=True, timeout=300
    )
    ends = [EPOCH * epoch for epoch in range(EPOCHS + 1)]
    for cost in COSTS:
        message, other = ([int(step) for step in (tmp_path / cost / worker).read_text().split()] for worker in "01")
        assert message == other
        between = [step for step in message if step not in ends]
        assert [step for step in message if step in ends] == ends
        assert bool(between) == (cost == "0")


def test_what_a_checkpoint_took_of_the_state_stays_as_it_was_when_steps_follow(examples: str) -> None:
    folder = open_examples(examples)
    settings = {"name": "tiny", "data": {"format": "image_folder", "path": "/nowhere"}, "model": {"name": "cnn_small"}}
    trains = engine.create_engine()
    trains.join()
    data, steps = session.prepare(Recipe.model_validate(settings), folder, trains, (0.0, 1.0), "float32")
    batches = iter(steps.distributed(data.train(0)))
    steps.train(batches, 1, [0.0])
    snapshot = steps.arrays()
    before = {name: value.copy() for name, value in snapshot.items()}
    steps.train(batches, 3, [0.0])
    steps.loss_sum = 0.0
    now = steps.arrays()
    for name, value in snapshot.items():
        np.testing.assert_array_equal(value, before[name], name)
        assert not np.array_equal(value, now[name]) or value.dtype != np.float32 or name == SCALE, name
