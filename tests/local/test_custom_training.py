"""A program of the recipe's own trains: the one of the how-to in a gang that is broken, and small ones that fail."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import gang_processes
import keras
import numpy as np
import pytest
import train_folders
from gang_processes import Gang
from object_stores import Store
from ports import free_port
from processes import descendants

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import ConfigurationError
from trainyard.process.child_process import start_time
from trainyard.spec import recipe as recipes
from trainyard.steps.train.custom_program.training import check_model, train_by_command
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "own-script.md"

RECIPE = """
name: own
data: {{format: image_folder, bundled: digits, channels: 1}}
train: {{command: [python, my_train.py{arguments}], workers: {workers}, epochs: 5}}
"""
ELASTIC = """
import json, os, pathlib, shutil, signal, socket, sys, time
import numpy as np
from regression import EPOCH, STEPS, batch, learn, squares

rank, workers, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
port, folder = int(os.environ["MASTER_PORT"]), pathlib.Path(os.environ["TRAINYARD_CHECKPOINTS"])
limit = pathlib.Path(sys.argv[1]).with_name("limit")
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
tell = lambda event, **fields: print(json.dumps({"event": event, **fields}), flush=True)

def connected():
    while True:
        try:
            return socket.create_connection((address, port))
        except OSError:
            time.sleep(0.05)

if rank == 0:
    server = socket.create_server((address, port))
    peers = [server.accept()[0].makefile("rwb") for _ in range(1, workers)]
else:
    peers = [connected().makefile("rwb")]

def send(peer, values):
    peer.write(values.tobytes())
    peer.flush()

def receive(peer, count):
    data = peer.read(8 * count)
    if len(data) < 8 * count:
        raise ConnectionError("another worker is gone")
    return np.frombuffer(data)

def summed(values):
    if rank:
        send(peers[0], values)
        return receive(peers[0], len(values))
    values = values + sum(receive(peer, len(values)) for peer in peers)
    for peer in peers:
        send(peer, values)
    return values

def save():
    np.savez(folder / "new.npz", step=step, weights=weights, loss=loss)
    (folder / "new.npz").rename(folder / "state.npz")

step, weights, loss = 0, np.zeros(5), 0.0
if (folder / "state.npz").exists():
    with np.load(folder / "state.npz") as state:
        step, weights, loss = int(state["step"]), state["weights"], float(state["loss"])
    tell("resumed", step=step)
