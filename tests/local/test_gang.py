"""Gangs of real processes compute what one process computes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gang_processes import Trained, relative_difference, train_here, train_together, write_recipe

pytestmark = pytest.mark.usefixtures("warm_processes")

TOLERANCE = 1e-6  # |difference| / |weights| after 2 epochs of SGD in float32
# keras 3.15 takes the variance as E(x^2) - E(x)^2 over several replicas and as E((x - E(x))^2) on one.
NORMALIZED_TOLERANCE = 1e-5
CLIPPED = {"normalization": True, "clip_norm": 0.05}
IN_PARTS = {"normalization": True, "accumulation_steps": 2}
OWN_STATISTICS = {"normalization": True, "dropout": 0, "epochs": 1}
RECIPES = {
    "plain": {"select": "roc_auc"},
    "clipped": CLIPPED,
    "in_parts": IN_PARTS,
    "lars": {"optimizer": "lars"},
    "lamb": {"optimizer": "lamb"},
    "compiled": {"xla": True},
    "compiled_normalization": {"normalization": True, "xla": True},
    "own_statistics": {"batch_statistics": "worker", **OWN_STATISTICS},
    "compiled_own_statistics": {"batch_statistics": "worker", "xla": True, **OWN_STATISTICS},
}


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory, examples: str) -> Trained:
    """One worker's run with normalization. The gradient's norm is several times the limit."""
    return train_here(tmp_path_factory.mktemp("clipped"), examples, **CLIPPED)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, examples: str) -> dict[str, Trained]:
    """Two workers' run of each recipe."""
    root = tmp_path_factory.mktemp("two")
    folders = [write_recipe(root / name, 2, **options) for name, options in RECIPES.items()]
    return dict(zip(RECIPES, train_together(folders, examples, 2), strict=True))


def test_one_and_two_workers_end_with_the_same_losses_and_weights(
    examples: str, two: dict[str, Trained], tmp_path: Path
) -> None:
    """Four are in tests/faults: the gang that loses two of them."""
    one, both = train_here(tmp_path, examples, select="roc_auc"), two["plain"].training
    assert (both.gang.workers, both.gang.replicas, both.steps) == (2, 2, one.training.steps)
    losses = [
        [(epoch.train_loss, epoch.eval_loss, epoch.metric, epoch.selected) for epoch in training.history]
        for training in (both, one.training)
    ]
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    assert relative_difference(two["plain"], one) < TOLERANCE
    assert both.gang.gradient_bytes == 4 * one.training.parameters and both.gang.restarts == []


def test_a_port_that_another_program_took_has_the_gang_meet_again() -> None:
    module = "trainyard.steps.train.engines"
    program = f"import trainyard.data; from {module} import strategy; strategy.create_strategy()"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}", "127.0.0.1:1"]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "errors.PeerLost: train: TensorFlow could not listen on this worker's port" in ended.stderr


def test_two_and_four_workers_share_batch_statistics_and_clip_the_summed_gradient(
    examples: str, clipped: Trained, two: dict[str, Trained], tmp_path: Path
) -> None:
    # Clipping each replica's own gradient would end elsewhere.
    for run in (two["clipped"], *train_together([write_recipe(tmp_path, 4, **CLIPPED)], examples, 4)):
        np.testing.assert_allclose(
            [epoch.eval_loss for epoch in run.training.history],
            [epoch.eval_loss for epoch in clipped.training.history],
            rtol=NORMALIZED_TOLERANCE,
        )
        assert relative_difference(run, clipped) < NORMALIZED_TOLERANCE


def test_a_batch_computed_in_parts_takes_the_steps_of_the_whole(examples: str, tmp_path: Path) -> None:
    runs = [
        train_here(tmp_path / str(parts), examples, clip_norm=0.05, accumulation_steps=parts, dropout=0)
        for parts in (1, 4)
    ]
    whole, parts = (run.training for run in runs)
    assert parts.steps == whole.steps
    losses = [
        [(epoch.train_loss, epoch.eval_loss, epoch.metric) for epoch in training.history] for training in (parts, whole)
    ]
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    assert relative_difference(*runs) < TOLERANCE


def test_two_workers_normalize_each_part_of_a_batch_as_one_does(
    examples: str, two: dict[str, Trained], tmp_path: Path
) -> None:
    assert relative_difference(two["in_parts"], train_here(tmp_path, examples, **IN_PARTS)) < NORMALIZED_TOLERANCE


def test_a_compiled_step_is_the_same_step(examples: str, two: dict[str, Trained], tmp_path: Path) -> None:
    """Under XLA sums have another order; with it two workers take the steps of one, but cannot share normalization."""
    plain, compiled = (
        train_here(tmp_path / str(xla), examples, normalization=True, dropout=0, xla=xla) for xla in (False, True)
    )
    assert relative_difference(compiled, plain) < NORMALIZED_TOLERANCE
    refused = (two["compiled_normalization"].folder / "refused").read_text()
    assert refused.startswith("20 train.xla: the layer batch_normalization sums over the devices")
    one = train_here(tmp_path / "1", examples, xla=True)
    assert relative_difference(two["compiled"], one) < TOLERANCE


def test_workers_with_statistics_of_their_own_normalize_as_the_parts_of_a_batch(
    examples: str, two: dict[str, Trained], tmp_path: Path
) -> None:
    """One worker normalizes each of two parts of a batch by itself; two workers are held against that, XLA too."""
    parts = train_here(tmp_path, examples, accumulation_steps=2, **OWN_STATISTICS)
    for gang in (two["own_statistics"], two["compiled_own_statistics"]):
        assert len(gang.learned()) == len(parts.learned())
        difference = np.linalg.norm(gang.learned() - parts.learned()) / np.linalg.norm(parts.learned())
        assert difference < NORMALIZED_TOLERANCE


MODULE = """
import keras
def build_model(features, outputs):
    image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.BatchNormalization(momentum=0.7, name="normal")(image)
    return keras.Model({"image": image}, keras.layers.Dense(outputs)(keras.layers.Flatten()(x)), name="normal")
"""
RECIPE = """
name: normal
module: own.py
data: {format: image_folder, bundled: digits, channels: 1}
train: {batch_size: 32, batch_statistics: worker}
"""


def test_moving_averages_of_all_replicas_end_a_step_as_their_mean(examples: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, Path(__file__).with_name("own_statistics.py"), str(tmp_path / "recipe.yaml"), examples]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    averages, expected = json.loads(ended.stdout.splitlines()[-1])
    assert np.shape(averages) == (2, 2, 1)  # mean and variance, of each replica
    np.testing.assert_allclose(averages, expected, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_two_workers_scale_each_layers_step_as_one_does(
    optimizer: str, examples: str, two: dict[str, Trained], tmp_path: Path
) -> None:
    one = train_here(tmp_path, examples, optimizer=optimizer)
    assert relative_difference(two[optimizer], one) < NORMALIZED_TOLERANCE


def test_two_devices_of_one_process_end_with_the_weights_of_one(
    examples: str, clipped: Trained, tmp_path: Path
) -> None:
    (mirrored,) = train_together([write_recipe(tmp_path, 1, **CLIPPED)], examples, 1, devices=2)
    assert mirrored.training.machine.devices == ["CPU:0", "CPU:1"]
    assert (mirrored.training.gang.replicas, mirrored.training.gang.workers) == (2, 1)
    assert relative_difference(mirrored, clipped) < NORMALIZED_TOLERANCE
