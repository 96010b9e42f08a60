"""What happens to memory, disks, files and numbers while one worker or two train costs no result."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import gang_processes
import numpy as np
import pytest
import train_folders
from gang_processes import Gang, Trained, resume_here, start, train_here, train_together

from trainyard.contract.artifacts.train import Training
from trainyard.steps.train.loop.checkpoint import CheckpointFolder
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

EPOCHS = 11  # 8 steps each
INTERVAL = 5
CGROUPS = Path("/sys/fs/cgroup")
WORKERS = pytest.mark.parametrize("workers", [1, 2], ids=["alone", "two-workers"])

HOG = """
import pathlib
import numpy
hog = pathlib.Path("{hog}")
try:
    if hog.read_text() == "once":
        hog.unlink()  # of two workers, one takes it
    taken = numpy.ones(1 << 29)  # 4 GiB
except FileNotFoundError:
    pass
"""
LINEAR = """
import keras
def build_model(features, outputs):
    inputs = {f.name: keras.Input(f.shape, name=f.name, dtype=f.dtype) for f in features}
    return keras.Model(inputs, keras.layers.Dense(outputs)(inputs["numbers"]), name="linear")
"""
LINEAR_RECIPE = """
name: linear
task: regression
module: {module}
data: {{format: csv, path: /nowhere, features: {{numbers: {{type: numeric}}, c: {{type: category}}}}}}
train:
  workers: {workers}
  epochs: 20
  batch_size: 32
  schedule: constant
  warmup_epochs: 0
  optimizer: {{name: sgd, momentum: 0, learning_rate: {rate}, clip_norm: null}}
  checkpoints: {{every_steps: 5}}
"""
FREEZE = """
import itertools
import pathlib
import time
import keras
import tensorflow as tf
freeze = pathlib.Path("{freeze}")
calls = itertools.count()
def hold(image):
    while next(calls) > 40 and freeze.exists():  # what trains and what evaluates is compiled by then
        time.sleep(0.05)
    return image
class Hold(keras.layers.Layer):
    def call(self, image):
        return tf.ensure_shape(tf.numpy_function(hold, [image], image.dtype), image.shape)
def build_model(features, outputs):
    image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Flatten()(Hold()(image))
    return keras.Model({{"image": image}}, keras.layers.Dense(outputs)(x), name="held")
"""


SLOW = """
import time
import keras
import tensorflow as tf
class Slow(keras.layers.Layer):
    def call(self, image, training=None):
        if training is not None and not tf.executing_eagerly():
            print("falls asleep", flush=True)
            time.sleep(8)  # while training and evaluation are traced, and never again
        return image
def build_model(features, outputs):
    image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Flatten()(Slow()(image))
    return keras.Model({"image": image}, keras.layers.Dense(outputs)(x), name="slow")
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, examples: str) -> dict[int, Trained]:
    folder = gang_processes.write_recipe(tmp_path_factory.mktemp("undisturbed2"), 2, epochs=EPOCHS)
    (together,) = train_together([folder], examples, 2)
    return {1: train_here(tmp_path_factory.mktemp("undisturbed1"), examples, epochs=EPOCHS), 2: together}


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes together may take 2.5 GiB."""
    version_2 = (CGROUPS / "cgroup.controllers").exists()
    group = CGROUPS / ("" if version_2 else "memory") / f"trainyard-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(5 << 29))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        gang_processes.kill(int(pid))
    end = time.monotonic() + 60
    while (group / "cgroup.procs").read_text() and time.monotonic() < end:
        time.sleep(0.05)
    group.rmdir()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB where the checkpoints go."""
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_worker_killed_out_of_memory_is_named_so_and_started_again_once(
    tmp_path: Path, examples: str, small_memory: Path, undisturbed: dict[int, Trained]
) -> None:
    gang_processes.write_recipe(tmp_path, workers=2, epochs=EPOCHS)
    hog = add_hog(tmp_path, "once")
    gang = gang_processes.resume(tmp_path, examples, cgroup=small_memory)
    gang.finish()
    assert not hog.exists()
    reason = gang.training.gang.restarts[0].reason
    assert "was killed, out of memory at" in reason and "the limit is 2,560 MiB" in reason
    assert "resources.limits.memory" in reason and "train.batch_size" in reason
    assert_equal_ends(gang, undisturbed[2])


def test_a_gang_that_never_has_memory_enough_ends_with_exit_code_40(
    tmp_path: Path, examples: str, small_memory: Path
) -> None:
    gang_processes.write_recipe(tmp_path, workers=2, epochs=1)
    add_hog(tmp_path, "always")
    gang = gang_processes.resume(tmp_path, examples, cgroup=small_memory)
    gang.finish(code=40)
    assert len(gang.events("restarting")) == 1
    assert "gave up after 2 out-of-memory kills" in gang.events("failed")[-1]["message"]
    assert storage.committed(str(tmp_path / "output")) is None


