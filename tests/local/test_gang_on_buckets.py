"""A gang whose examples, checkpoints and output are in a bucket, and whose processes are killed."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gang_processes
import numpy as np
import pytest
import train_folders
from gang_processes import Gang, start, train_together
from object_stores import Request, Store
from ports import free_port

from trainyard import events
from trainyard.steps.train.loop.checkpoint import CheckpointFolder

pytestmark = pytest.mark.usefixtures("warm_processes")

EPOCHS = 3  # the chief is killed before the last checkpoint of them, also by a slow test
INTERVAL = 20  # steps; a checkpoint is begun after every half of it, and at an epoch's end
SECONDS = 300  # generous: other work goes on beside it


@pytest.mark.parametrize("served", ["gs"], indirect=True)  # S3 in tests/cluster/test_train_step_bucket.py
def test_a_gang_in_a_bucket_loses_at_most_an_interval_by_a_kill_also_while_a_checkpoint_is_written(
    store: Store, tmp_path: Path
) -> None:
    root = f"{store.uri}/{secrets.token_hex(4)}"
    examples = train_folders.digits(f"{root}/examples")
    settings = {"epochs": EPOCHS, "every_steps": INTERVAL}
    folder = gang_processes.write_recipe(tmp_path / "unkilled", 2, **settings)
    (unkilled,) = train_together([folder], examples, 2)

    gang = start(tmp_path / "killed", examples, 2, root=f"{root}/killed", **settings)
    gang.wait_for(lambda: gang.step() >= 15, SECONDS)
    gang_processes.kill(gang.training_process(1))
    gang.wait_for(lambda: bool(gang.events("recovered")), SECONDS)
    kill_chief_in_a_write(gang, store)
    gang.finish(seconds=SECONDS)

    training = gang.training
    assert [restart.reason.partition("'")[0] for restart in training.gang.restarts] == ["worker 1", "worker 0"]
    assert all(0 <= restart.lost_steps <= INTERVAL for restart in training.gang.restarts)
    assert training.gang.restarts[1].lost_steps > INTERVAL // 2  # steps were taken while the checkpoint was written
    assert training.steps == unkilled.training.steps
    np.testing.assert_array_equal(gang.weights(), unkilled.weights())
    assert not gang_processes.processes_of(tmp_path)


@pytest.mark.parametrize("served", ["gs"], indirect=True)
def test_pods_fetch_the_examples_that_they_train_on(store: Store, tmp_path: Path) -> None:
    examples = train_folders.digits(f"{store.uri}/{secrets.token_hex(4)}/examples", limit=120, shards=2)
    gang_processes.write_recipe(tmp_path, workers=2, epochs=1)
    ports = [free_port(), free_port()]
    pods = [
        gang_processes.supervisor(tmp_path, examples, worker, ports, TRAINYARD_CACHE=str(tmp_path / str(worker)))
        for worker in (0, 1)
    ]
    for pod in pods:
        pod.finish(seconds=SECONDS)
    # Small splits are held whole in each worker's memory: the document and two shards of both, none of the test split.
    assert [event["files"] for event in pods[0].events("fetched") if event["uri"] == examples] == [5, 5]


@pytest.mark.parametrize("served", ["gs"], indirect=True)
def test_an_input_worker_fetches_the_training_split_anew_if_its_copy_is_damaged_and_what_trains_the_rest(
    store: Store, tmp_path: Path
) -> None:
    examples = train_folders.digits(f"{store.uri}/{secrets.token_hex(4)}/examples", limit=120, shards=2)
    gang_processes.write_recipe(tmp_path, workers=1, epochs=1)
    address, output = f"127.0.0.1:{free_port()}", f"{tmp_path}/output"
    worker = gang_processes.input_worker(examples, output, 0, address, TRAINYARD_CACHE=str(tmp_path / "worker"))
    assert worker.stdout
    begun = ""
    while not (serving := events.last(begun, "input_worker")):
        line = worker.stdout.readline()
        assert line, begun
        begun += line
    shard = next(Path(serving["examples"]).rglob("*train-00001*"))
    shard.write_bytes(bytes(shard.stat().st_size))
    own = {"TRAINYARD_CACHE": str(tmp_path / "trains"), "TRAINYARD_INPUT_WORKERS": address}
    trains = gang_processes.supervisor(tmp_path, examples, 0, [free_port()], **own)
    trains.finish(seconds=SECONDS)
    # It ends by itself, for the output is committed.
    printed, _ = worker.communicate(timeout=SECONDS)
    assert worker.returncode == 0
    fetched = [json.loads(line) for line in (begun + printed).splitlines() if '"fetched"' in line]
    # The document, and two shards of a split; again, as soon as the training has read the damaged one.
    assert [event["files"] for event in fetched] == [3, 3]
    (restart,) = trains.training.gang.restarts
    assert restart.reason.startswith(f"train: input worker 0 of 1 ({address}): its copy of the examples is damaged (")
    assert [event["files"] for event in trains.events("fetched") if event["uri"] == examples] == [3]
    assert trains.training.speed.input_workers == 1


def kill_chief_in_a_write(gang: Gang, store: Store) -> None:
    """Let nothing more be written until the gang has taken all the steps that it takes, then kill its chief."""
    checkpoints = CheckpointFolder(f"{gang.root}/checkpoints", "", keep=3, writes=False)
    stopped = False
    while not stopped:
        wait_for_a_step(gang)
        with write_pause(store):
            gang.wait_for(lambda: stands_still(gang), SECONDS)
            # But for one whose manifest was written before, and only the answer to a later request is held.
            stopped = gang.step() > checkpoints.steps()[-1] + INTERVAL // 2
            if stopped:
                gang_processes.kill(gang.training_process(0))


def wait_for_a_step(gang: Gang) -> None:
    begun = gang.step()
    gang.wait_for(lambda: gang.step() > begun, SECONDS)


def stands_still(gang: Gang) -> bool:
    step = gang.step()
    time.sleep(3)
    return gang.step() == step


@contextmanager
def write_pause(store: Store) -> Iterator[None]:
    """Let no write reach the store while the block runs; its end breaks off those that wait."""
    over = threading.Event()

    def hold(request: Request) -> bool:
        if request.method in ("GET", "HEAD"):
            return False
        over.wait(60)
        return True

    store.before = hold
    try:
        yield
    finally:
        store.before = lambda request: None
        over.set()
