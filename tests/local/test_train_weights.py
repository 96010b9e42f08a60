"""Trainings that begin with trained weights: what they gain, what stays frozen, and what is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import ended_trainings
import keras
import numpy as np
import pytest
import train_folders

from trainyard.contract.artifacts.train import Training
from trainyard.data.examples import open_examples
from trainyard.errors import ConfigurationError
from trainyard.models.build import build
from trainyard.models.costs.cost import cost
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import run
from trainyard.steps.train.engines.optimizer import phases

pytestmark = pytest.mark.usefixtures("warm_processes")

RECIPE = """
name: tiny
seed: 3
data: {{format: image_folder, bundled: digits, channels: 1}}
model: {{name: {name}{model}}}
train:
  epochs: {epochs}
  batch_size: {batch}
  optimizer: {{name: {optimizer}, learning_rate: 0.005, weight_decay: 0.01}}
{train}
"""
BUDGET = 6  # epochs over 20 examples
PHASES = "  fine_tune: {head_epochs: 2, learning_rate_factor: 0.5}"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tells the digits 0 to 4 apart."""
    folder = tmp_path_factory.mktemp("source")
    examples = train_folders.digits(folder / "examples", classes=range(5))
    training = train(folder, examples, epochs=5, batch=32, train="  label_smoothing: 0.2")
    assert training.history[-1].metric > 0.9
    return folder / "output" / "model.keras"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """20 examples of the digits 5 to 9 to learn from, and about a hundred to be judged by."""
    return train_folders.digits(tmp_path_factory.mktemp("few") / "examples", classes=range(5, 10), train_limit=20)


def recipe(name: str = "cnn_small", model: str = "", train: str = "", **settings: object) -> str:
    settings = {"epochs": BUDGET, "batch": 8, "optimizer": "adamw", **settings}
    return RECIPE.format(name=name, model=model, train=train, **settings)


def train(folder: Path, examples: str, **settings: object) -> Training:
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)
    parsed = documents.parse(recipe(**settings), Recipe, name="tiny")
    run.run(parsed, examples, str(folder / "checkpoints"), output)
    return Training.read(str(output))


def weights(path: Path) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in keras.saving.load_model(path).weights}


def best(training: Training) -> float:
    return max(epoch.metric for epoch in training.history)


def test_few_examples_of_new_classes_go_much_further_from_trained_weights(
    source: Path, few: str, tmp_path: Path
) -> None:
    scratch = train(tmp_path / "scratch", few)
    tuned = train(tmp_path / "tuned", few, model=f", weights: {source}")
    assert best(tuned) > best(scratch) + 0.2
    assert (scratch.start.weights, tuned.start.weights) == ("", str(source))
    phases = train(tmp_path / "phases", few, model=f", weights: {source}", train=PHASES)
    assert best(phases) > best(scratch) + 0.1
    # Operations and speed are both those of a step in which all layers learn.
    assert (phases.costs.flops_per_example, phases.costs.backbone_share) == (tuned.costs.flops_per_example, 1)
    # The head alone learns in the first two epochs, with a schedule of its own, and all layers after them.
    steps = 3
    rates = [epoch.learning_rate for epoch in phases.history]
    assert [epoch.step for epoch in phases.history] == [steps * number for number in range(1, BUDGET + 1)]
    assert rates[0] == pytest.approx(0.005) and rates[1] == pytest.approx(0.5 * 0.005 / steps)
    assert rates[2] == pytest.approx(0.5 * 0.005) and rates[-1] == pytest.approx(0)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "lars"])
def test_a_frozen_backbone_keeps_every_bit(source: Path, few: str, tmp_path: Path, optimizer: str) -> None:
    model = f", weights: {source}, freeze: backbone"
    training = train(tmp_path, few, model=model, epochs=1, optimizer=optimizer)
    before, after = weights(source), weights(tmp_path / "output" / "model.keras")
    assert before.keys() == after.keys()
    assert 3 * training.costs.flops_per_example == pytest.approx(
        cost(keras.saving.load_model(source)).flops_per_example
    )
    for name in before.keys() - {"logits/kernel", "logits/bias"}:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert not np.array_equal(after["logits/kernel"], before["logits/kernel"])


def test_the_layers_up_to_a_block_keep_every_bit_and_those_after_it_learn(
    source: Path, few: str, tmp_path: Path
) -> None:
    train(tmp_path, few, model=f", weights: {source}, freeze: until conv2d_1", epochs=1)
    before, after = weights(source), weights(tmp_path / "output" / "model.keras")
    layers = {name.partition("/")[0] for name in before}
    changed = {name.partition("/")[0] for name in before if not np.array_equal(before[name], after[name])}
    assert layers - changed == {"conv2d", "conv2d_1"}
    unknown = r"until conv9: no layer of 'cnn_small' has a name .* are conv2d, conv"
    with pytest.raises(ConfigurationError, match=unknown):
        train(tmp_path / "none", few, model=f", weights: {source}, freeze: until conv9", epochs=1)


