"""A gang that JAX trains survives what one that TensorFlow trains survives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import gang_processes
import numpy as np
import pytest
from gang_processes import Gang, start
from ports import free_port

pytestmark = pytest.mark.usefixtures("jax_template", "warm_processes")

JAX = {"TRAINYARD_ENGINE": "jax"}
EPOCHS = 16  # 8 steps each
ELASTIC = '{"counts": [1, 2], "replace_seconds": 10, "start_deadline_seconds": 300}'
INTERVAL = 5  # steps that may be lost; a checkpoint is begun every second step


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return gang_processes.examples(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory, examples: str) -> Gang:
    """The chief of a gang of pods that met by IPv6 where this machine has it."""
    folder = gang_processes.write_recipe(tmp_path_factory.mktemp("unkilled"), workers=2, epochs=EPOCHS)
    ports = [free_port(), free_port()]
    gang, other = (
        gang_processes.supervisor(folder, examples, worker, ports, host=gang_processes.IPV6, **JAX) for worker in (0, 1)
    )
    gang.finish()
    other.finish()
    assert gang.training.gang.restarts == []
    return gang


def test_a_stopped_and_a_killed_gang_of_jax_go_on_and_a_killed_process_costs_at_most_one_checkpoint_interval(
    tmp_path: Path, examples: str, unkilled: Gang
) -> None:
    gang = start(tmp_path, examples, 2, epochs=EPOCHS, **JAX)
    gang.wait_for(lambda: gang.step() >= 8)
    gang.process.send_signal(signal.SIGTERM)
    gang.finish(code=143)
    saved = gang.events("saved")[-1]["step"]
    assert saved >= gang.step() and not gang_processes.processes_of(tmp_path)

    gang = gang_processes.resume(tmp_path, examples, **JAX)
    gang.wait_for(lambda: len(gang.events("resumed")) >= 1 and gang.step() >= 24)
    for supervisor in gang.events("supervisor")[2:]:
        os.kill(supervisor["process"], signal.SIGKILL)
    gang_processes.kill(gang.process.pid)
    gang.finish(code=-signal.SIGKILL)

    gang = gang_processes.resume(tmp_path, examples, elastic=ELASTIC, **JAX)
    gang.wait_for(lambda: len(gang.events("resumed")) >= 2 and gang.step() >= 40)
    gang_processes.kill(gang.training_process(4))  # the log names the four supervisors before as well
    gang.wait_for_recovery(1, 52)
    with gang.descriptors(0):
        gang_processes.kill(gang.events("supervisor")[-1]["process"])
        gang.wait_for(lambda: gang.events("started_together")[-1]["workers"] == 1)
    gang.finish()
    stopped, killed, *_ = (event["step"] for event in gang.events("resumed"))
    assert stopped == saved and killed >= 24 - INTERVAL
    training = gang.training
    reasons = ("worker 0's training process", "worker 1 is lost", "worker 1 is there again")
    for reason, restart in zip(reasons, training.gang.restarts, strict=True):
        assert restart.lost_steps <= INTERVAL and reason in restart.reason
    assert [count.workers for count in training.gang.worker_counts] == [2, 1, 2]
    losses, expected = (
        [(epoch.train_loss, epoch.eval_loss) for epoch in run.history] for run in (training, unkilled.training)
    )
    with_two = training.gang.worker_counts[1].step // 8
    assert losses[:with_two] == expected[:with_two] and with_two >= 5
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert not gang_processes.processes_of(tmp_path)


def test_a_bug_in_a_gang_of_jax_is_not_taken_for_a_lost_worker(tmp_path: Path, examples: str) -> None:
    # The second worker comes 45 s after the first to what they compute together: Gloo waits 30 s for a connection.
    gang = gang_processes.start_broken(tmp_path, examples, seconds_apart=45, **JAX)
    gang.finish(code=50)
    assert gang.step() < 12 and len(gang.events("started_together")) == 1
    assert "no kernel for this" in gang.events("failed")[-1]["message"]
