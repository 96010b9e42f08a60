"""What happens to processes of a gang costs at most one checkpoint interval, never the result."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gang_processes
import numpy as np
import pytest
from gang_processes import Gang, Trained, parent, relative_difference, resume_here, start, supervisor, train_together
from ports import free_port
from tests.damage import flip

from trainyard.contract.artifacts.train import Restart
from trainyard.steps.train.loop.checkpoint import CheckpointFolder
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

EPOCHS = 14  # 8 steps each
ELASTIC = {"normalization": True, "epochs": 12}
INTERVAL = 5  # steps that may be lost; a checkpoint is begun every second step
RECOVERY_SECONDS = 120.0  # on a machine of any load: far less than the deadlines that a start has otherwise


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, examples: str) -> list[Trained]:
    """Two runs of two workers."""
    root = tmp_path_factory.mktemp("undisturbed")
    options: list[dict[str, Any]] = [{"epochs": EPOCHS}, ELASTIC]
    folders = [gang_processes.write_recipe(root / str(i), 2, **own) for i, own in enumerate(options)]
    return train_together(folders, examples, 2)


@pytest.fixture(scope="module")
def unkilled(undisturbed: list[Trained]) -> Trained:
    return undisturbed[0]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, examples: str) -> tuple[Gang, list[tuple[str, int]]]:
    """A gang that was told to stop, and address and port of each server that it had."""
    gang = start(tmp_path_factory.mktemp("stopped"), examples, 2, epochs=EPOCHS)
    gang.wait_for(lambda: gang.step() >= 16)
    servers = gang_processes.listening(gang.process.pid)
    signal_time = time.monotonic()
    gang.process.send_signal(signal.SIGTERM)
    gang.finish(code=143)
    assert time.monotonic() - signal_time < RECOVERY_SECONDS
    return gang, servers


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, examples: str) -> Gang:
    """The chief of a gang of pods whose worker 1 was told to stop, came back, and was frozen then.

    They meet by IPv6 where this machine has it.
    """
    folder = gang_processes.write_recipe(tmp_path_factory.mktemp("pods"), workers=2, epochs=EPOCHS)
    ports = [free_port(), free_port()]
    # As many threads a worker as a local gang gives: another number rounds the sums of a convolution otherwise.
    options = {"TF_NUM_INTRAOP_THREADS": str(max(1, (os.cpu_count() or 1) // 2)), "TRAINYARD_STALL_SECONDS": "8"}
    chief = supervisor(folder, examples, 0, ports, host=gang_processes.IPV6, **options)
    leaving = supervisor(folder, examples, 1, ports, host=gang_processes.IPV6, **options)
    chief.wait_for(lambda: chief.step() >= 16)
    leaving.process.send_signal(signal.SIGTERM)
    assert leaving.process.wait(RECOVERY_SECONDS) == 143
    again = supervisor(folder, examples, 1, ports, host=gang_processes.IPV6, **options)
    chief.wait_for_recovery(1, 32)
    os.kill(gang_processes.training_process(again.process.pid), signal.SIGSTOP)
    frozen = time.monotonic()
    chief.finish()
    again.finish()
    assert time.monotonic() - frozen < RECOVERY_SECONDS
    return chief


def test_each_killed_process_of_a_gang_costs_at_most_one_checkpoint_interval(
    tmp_path: Path, examples: str, unkilled: Trained
) -> None:
    """One gang loses one process after the other, each by SIGKILL, and a supervisor by SIGTERM at the end."""
    gang = start(tmp_path, examples, 2, epochs=EPOCHS)
    training = r"worker {}'s training process was killed"
    keeper = training.format(0) + ", or the process that waited for it"
    faults: list[tuple[str, Callable[[], list[int]]]] = [
        (training.format(1) + " by SIGKILL", lambda: [gang.training_process(1)]),
        (keeper, lambda: [parent(gang.training_process(0))]),
        (keeper, lambda: [parent(gang.training_process(0)), gang.training_process(0)]),
        (r"worker 1 is lost", lambda: [gang.events("supervisor")[1]["process"]]),
    ]
    # Soon one after the other: half of the training is left for the last, which may come late.
    for number, (_, processes) in enumerate(faults):
        gang.wait_for_recovery(number, 10 + 8 * number)
        for process in processes():
            gang_processes.kill(process)
    gang.wait_for_recovery(len(faults), 10 + 8 * len(faults))
    os.kill(gang.events("supervisor")[-1]["process"], signal.SIGTERM)
    gang.finish()
    *restarts, stop = gang.training.gang.restarts
    assert "got SIGTERM" in stop.reason and stop.lost_steps == 0
    assert len(restarts) == len(faults), gang.log[-3000:]
    for restart, (reason, _) in zip(restarts, faults, strict=True):
        assert_recovered(restart, reason)
    assert_equal_ends(gang, unkilled)


def test_a_bug_in_a_gang_is_not_taken_for_a_lost_worker(tmp_path: Path, examples: str) -> None:
    gang = gang_processes.start_broken(tmp_path, examples)
    gang.finish(code=50)
    assert gang.step() < 12 and len(gang.events("started_together")) == 1
    assert "no kernel for this" in gang.events("failed")[-1]["message"]


def test_a_local_gang_listens_on_the_loopback_interface_but_for_tensorflows_grpc(
    stopped: tuple[Gang, list[tuple[str, int]]],
) -> None:
    _, servers = stopped
    exposed = [port for address, port in servers if address != "127.0.0.1"]
    assert len(exposed) == 2 and len(servers) > 2, servers  # one a worker
    # ports of the meeting and of the ring are the one before, and the one behind
    assert not {port for address, port in servers if address == "127.0.0.1"} & set(exposed)


def test_a_run_told_to_stop_saves_its_last_step_and_goes_on_with_one_worker(
    tmp_path: Path, examples: str, stopped: tuple[Gang, list[tuple[str, int]]], unkilled: Trained
) -> None:
    gang, _ = stopped
    assert not (gang.folder / "output").exists() and not gang_processes.processes_of(gang.folder)
    saved = gang.events("saved")[-1]["step"]
    assert saved >= gang.step()

    shutil.copytree(gang.folder, tmp_path, dirs_exist_ok=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("workers: 2", "workers: 1"))
    alone = resume_here(tmp_path, examples)
    assert alone.training.start.resumed_from == saved
    assert relative_difference(alone, unkilled) < 1e-5


def test_a_corrupt_newest_checkpoint_costs_one_interval_and_not_the_result(
    tmp_path: Path, examples: str, stopped: tuple[Gang, list[tuple[str, int]]], unkilled: Trained
) -> None:
    shutil.copytree(stopped[0].folder, tmp_path, dirs_exist_ok=True)
    *_, before, newest = CheckpointFolder(str(tmp_path / "checkpoints"), "", keep=3, writes=False).steps()
    flip(tmp_path / "checkpoints" / f"ckpt-{newest}" / "state.npz")

    gang = gang_processes.resume(tmp_path, examples)
    gang.finish()
    assert any(f"ckpt-{newest}: skipped" in event["message"] for event in gang.events("warning"))
    assert gang.training.start.resumed_from == before and newest - before <= INTERVAL
    assert gang.training.gang.restarts == []
    assert_equal_ends(gang, unkilled)


def test_a_worker_told_to_stop_saves_and_the_others_wait_for_its_return(pods: Gang, unkilled: Trained) -> None:
    restart = pods.training.gang.restarts[0]
    assert restart.lost_steps == 0 and "got SIGTERM" in restart.reason
    np.testing.assert_array_equal(pods.weights(), unkilled.weights())


def test_a_frozen_worker_is_found_and_replaced(pods: Gang, unkilled: Trained) -> None:
    _, restart = pods.training.gang.restarts
    assert_recovered(restart, r"made no progress for 8 s|lost another worker")
    assert_equal_ends(pods, unkilled)


def test_a_gang_that_nobody_waits_for_ends(tmp_path: Path, examples: str) -> None:
    gang_processes.write_recipe(tmp_path, workers=2, epochs=400)
    ports = [free_port(), free_port()]
    sign = tmp_path / "launcher"
    watched = {"TRAINYARD_LAUNCHER_SIGN": str(sign), "TRAINYARD_LAUNCHER_PATIENCE_SECONDS": "6"}
    there = threading.Event()

    def renew() -> None:
        while not there.wait(0.1):
            sign.write_text(str(time.monotonic()))

    renewing = threading.Thread(target=renew)
    renewing.start()
    gangs = [supervisor(tmp_path, examples, worker, ports, **watched) for worker in (0, 1)]
    try:
        gangs[0].wait_for(lambda: gangs[0].step() >= 24)
        for gang in gangs:  # for the supervisors' patience, both cores would be busy
            os.kill(gang_processes.training_process(gang.process.pid), signal.SIGSTOP)
    finally:
        there.set()
        renewing.join()
    for gang in gangs:
        gang.finish(code=130, seconds=RECOVERY_SECONDS)
    assert time.monotonic() - float(sign.read_text()) > 6
    assert "the gang's launcher is gone" in gangs[0].events("failed")[0]["message"]


def test_an_elastic_gang_goes_on_with_two_of_four_and_takes_them_in_again_without_a_trace_in_the_losses(
    tmp_path: Path, examples: str, undisturbed: list[Trained]
) -> None:
    """Workers 0 and 3 are killed, and as long as their launcher has room for no more than two, worker 2 makes room.

    An input worker prepares the batches.
    """
    elastic = '{"counts": [1, 2, 4], "replace_seconds": 2, "start_deadline_seconds": 300}'
    options: dict[str, Any] = {"elastic": elastic, "input_workers": 1, "http_proxy": gang_processes.NOBODY, **ELASTIC}
    gang = start(tmp_path, examples, 1, **options)
    gang.wait_for_team(4)
    gang.wait_for(lambda: gang.step() >= 24)
    # A program takes five descriptors to start, and one while it runs.
    with gang.descriptors(2):
        for worker in (0, 3):
            gang_processes.kill(gang.events("supervisor")[worker]["process"])
        lost = time.monotonic()
        gang.wait_for_team(2)
    gang.wait_for(lambda: any(event["workers"] == 2 for event in gang.events("workers")))
    assert time.monotonic() - lost < RECOVERY_SECONDS
    gang.finish()

    training, expected = gang.training, undisturbed[1].training
    timeline = [(count.workers, count.maximum, count.step) for count in training.gang.worker_counts]
    loss, growth = training.gang.restarts[-2:]
    assert timeline[-2:] == [(2, 4, loss.resumed_at), (4, 4, growth.resumed_at)], gang.log[-3000:]
    assert timeline[-3][:2] == (4, 4)
    assert_recovered(loss, "worker 0 was lost, and started again")
    assert loss.step >= 24 and "worker 2: gives its place to worker 0" in gang.log
    assert (
        growth.reason == "workers 2, 3 are there again: training continues with 4 of 4 workers"
        and growth.lost_steps == 0
    )
    assert "training runs with 2 of 4 workers: workers 2, 3 are not there" in gang.log
    curves = [
        [(epoch.step, epoch.train_loss, epoch.eval_loss, epoch.metric) for epoch in run.history]
        for run in (training, expected)
    ]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)
    assert (training.gang.workers, training.speed.input_workers, training.steps) == (4, 1, expected.steps)
    assert training.goodput and 0 < training.goodput.share < 1
    assert storage.committed(str(tmp_path / "output")) is not None and not gang_processes.processes_of(tmp_path)


def test_a_worker_that_stands_still_for_most_of_the_time_is_named_with_its_node(tmp_path: Path, examples: str) -> None:
    gang = start(tmp_path, examples, 2, epochs=4000)
    gang.wait_for(lambda: gang.step() >= 24)
    slowed, over = gang.training_process(1), threading.Event()

    def slow() -> None:
        # Within a call, of a quarter of a second: what some calls alone are slow by is sure after a minute only.
        while not over.wait(0.06):
            os.kill(slowed, signal.SIGSTOP)
            over.wait(0.14)
            os.kill(slowed, signal.SIGCONT)

    slowing = threading.Thread(target=slow)
    slowing.start()
    try:
        gang.wait_for(lambda: any(event["worker"] == 1 for event in gang.events("straggler")), seconds=480)
    finally:
        over.set()
        slowing.join()
        gang.process.send_signal(signal.SIGTERM)
    gang.finish(code=143)
    found = next(event for event in gang.events("straggler") if event["worker"] == 1)
    assert found["node"] == socket.gethostname()
    assert found["own_ms"] > 1.25 * found["others_ms"]


def test_a_wrong_model_ends_the_whole_gang_at_once(tmp_path: Path, examples: str) -> None:
    gang_processes.write_recipe(tmp_path, workers=2, epochs=1)
    module = tmp_path / "own.py"
    module.write_text(module.read_text().replace("Dense(outputs)", "Dense(outputs + 1)"))
    gang = gang_processes.resume(tmp_path, examples)
    gang.finish(code=20)
    assert not gang.events("restarting")
    assert "build_model's model maps image to (None, 11)" in gang.events("failed")[-1]["message"]


def assert_recovered(restart: Restart, reason: str) -> None:
    assert re.search(reason, restart.reason), restart.reason
    assert restart.lost_steps <= INTERVAL and restart.resumed_at % 2 == 0
    assert restart.seconds < RECOVERY_SECONDS


def assert_equal_ends(gang: Gang, unkilled: Trained) -> None:
    assert gang.training.steps == unkilled.training.steps
    np.testing.assert_array_equal(gang.weights(), unkilled.weights())
    assert storage.committed(str(gang.folder / "output")) is not None
    assert not gang_processes.processes_of(gang.folder)
