"""A gang that JAX trains survives what one that TensorFlow trains survives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import gang_processes
import numpy as np
import pytest
from gang_processes import Gang, Trained, relative_difference, start
from ports import free_port

pytestmark = pytest.mark.usefixtures("jax_template", "warm_processes")

JAX = {"TRAINYARD_ENGINE": "jax"}
RECIPE = {"epochs": 16, "normalization": True, "clip_norm": 0.05, "select": "roc_auc"}  # 8 steps an epoch
ELASTIC = '{"counts": [1, 2], "replace_seconds": 10, "start_deadline_seconds": 300}'
TOLERANCE = 1e-5  # of losses and weights after 16 epochs of SGD in float32
INTERVAL = 5  # steps that may be lost; a checkpoint is begun every second step


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory, examples: str) -> Gang:
    """The chief of a gang of pods that met by IPv6 where this machine has it."""
    folder = gang_processes.write_recipe(tmp_path_factory.mktemp("unkilled"), workers=2, **RECIPE)
    ports = [free_port(), free_port()]
    gang, other = (
        gang_processes.supervisor(
            folder, examples, worker, ports, host=gang_processes.IPV6, http_proxy=gang_processes.NOBODY, **JAX
        )
        for worker in (0, 1)
    )
    gang.finish()
    other.finish()
    assert gang.training.gang.restarts == []
    return gang


def test_two_workers_end_with_the_losses_and_weights_of_one(
    tmp_path: Path, examples: str, unkilled: Gang, train_with_jax: Callable[[Path, str], None]
) -> None:
    train_with_jax(gang_processes.write_recipe(tmp_path, 1, **RECIPE), examples)
    one, two = Trained(tmp_path).training, unkilled.training
    for training, workers in ((one, 1), (two, 2)):
        machine = training.machine
        assert (machine.engine, machine.hardware, machine.devices) == ("jax", "CPU", ["CPU:0"]) and machine.versions[
            "jax"
        ]
        assert (training.gang.workers, training.gang.replicas) == (workers, workers)
    losses = [[(e.train_loss, e.eval_loss, e.metric, e.selected) for e in run.history] for run in (two, one)]
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    assert relative_difference(unkilled, Trained(tmp_path)) < TOLERANCE
    averages = 2 * 8  # of the layer that normalizes
    assert two.gang.gradient_bytes == 4 * (one.parameters - averages) and two.speed.all_reduce_ms > 0


def test_a_stopped_and_a_killed_gang_of_jax_go_on_and_a_killed_process_costs_at_most_one_checkpoint_interval(
    tmp_path: Path, examples: str, unkilled: Gang
) -> None:
    gang = start(tmp_path, examples, 2, **RECIPE, **JAX)
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
