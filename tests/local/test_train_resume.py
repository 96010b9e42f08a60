"""Training in processes that are killed: what goes on, in this process, ends as if it had never stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import train_folders
from gang_processes import resume_here

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
    process = start(tmp_path, examples)
    stop_at(process, tmp_path, step=21, how=signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    # The newest checkpoint is hit as well, and something half-written lies about: the one before it is good.
    steps = CheckpointFolder(str(tmp_path / "checkpoints"), "", keep=3).steps()
    assert steps[-1] - steps[-2] <= 7
    newest = tmp_path / "checkpoints" / f"ckpt-{steps[-1]}" / "state.npz"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    half = tmp_path / "checkpoints" / ".staging" / "ckpt-90-dead"
    half.mkdir(parents=True)
    (half / "state.npz").write_bytes(b"half")

    resume_here(tmp_path, examples)
    warnings = [line for line in capfd.readouterr().err.splitlines() if '"warning"' in line]
    assert len(warnings) == 1 and f"ckpt-{steps[-1]}: skipped" in warnings[0]
    resumed = Training.read(str(tmp_path / "output"))
    whole = Training.read(str(unkilled / "output"))
    assert (resumed.resumed_from, whole.resumed_from) == (steps[-2], None)
    assert_equal_weights(tmp_path, unkilled)
    assert [(e.train_loss, e.eval_loss, e.metric) for e in resumed.history] == [
        (e.train_loss, e.eval_loss, e.metric) for e in whole.history
    ]
    assert not list((tmp_path / "checkpoints").glob(".staging/*"))


def test_a_run_told_to_stop_saves_its_last_step_and_goes_on_from_it(
    tmp_path: Path, examples: str, unkilled: Path
) -> None:
    process = start(tmp_path, examples)
    stop_at(process, tmp_path, step=7, how=signal.SIGTERM)
    assert process.returncode == 143
    assert not (tmp_path / "output").exists()

    resume_here(tmp_path, examples)
    assert Training.read(str(tmp_path / "output")).resumed_from
    assert_equal_weights(tmp_path, unkilled)


def start(folder: Path, examples: str) -> subprocess.Popen[str]:
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "trainyard.steps", "train", "--recipe", str(recipe), "--examples", examples),
            *("--checkpoints", str(folder / "checkpoints"), "--output", str(folder / "output")),
        ],
        stderr=subprocess.STDOUT,
        stdout=(folder / "log").open("w"),
        text=True,
    )


def stop_at(process: subprocess.Popen[str], folder: Path, step: int, how: signal.Signals) -> None:
    """Send the signal as soon as a checkpoint of `step` or later is there."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        steps = [int(path.name[5:]) for path in (folder / "checkpoints").glob("ckpt-*")]
        if max(steps, default=0) >= step:
            process.send_signal(how)
            break
        time.sleep(0.002)
    process.wait(timeout=60)


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = (keras.saving.load_model(folder / "output" / "model.keras") for folder in (one, other))
    for left, right in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy(), err_msg=left.path)