def test_a_run_killed_out_of_memory_says_so_with_the_knob_to_raise(tmp_path: Path, small_memory: Path) -> None:
    gang_processes.write_recipe(tmp_path, workers=1, epochs=1)
    add_hog(tmp_path, "once")
    program = ["trainyard_control.cli.main", "run", str(tmp_path / "recipe.yaml")]
    program += ["--set", "export.formats=[saved_model]", "--set", "evaluate.bootstrap=20"]
    command = gang_processes.python(*program, cgroup=small_memory)
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 40, ended.stderr[-2000:]
    message = " ".join(ended.stderr.split())
    assert "train: was killed, out of memory at" in message and "the limit is 2,560 MiB" in message
    again = subprocess.run(gang_processes.python(*program), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr[-2000:]


@WORKERS
def test_a_disk_that_fills_up_in_training_keeps_two_checkpoints_and_the_run_goes_on_when_there_is_room(
    workers: int, tmp_path: Path, examples: str, small_disk: Path, undisturbed: dict[int, Trained]
) -> None:
    gang = start(tmp_path, examples, workers, epochs=EPOCHS)
    gang.wait_for(lambda: gang.step() >= 24)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        while gang.process.poll() is None:
            try:
                stream.write(bytes(4096))
            except OSError:
                time.sleep(0.002)
    gang.finish(code=40)
    assert "the disk is full" in gang.events("failed")[-1]["message"]
    checkpoints = CheckpointFolder(str(small_disk), "", keep=3, writes=False)
    assert not list(small_disk.glob(".staging/*"))
    whole = [checkpoints.read(step).progress.step for step in checkpoints.steps()]
    assert len(whole) >= 2

    ballast.unlink()
    if workers == 1:
        resume_here(tmp_path, examples)
    else:
        gang_processes.resume(tmp_path, examples).finish()
    assert gang.training.start.resumed_from == whole[-1]
    assert_equal_ends(gang, undisturbed[workers])


def test_a_loss_that_is_not_finite_goes_back_once_at_a_tenth_of_the_rate_and_the_model_says_so(tmp_path: Path) -> None:
    """One worker alone does in tests/local/test_train_run.py, here and in the next test."""
    (run,) = train_together([tmp_path], linear(tmp_path, 2, rate=4), 2)
    (rollback,) = run.training.rollbacks
    assert rollback.step - rollback.back_to <= INTERVAL and rollback.learning_rate_scale == 0.1
    assert run.training.history[-1].metric < 5 and np.isfinite(run.weights()).all()
    assert_finite_checkpoints(tmp_path)


def test_a_loss_that_is_not_finite_twice_ends_with_exit_code_10_and_no_model(tmp_path: Path) -> None:
    gang = gang_processes.resume(tmp_path, linear(tmp_path, 2, rate=1000))
    gang.finish(code=10)
    assert "again after one retry at 0.1 times" in gang.events("failed")[-1]["message"]
    assert not (tmp_path / "output").exists()
    assert_finite_checkpoints(tmp_path)


def test_a_model_that_takes_long_to_trace_is_not_taken_for_one_that_stands_still(tmp_path: Path, examples: str) -> None:
    gang_processes.write_recipe(tmp_path, workers=2, epochs=2)
    (tmp_path / "own.py").write_text(SLOW)
    gang = gang_processes.resume(tmp_path, examples, TRAINYARD_STALL_SECONDS="6")
    gang.finish()
    assert gang.training.gang.restarts == [] and "no progress" not in gang.log
    assert gang.log.count("falls asleep") == 4


def test_a_training_that_stands_still_leaves_its_stacks_and_exit_code_30(tmp_path: Path, examples: str) -> None:
    freeze = tmp_path / "freeze"
    gang_processes.write_recipe(tmp_path, workers=1, epochs=EPOCHS)
    (tmp_path / "own.py").write_text(FREEZE.format(freeze=freeze))
    shutil.copytree(tmp_path, tmp_path / "undisturbed")
    resume_here(tmp_path, examples)
    expected = last_state(tmp_path)
    for left in ("checkpoints", "output"):
        shutil.rmtree(tmp_path / left)

    freeze.touch()
    gang = gang_processes.resume(tmp_path, examples, TRAINYARD_STALL_SECONDS="6")
    gang.finish(code=30)
    assert "no progress for 6 s" in gang.events("failed")[-1]["message"] and "in hold" in gang.log
    freeze.unlink()
    assert resume_here(tmp_path, examples).training.start.resumed_from
    for name, value in expected.items():
        np.testing.assert_array_equal(last_state(tmp_path)[name], value, err_msg=name)


def add_hog(folder: Path, how: str) -> Path:
    """Have the recipe's module take 4 GiB as long as the returned file is there; `once`: it removes the file before."""
    hog, module = folder / "hog", folder / "own.py"
    hog.write_text(how)
    module.write_text(
        module.read_text().replace(
            "def build_model(features, outputs):",
            "def build_model(features, outputs):" + HOG.format(hog=hog).replace("\n", "\n    "),
        )
    )
    return hog


def linear(folder: Path, workers: int, rate: float) -> str:
    """Leave a recipe for y = a x + b by plain gradient descent, and return the examples.

    It diverges at rates above 2 / the largest curvature, here 2.
    """
    (folder / "own.py").write_text(LINEAR)
    text = LINEAR_RECIPE.format(module=folder / "own.py", workers=workers, rate=rate)
    (folder / "recipe.yaml").write_text(text)
    return train_folders.table(folder / "examples")


def last_state(folder: Path) -> dict[str, np.ndarray]:
    checkpoints = CheckpointFolder(str(folder / "checkpoints"), "", keep=3, writes=False)
    return checkpoints.read(checkpoints.steps()[-1]).arrays


def assert_finite_checkpoints(folder: Path) -> None:
    checkpoints = CheckpointFolder(str(folder / "checkpoints"), "", keep=3, writes=False)
    assert checkpoints.steps()
    for step in checkpoints.steps():
        assert all(np.isfinite(value).all() for value in checkpoints.read(step).arrays.values())


def assert_equal_ends(gang: Gang, undisturbed: Trained) -> None:
    assert gang.training.steps == undisturbed.training.steps
    np.testing.assert_array_equal(gang.weights(), undisturbed.weights())
    assert isinstance(gang.training, Training) and not gang_processes.processes_of(gang.folder)
