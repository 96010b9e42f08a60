"""A gang that JAX trains survives what one that TensorFlow trains survives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import gang_processes
import numpy as np
import pytest
from gang_processes import Gang, start

pytestmark = pytest.mark.usefixtures("jax_template", "warm_processes")

JAX = {"TRAINYARD_ENGINE": "jax"}
EPOCHS = 15  # 8 steps each
INTERVAL = 5  # steps that may be lost; a checkpoint is begun every second step


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return gang_processes.examples(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory, examples: str) -> Gang:
    gang = start(tmp_path_factory.mktemp("unkilled"), examples, 2, epochs=EPOCHS, **JAX)
    gang.finish()
    assert gang.training.restarts == []
    return gang


def test_a_stopped_and_a_killed_gang_of_jax_go_on_and_a_killed_process_costs_at_most_one_checkpoint_interval(
    tmp_path: Path, examples: str, unkilled: Gang
) -> None:
    gang = start(tmp_path, examples, 2, epochs=EPOCHS, **JAX)
    gang.wait_for(lambda: gang.step() >= 16)
    gang.process.send_signal(signal.SIGTERM)
    gang.finish(code=143)
    saved = gang.events("saved")[-1]["step"]
    assert saved >= gang.step() and not gang_processes.processes_of(tmp_path)

    gang = gang_processes.resume(tmp_path, examples, **JAX)
    gang.wait_for(lambda: gang.step() >= 40)
    for supervisor in gang.events("supervisor")[2:]:
        os.kill(supervisor["process"], signal.SIGKILL)
    gang_processes.kill(gang.process.pid)
    gang.finish(code=-signal.SIGKILL)

    gang = gang_processes.resume(tmp_path, examples, **JAX)
    for worker, step in ((1, 64), (0, 84)):
        gang.wait_for(lambda step=step: gang.step() >= step)  # type: ignore[misc]
        gang_processes.kill(gang.training_process(4 + worker))  # the log names the four supervisors before as well
    gang.finish()
    stopped, killed, *_ = (event["step"] for event in gang.events("resumed"))
    assert stopped == saved and killed >= 40 - INTERVAL
    for worker, restart in zip((1, 0), gang.training.restarts, strict=True):
        assert restart.lost_steps <= INTERVAL and f"worker {worker}'s training process" in restart.reason
    np.testing.assert_array_equal(gang.weights(), unkilled.weights())
    assert not gang_processes.processes_of(tmp_path)
