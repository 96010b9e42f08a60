"""Trainings whose batches input workers prepare: the very batches, whatever happens to a worker."""

from __future__ import annotations

import os
import queue
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gang_processes
import numpy as np
import pytest
import tensorflow as tf
import train_folders
from ports import free_port
from processes import descendants

from trainyard import events
from trainyard.contract import epochs
from trainyard.data.examples import ExampleFolder
from trainyard.errors import ExitCode, TransientError
from trainyard.process.child_process import start_time
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.input.micro_batches import LocalReplicas
from trainyard.steps.train.input.service import client
from trainyard.steps.train.input.service.client import InputService, InputWorker, Turn, in_turn
from trainyard.steps.train.peers.channel import SILENCE_SECONDS, MessageStream

pytestmark = pytest.mark.usefixtures("warm_processes")

WORKERS = 2
TOKEN = "known"
EPOCHS = 15
INTERVAL = 5  # steps between two checkpoints, at most
# Images that are decoded as they are, moved as a batch, and cut from what is decoded, each on its own.
CHANGES: list[dict[str, Any]] = [{}, {"shift": 0.1, "rotate": 10, "contrast": 0.2}, {"crop": {"scale": [0.3, 1]}}]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("service") / "examples", limit=150, shards=3)


@pytest.fixture(scope="module")
def service(examples: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InputService]:
    """Two input workers, each the program that a pod runs; the second is met by IPv6 where this machine has it."""
    hosts = ["127.0.0.1", gang_processes.IPV6]
    addresses = [f"{host}:{free_port()}" for host in hosts]
    output = str(tmp_path_factory.mktemp("output") / "trained")
    programs = [gang_processes.input_worker(examples, output, number, ",".join(addresses)) for number in range(WORKERS)]
    yield InputService.connect(addresses, TOKEN, 120)
    for program in programs:
        program.kill()
        program.wait()


@pytest.mark.parametrize("changes", CHANGES, ids=["plain", "each-changed", "cut"])
@pytest.mark.parametrize("memory_bytes", [epochs.MEMORY_BYTES, 0], ids=["in-memory", "streamed"])
def test_input_workers_give_the_very_batches_that_the_training_itself_makes(
    memory_bytes: int, changes: dict[str, Any], examples: str, service: InputService
) -> None:
    # Micro-batch 6 is the first, so the other worker begins; worker 1 of a gang, which has two devices.
    replicas, start = LocalReplicas(total=4, first=2, count=2), 3
    alone = Input(recipe(changes), ExampleFolder(examples), None, replicas, memory_bytes=memory_bytes)
    served = Input(recipe(changes), ExampleFolder(examples), None, replicas, None, memory_bytes, service)
    expected, batches = list(alone.train(start)), list(served.train(start))
    assert len(batches) == len(expected) > 20
    for both in zip(batches, expected, strict=True):
        for ours, theirs in zip(*map(tf.nest.flatten, both), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_a_data_set_that_is_read_again_begins_anew(examples: str, service: InputService) -> None:
    data = Input(recipe({}), ExampleFolder(examples), None, service=service).train(0)
    first, again = (next(iter(data))[1].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_a_micro_batch_out_of_its_turn_ends_the_training() -> None:
    part = tf.data.Dataset.range(0, 8, 2).map(lambda number: (number, number))
    other = tf.data.Dataset.range(1, 9, 2).map(lambda number: (number, number))
    assert [int(number) for number in in_turn([part, other], 0, 8, 1)] == list(range(8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="micro-batch of another number"):
        list(in_turn([part, other.skip(1)], 0, 8, 1))


def test_a_frozen_or_killed_input_worker_costs_at_most_one_checkpoint_interval_and_no_batch(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = gang_processes.train_here(tmp_path / "alone", examples, epochs=EPOCHS)
    monkeypatch.setenv("http_proxy", gang_processes.NOBODY)
    served = gang_processes.start(tmp_path / "served", examples, 1, epochs=EPOCHS, input_workers=WORKERS)
    served.wait_for(lambda: served.step() >= 8)
    os.kill(served.events("input_process")[0]["process"], signal.SIGSTOP)
    served.wait_for(lambda: bool(served.events("recovered")), 240)  # of the 300 s that it waits for input workers
    gang_processes.kill(served.events("input_process")[1]["process"])
    served.finish()
    training = served.training
    for number, restart in enumerate(training.gang.restarts):
        assert f"train: input worker {number} of 2 (127.0.0.1:" in restart.reason and "is lost" in restart.reason
        assert restart.lost_steps <= INTERVAL
    warnings = [event["message"] for event in served.events("warning")]
    assert warnings == [
        "input worker 0 sent no heartbeat for 10 s, and was killed; it is started again.",
        "input worker 1 was killed (SIGKILL); it is started again.",
    ]
    assert len(training.gang.restarts) == 2 and training.steps == alone.training.steps
    assert (training.speed.input_workers, alone.training.speed.input_workers) == (WORKERS, 0)
    np.testing.assert_array_equal(served.weights(), alone.weights())
    assert not gang_processes.processes_of(tmp_path / "served")


def test_the_pod_of_a_frozen_input_worker_ends_with_a_code_that_the_job_replaces_it_for(
    examples: str, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    program = gang_processes.input_worker(examples, str(tmp_path / "trained"), 0, address)
    InputService.connect([address], TOKEN, 120)
    (process,) = descendants(program.pid)
    os.kill(process, signal.SIGSTOP)
    lines, _ = program.communicate(timeout=300)
    assert program.returncode == ExitCode.TRANSIENT and not start_time(process)
    assert (failure := events.failure(lines)) is not None
    assert failure.message == "train: input worker 0 sent no heartbeat for 10 s, and was killed."


@pytest.mark.parametrize("behind", [1, 2])
def test_an_input_worker_whose_port_another_program_took_is_started_again(
    behind: int, examples: str, tmp_path: Path
) -> None:
    port = free_port()
    with socket.create_server(("", port + behind)):
        program = gang_processes.input_worker(examples, str(tmp_path / "trained"), 0, f"127.0.0.1:{port}")
        lines, _ = program.communicate(timeout=300)
    assert program.returncode == ExitCode.TRANSIENT
    assert (failure := events.failure(lines)) is not None
    assert f"could not listen on the ports {port + 1} and {port + 2}" in failure.message


def test_an_input_worker_that_never_comes_is_named_at_the_deadline() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(TransientError, match=rf"train: is waiting for input worker 0 of 1 \({address}: .*refused"):
        InputService.connect([address], TOKEN, 0.5)


def test_an_input_worker_that_sends_no_heartbeat_is_taken_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    stream = MessageStream(ours)
    lines: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(client, "end_with", lambda error: lines.put(str(error)))
    with theirs, InputService([InputWorker(Turn(1, 3), "feed-1:2222", "", "", "", False, 0, stream)]).errors():
        theirs.sendall(b'{"type": "beat"}\n')
        time.sleep(1)  # twice what a turn takes
        assert lines.empty()
        stream.last_received -= SILENCE_SECONDS
        assert lines.get(timeout=60).startswith(
            "train: input worker 1 of 3 (feed-1:2222) is lost: it sends no heartbeat"
        )
    stream.close()


def recipe(changes: dict[str, Any]) -> Recipe:
    train = {"epochs": 3, "batch_size": 16, "accumulation_steps": 2, "augment": changes}
    data = {"format": "image_folder", "bundled": "digits", "channels": 1}
    return Recipe.model_validate(
        {"name": "digits", "seed": 5, "data": data, "model": {"name": "cnn_small"}, "train": train}
    )