while step < STEPS:
    while step >= int(limit.read_text() or 0) and not stopped:
        time.sleep(0.02)
    part = slice(rank * 32 // workers, (rank + 1) * 32 // workers)
    gradient, error, stop = np.split(summed(np.append(squares(weights, *batch(step), part), len(stopped))), [5, 6])
    weights, loss, step = learn(weights, gradient), loss + float(error[0]), step + 1
    if step % 10 == 0:
        tell("progress", done=step, total=STEPS)
    if step % EPOCH == 0:
        tell("epoch", epoch=step // EPOCH, step=step, train_loss=loss / EPOCH, eval_loss=0, metric=0)
        loss = 0.0
    if rank == 0 and (step % EPOCH == 0 or stop[0]):
        save()
    if stop[0]:
        sys.exit()
    time.sleep(0.01)
if rank == 0:
    output = os.environ["TRAINYARD_OUTPUT"]
    shutil.copy(sys.argv[1], output + "/model.keras")
    pathlib.Path(output, "weights.json").write_text(json.dumps([*weights]))
"""
REGRESSION = """
import numpy as np
STEPS, EPOCH = 900, 60
def batch(step):
    drawn = np.random.default_rng([3, step])
    rows = drawn.normal(size=(32, 5))
    return rows, rows @ np.arange(5) + drawn.normal(size=32)
def squares(weights, rows, targets, part):
    rest = rows[part] @ weights - targets[part]
    return np.append(2 * rows[part].T @ rest / 32, rest @ rest / 32)
def learn(weights, gradient):
    return weights - 0.003 * gradient
"""
STOPPED = """
import os, pathlib, signal, subprocess, sys, time
saved = pathlib.Path(os.environ["TRAINYARD_CHECKPOINTS"]) / "saved"
if saved.exists():
    raise LookupError("found " + saved.read_text())
def save(*_):
    saved.write_text("step 7")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
time.sleep(600)
"""
COUNTS = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["TRAINYARD_CHECKPOINTS"])
last = folder / "last"  # a link
def save(count):
    (folder / str(count)).mkdir()
    (folder / str(count) / "count").write_text(str(count))
    (folder / "new").symlink_to(folder / str(count))
    (folder / "new").rename(last)
    print("counted", count, flush=True)
count = int((last / "count").read_text()) if last.is_symlink() else 0
if count == 3:
    raise LookupError(f"found {count}")
save(count + 1)
signal.signal(signal.SIGTERM, lambda *_: (save(count + 2), sys.exit(0)))
time.sleep(600)
"""
FORKS = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
time.sleep(600)
"""
WRITES = """
import json, os, pathlib, time
(pathlib.Path(os.environ["TRAINYARD_OUTPUT"]) / "half").write_bytes(bytes(1 << 20))
print(json.dumps({"event": "progress", "done": 1 + int(os.environ["TRAINYARD_RESTARTS"]), "total": 9}), flush=True)
print("wrote by", os.getpid(), flush=True)
time.sleep(600)
"""
AGAIN = "import sys; print('no room yet'); sys.exit(75)"
NO_MODEL = """
import os
assert "TRAINYARD_GANG_TOKEN" not in os.environ and "TF_CONFIG" not in os.environ
open(os.environ["TRAINYARD_OUTPUT"] + "/model.pt", "w").close()
"""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=300)


def start(folder: Path, examples: str, program: str, workers: int = 1, arguments: str = "") -> Gang:
    (folder / "my_train.py").write_text(program)
    (folder / "recipe.yaml").write_text(RECIPE.format(workers=workers, arguments=arguments))
    return gang_processes.resume(folder, examples)


def how_to_example(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", HOW_TO.read_text(), re.DOTALL)[0]


def program_of(gang: Gang, worker: int) -> int:
    """Return the process of a worker's program."""
    return descendants(gang.training_process(worker))[0]


def program_of_pod(pod: Gang) -> int:
    """Return the process of the program of a supervisor that stands alone."""
    return descendants(gang_processes.training_process(pod.process.pid))[0]


def network(activation: str | None = None, outputs: int = 10, named: bool = True, side: int | None = 8) -> keras.Model:
    image = keras.Input((side, side, 1), name="image")
    x = keras.layers.GlobalAveragePooling2D()(image)
    x = keras.layers.Dense(outputs, activation=activation, name="last")(x)
    return keras.Model({"image": image} if named else image, x)


def pod(folder: Path, examples: str, root: str, worker: int, ports: list[int]) -> Gang:
    """Start a worker as a pod on a node of its own, which has nothing of another's files."""
    (folder / f"tmp-{worker}").mkdir(parents=True)
    own = {"TRAINYARD_CACHE": str(folder / f"cache-{worker}"), "TMPDIR": str(folder / f"tmp-{worker}")}
    return gang_processes.supervisor(folder, examples, worker, ports, root, **own)


@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_the_example_of_the_how_to_trains_in_pods_on_a_bucket_and_loses_one(
    store: Store, tmp_path: Path, examples: str
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        how_to_example("yaml").replace("epochs: 3", "epochs: 12")
    )  # time to lose a worker
    (tmp_path / "my_train.py").write_text(how_to_example("python"))
    root, ports = f"{store.uri}/{secrets.token_hex(4)}", [free_port(), free_port()]
    pods = [pod(tmp_path, examples, root, worker, ports) for worker in (0, 1)]
    chief = pods[0]  # both write into the same log
    chief.wait_for(lambda: bool(chief.events("epoch")))
    lost = program_of_pod(pods[1])
    os.kill(lost, signal.SIGSTOP)  # so that the others stand still, too
    chief.wait_for(lambda: bool(chief.events("checkpoints_saved")))
    gang_processes.kill(lost)
    for each in pods:
        each.finish()
    (found, same) = chief.events("checkpoints_restored")  # of both workers
    assert found["number"] == same["number"]
    training = chief.training
    assert len(training.gang.restarts) == 1 and "was killed by SIGKILL" in training.gang.restarts[0].reason
    assert training.start.resumed_from and training.gang.restarts[0].resumed_at == training.start.resumed_from
    assert [epoch.epoch for epoch in training.history] == [*range(1, 13)] and training.gang.workers == 2
    assert training.history[-1].eval_loss < training.history[0].eval_loss
    assert training.command == ["python", "my_train.py"] and training.goodput and 0 < training.goodput.share < 1


@pytest.mark.parametrize("served", ["gs"], indirect=True)
def test_a_program_goes_on_from_a_bucket_on_another_node_and_after_sigterm(
    store: Store, tmp_path: Path, examples: str
) -> None:
    root = f"{store.uri}/{secrets.token_hex(4)}"

    def on_another_node(number: int) -> Gang:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "my_train.py").write_text(COUNTS)
        (folder / "recipe.yaml").write_text(RECIPE.format(workers=1, arguments=""))
        return pod(folder, examples, root, 0, [free_port()])

    first = on_another_node(1)
    first.wait_for(lambda: bool(first.events("checkpoints_saved")))
    gang_processes.kill(first.process.pid)
    second = on_another_node(2)
    second.wait_for(lambda: "counted 2" in second.log)
    second.process.send_signal(signal.SIGTERM)  # before the 2 is saved, at the latest with the 3
    second.finish(code=143)
    third = on_another_node(3)
    third.finish(code=20)
    assert "LookupError: found 3" in third.log


def test_an_elastic_gang_of_a_program_loses_a_process_and_a_worker_and_takes_it_in_again_with_every_batch_once(
    tmp_path: Path, examples: str
) -> None:
    network(named=False).save(tmp_path / "made.keras")
    (tmp_path / "regression.py").write_text(REGRESSION)
    (tmp_path / "my_train.py").write_text(ELASTIC)
    recipe = RECIPE.format(workers=1, arguments=f", {tmp_path / 'made.keras'}")
    (tmp_path / "recipe.yaml").write_text(recipe)
    elastic = '{"counts": [1, 2], "replace_seconds": 2, "start_deadline_seconds": 300}'
    limit = tmp_path / "limit"  # steps that may be taken: there the program waits, and its last checkpoint is saved
    limit.write_text("120")
    gang = gang_processes.resume(tmp_path, examples, elastic=elastic)
    gang.wait_for_team(2)
    gang.wait_for(lambda: len(gang.events("checkpoints_saved")) > 0 and gang.step() >= 120)
    recovered, saved = len(gang.events("recovered")), len(gang.events("checkpoints_saved"))
    gang_processes.kill(program_of(gang, 1))  # the other one fails for want of it
    limit.write_text("240")
    gang.wait_for(lambda: len(gang.events("recovered")) > recovered and len(gang.events("checkpoints_saved")) > saved)
    gang.wait_for(lambda: gang.step() >= 240)
    with gang.descriptors(0):
        gang_processes.kill(gang.events("supervisor")[1]["process"])
        limit.write_text("780")
        gang.wait_for_team(1)
    gang.wait_for_team(2)
    limit.write_text("900")
    gang.finish()

    space: dict[str, Any] = {}
    exec(REGRESSION, space)  # as the program imports it
    weights, losses = np.zeros(5), []
    for step in range(space["STEPS"]):
        *gradient, loss = space["squares"](weights, *space["batch"](step), slice(None))
        weights, losses = space["learn"](weights, np.array(gradient)), [*losses, loss]
    training, output = gang.training, storage.local(f"{tmp_path}/output")
    np.testing.assert_allclose(json.loads((output / "files" / "weights.json").read_text()), weights, rtol=1e-9)
    told = [(epoch.step, epoch.train_loss) for epoch in training.history]
    expected = [(end, np.mean(losses[end - 60 : end])) for end in range(60, 901, 60)]
    np.testing.assert_allclose(told, expected, rtol=1e-9)
    assert [count.workers for count in training.gang.worker_counts][-3:] == [2, 1, 2] and training.steps == 900
    killed, lost, growth = training.gang.restarts[-3:]
    assert "was killed by SIGKILL" in killed.reason and "worker 1 is lost" in lost.reason, gang.log[-3000:]
    assert growth.reason == "worker 1 is there again: training continues with 2 of 2 workers"
    assert growth.lost_steps == 0 and max(killed.lost_steps, lost.lost_steps) <= 120
    # It took an image without a name, and takes a dict now, as evaluate gives one.
    assert list(keras.saving.load_model(output / "model.keras").input) == ["image"]


def test_nothing_of_a_silent_program_outlives_its_supervisor_or_its_step(tmp_path: Path, examples: str) -> None:
    gang = start(tmp_path, examples, FORKS, workers=2)

    def children(count: int) -> list[int]:
        gang.wait_for(lambda: gang.log.count("child ") == count)
        return [int(number) for number in re.findall(r"child (\d+)", gang.log)]

    children(2)
    supervisor = gang.events("supervisor")[1]["process"]
    (own,) = set(children(2)) & set(descendants(supervisor))
    gang_processes.kill(supervisor)
    gang.wait_for(lambda: not start_time(own))
    *_, first, second = children(4)
    gang_processes.kill(gang.process.pid)
    assert gang.process.wait(120) == -signal.SIGKILL
    end = time.monotonic() + 120
    while any(map(start_time, (first, second))) or gang_processes.processes_of(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.1)
    gang = gang_processes.resume(tmp_path, examples)  # nobody holds what the killed one did
    children(6)
    gang.process.send_signal(signal.SIGTERM)
    gang.finish(code=143)


def test_starts_of_a_pod_leave_no_files_of_those_before_them(tmp_path: Path, examples: str) -> None:
    """A pod's disk is as small as its limit, and it may be started again many times in place."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "my_train.py").write_text(WRITES)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(workers=1, arguments=""))
    pod = gang_processes.supervisor(tmp_path, examples, 0, [free_port()], TMPDIR=str(temporary))
    for starts in (1, 2, 3):
        pod.wait_for(lambda starts=starts: pod.log.count("wrote by") == starts)  # type: ignore[misc]
        assert len([*temporary.rglob("half")]) == 1
        gang_processes.kill(int(re.findall(r"wrote by (\d+)", pod.log)[-1]))
    pod.wait_for(lambda: pod.log.count("wrote by") == 4)
    pod.process.send_signal(signal.SIGTERM)
    pod.finish(code=143)
    assert not [*temporary.rglob("half")]


def test_a_program_told_to_stop_saves_and_the_next_start_finds_it(tmp_path: Path, examples: str) -> None:
    gang = start(tmp_path, examples, STOPPED)
    gang.wait_for(lambda: "child" in gang.log)
    gang.process.send_signal(signal.SIGTERM)
    gang.finish(code=143)
    child = int(re.findall(r"child (\d+)", gang.log)[0])
    assert not start_time(child)
    again = gang_processes.resume(tmp_path, examples)
    again.finish(code=20)
    assert "ended with exit status 1: LookupError: found step 7. Correct the program" in again.log
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("program", "code", "expected"),
    [
        (AGAIN, 30, r"gave up after 3 starts without a new step. train.command: 'python' asked to be started again"),
        (NO_MODEL, 20, r"left no model.keras in \$TRAINYARD_OUTPUT, but model.pt. Save the trained Keras model there"),
    ],
    ids=["again-and-again", "no-model"],
)
def test_a_program_that_leaves_no_model_ends_with_a_sentence(
    program: str, code: int, expected: str, tmp_path: Path, examples: str
) -> None:
    gang = start(tmp_path, examples, program)
    gang.finish(code=code)
    failure = gang.events("failed")[-1]
    assert re.search(expected, failure["message"]) and failure["code"] == code
    assert not (tmp_path / "output").exists()


def test_a_class_that_no_example_has_is_refused_before_the_program_starts(tmp_path: Path, examples: str) -> None:
    text = RECIPE.format(arguments="", workers=1) + "evaluate: {gates: [{metric: recall, class: 33, min: 0.5}]}"
    (tmp_path / "own.yaml").write_text(text)
    recipe = recipes.load(str(tmp_path / "own.yaml"))
    with pytest.raises(ConfigurationError, match=r"^evaluate\.gates\.0\.class: no class '33'\. Did you mean '3'\?"):
        train_by_command(recipe, examples, str(tmp_path / "checkpoints"), tmp_path, "", None)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (network(activation="softmax"), r"ends in softmax \(layer 'last'\). It must give logits"),
        (network(outputs=9), r"gives \(None, 9\). It must give \(None, 10\), the logits"),
        (network(side=9), r"takes image \(None, 9, 9, 1\). It must take image \(None, 8, 8, 1\)"),
        (network(side=9, named=False), r"takes inputs without names"),
    ],
    ids=["softmax", "classes", "size", "size-without-name"],
)
def test_a_model_that_later_steps_cannot_use_is_refused(
    model: keras.Model, expected: str, tmp_path: Path, examples: str
) -> None:
    model.save(tmp_path / "model.keras")
    with pytest.raises(ConfigurationError, match=expected):
        check_model(tmp_path / "model.keras", Examples.read(examples))


def test_a_model_for_images_of_any_size_is_taken_as_it_is(tmp_path: Path, examples: str) -> None:
    network(side=None).save(tmp_path / "model.keras")
    assert check_model(tmp_path / "model.keras", Examples.read(examples)).count_params() == 20
