"""Training in processes that are killed: what goes on, in this process, ends as if it had never stopped."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import ended_trainings
import keras
import numpy as np
import pytest
import train_folders
from gang_processes import resume_here
from tests.damage import flip

from trainyard.contract.artifacts.train import Training
from trainyard.steps.train.loop.checkpoint import CheckpointFolder

pytestmark = pytest.mark.usefixtures("warm_processes")

RECIPE = """
name: tiny
seed: 3
data: {format: image_folder, bundled: digits, channels: 1}
model: {name: cnn_small}
train:
  epochs: 4
  batch_size: 32
  optimizer: {name: adamw, learning_rate: 0.002}
  augment: {shift: 0.1, rotate: 10, contrast: 0.2}
  label_smoothing: 0.05
  checkpoints: {every_steps: 7}
"""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=600)


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory, examples: str) -> Path:
    folder = tmp_path_factory.mktemp("unkilled")
    (folder / "recipe.yaml").write_text(RECIPE)
    resume_here(folder, examples)
    return folder


def test_a_run_killed_in_the_middle_of_a_write_ends_with_the_weights_of_the_unkilled_one(
    tmp_path: Path, examples: str, unkilled: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_until(tmp_path, examples, 21, signal.SIGKILL) == -signal.SIGKILL
    # The newest checkpoint is hit as well, and something half-written lies about: the one before it is good.
    steps = CheckpointFolder(str(tmp_path / "checkpoints"), "", keep=3).steps()
    assert steps[-1] - steps[-2] <= 7
    flip(tmp_path / "checkpoints" / f"ckpt-{steps[-1]}" / "state.npz")
    half = tmp_path / "checkpoints" / ".staging" / "ckpt-90-dead"
    half.mkdir(parents=True)
    (half / "state.npz").write_bytes(b"half")

    resume_here(tmp_path, examples)
    warnings = [line for line in capfd.readouterr().err.splitlines() if '"warning"' in line]
    assert len(warnings) == 1 and f"ckpt-{steps[-1]}: skipped" in warnings[0]
    resumed = Training.read(str(tmp_path / "output"))
    whole = Training.read(str(unkilled / "output"))
    assert (resumed.start.resumed_from, whole.start.resumed_from) == (steps[-2], None)
    assert_equal_weights(tmp_path, unkilled)
    assert [(e.train_loss, e.eval_loss, e.metric) for e in resumed.history] == [
        (e.train_loss, e.eval_loss, e.metric) for e in whole.history
    ]
    assert not list((tmp_path / "checkpoints").glob(".staging/*"))


def test_a_run_told_to_stop_saves_its_last_step_and_goes_on_from_it(
    tmp_path: Path, examples: str, unkilled: Path
) -> None:
    assert train_until(tmp_path, examples, 7, signal.SIGTERM) == 143
    assert not (tmp_path / "output").exists()

    resume_here(tmp_path, examples)
    assert Training.read(str(tmp_path / "output")).start.resumed_from
    assert_equal_weights(tmp_path, unkilled)


def train_until(folder: Path, examples: str, step: int, how: signal.Signals) -> int:
    """Train in a process that gets the signal with a checkpoint of `step` or later, and return its exit code."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    options = ["--recipe", str(recipe), "--examples", examples]
    options += ["--checkpoints", str(folder / "checkpoints"), "--output", str(folder / "output")]
    with (folder / "log").open("w") as log:
        command = [*ended_trainings.command(step, how), *options]
        return subprocess.run(command, stderr=subprocess.STDOUT, stdout=log, timeout=300).returncode


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = (keras.saving.load_model(folder / "output" / "model.keras") for folder in (one, other))
    for left, right in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy(), err_msg=left.path)