def test_a_run_stopped_in_either_phase_ends_with_the_weights_of_the_unstopped_one(
    source: Path, few: str, tmp_path: Path
) -> None:
    settings = {
        "model": f", weights: {source}",
        "train": "  fine_tune: {head_epochs: 2, learning_rate_factor: 0.5}\n  checkpoints: {every_steps: 2, keep: 99}",
        "epochs": 8,
    }
    boundary, last = 2 * 3, 8 * 3
    train(tmp_path / "whole", few, **settings)
    kill_at(tmp_path / "killed", few, boundary + 1, **settings)
    assert boundary < newest(tmp_path / "killed") < last
    # What a kill right between the phases would have left.
    name = f"checkpoints/ckpt-{boundary}"
    shutil.copytree(tmp_path / "whole" / name, tmp_path / "between" / name)
    expected = weights(tmp_path / "whole" / "output" / "model.keras")
    for name in ("killed", "between"):
        begun = newest(tmp_path / name)
        assert train(tmp_path / name, few, **settings).start.resumed_from == begun
        for variable, value in weights(tmp_path / name / "output" / "model.keras").items():
            np.testing.assert_array_equal(value, expected[variable], err_msg=f"{name}: {variable}")


def newest(folder: Path) -> int:
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("ckpt-*")), default=0)


def kill_at(folder: Path, examples: str, step: int, **settings: object) -> None:
    """Train in a process that is killed as soon as a checkpoint of `step` or later is there."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe(**settings))
    options = {"recipe": "recipe.yaml", "checkpoints": "checkpoints", "output": "killed"}
    arguments = [text for name, file in options.items() for text in (f"--{name}", str(folder / file))]
    command = [*ended_trainings.command(step, signal.SIGKILL), "--examples", examples, *arguments]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    assert ended.returncode == -signal.SIGKILL


TWO_EPOCHS = "  fine_tune: {head_epochs: 1, learning_rate_factor: 0.5}\n  checkpoints: {keep: 99}"


@pytest.fixture(scope="module")
def one(source: Path, few: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training of one process, an epoch in each phase."""
    folder = tmp_path_factory.mktemp("one")
    train(folder, few, train=TWO_EPOCHS, **two_epochs(source))
    return folder


def two_epochs(source: Path) -> dict[str, object]:
    return {"model": f", dropout: 0, weights: {source}", "epochs": 2, "optimizer": "sgd"}


@pytest.mark.parametrize(("engine", "workers", "tolerance"), [("tensorflow", 2, 1e-6), ("jax", 1, 1e-5)])
def test_gangs_and_jax_take_the_same_steps_in_both_phases(
    source: Path,
    few: str,
    one: Path,
    tmp_path: Path,
    train_with_jax: Callable[[Path, str], None],
    engine: str,
    workers: int,
    tolerance: float,
) -> None:
    # The same first weights: the engines draw other ones for the head.
    shutil.copytree(one / "checkpoints" / "ckpt-0", tmp_path / "checkpoints" / "ckpt-0")
    settings = {"train": f"{TWO_EPOCHS}\n  workers: {workers}", **two_epochs(source)}
    if engine == "jax":
        (tmp_path / "recipe.yaml").write_text(recipe(**settings))
        train_with_jax(tmp_path, few)
    else:
        train(tmp_path, few, **settings)
    other = Training.read(str(tmp_path / "output"))
    assert (other.machine.engine, other.gang.workers, other.start.resumed_from) == (engine, workers, 0)
    ours, theirs = (weights(folder / "output" / "model.keras") for folder in (one, tmp_path))
    difference = np.sqrt(sum(np.sum((ours[name] - theirs[name]) ** 2) for name in ours))
    assert difference < tolerance * np.sqrt(sum(np.sum(value**2) for value in ours.values()))
    assert np.abs(ours["conv2d/kernel"] - weights(source)["conv2d/kernel"]).max() > 1e-4


def test_trained_statistics_stay_and_a_frozen_backbone_draws_nothing(few: str) -> None:
    image = keras.Input((8, 8, 1), name="image")
    normal = keras.layers.BatchNormalization(name="normal", momentum=0)
    x = keras.layers.Flatten()(keras.layers.Dropout(0.5)(normal(image)))
    model = keras.Model({"image": image}, keras.layers.Dense(5, name="logits")(x))
    settings = {"model": ", weights: imagenet", "train": PHASES}
    parsed = documents.parse(recipe("resnet50", **settings), Recipe, name="tiny")
    parts = phases(model, parsed, 3, lambda schedule: keras.optimizers.SGD(schedule))
    batch = {"image": np.random.default_rng(1).normal(3, 2, (4, 8, 8, 1)).astype(np.float32)}
    calm = model(batch, training=False).numpy()
    parts.enter(5)
    assert (parts.number(5), [variable.name for variable in parts.current.variables]) == (0, ["kernel", "bias"])
    np.testing.assert_array_equal(model(batch, training=True).numpy(), calm)
    parts.enter(6)
    assert (parts.number(6), len(parts.current.variables)) == (1, 4)
    assert not np.array_equal(model(batch, training=True).numpy(), calm), "dropout draws again"
    np.testing.assert_array_equal(normal.moving_mean.numpy(), [0])
    np.testing.assert_array_equal(normal.moving_variance.numpy(), [1])


def test_the_blocks_of_a_transformer_can_be_frozen_and_the_others_learn(few: str) -> None:
    parsed = documents.parse(recipe("vit_small", model=", weights: /w.keras, freeze: until block11"), Recipe, name="t")
    model = build(parsed.model, open_examples(few).document.features, 5, seed=1)
    parts = phases(model, parsed, 3, lambda schedule: keras.optimizers.SGD(schedule))
    learning = {variable.path.partition("/")[0] for variable in parts.current.variables}
    last = {f"block12_{part}" for part in ("norm1", "attention", "norm2", "dense1", "dense2")}
    assert learning == last | {"norm", "logits"}
    batch = {"image": np.full((2, 8, 8, 1), 100, np.float32)}
    assert model(batch, training=True).shape == (2, 5)
