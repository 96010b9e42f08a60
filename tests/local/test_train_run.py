"""Whole trainings in this process: what they leave, and what stops them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import train_folders
from tests.damage import flip

from trainyard import events
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import Split
from trainyard.data.examples import open_examples
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import run
from trainyard.steps.train.loop import speed
from trainyard.steps.train.loop.checkpoint import CheckpointFolder
from trainyard_control.cluster.explanation import verdict


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.digits(tmp_path_factory.mktemp("digits") / "examples", limit=300)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_folders.table(tmp_path_factory.mktemp("table") / "examples")


def test_the_folder_holds_the_best_epochs_model_and_its_evidence(digits: str, tmp_path: Path) -> None:
    training, model = train(recipe(epochs=4), digits, tmp_path)
    best = min(training.history, key=lambda epoch: epoch.eval_loss)
    assert (training.epochs, training.best_epoch, training.steps) == (4, best.epoch, training.history[-1].step)
    assert training.parameters == model.count_params() and training.machine.devices == ["CPU:0"]
    assert training.speed.examples_per_second > 0 and training.speed.cached_step_ms > 0
    assert {"import", "input", "compile", "step", "eval", "checkpoint"} <= set(training.seconds)
    assert list((tmp_path / "output" / "tensorboard").glob("events.out.tfevents*"))
    images, labels = everything(digits, "eval")
    logits = model.predict_on_batch(images)
    assert np.mean(np.argmax(logits, -1) == labels) == pytest.approx(best.metric)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    assert -np.mean(log_p[np.arange(len(labels)), labels]) == pytest.approx(best.eval_loss, rel=1e-4)


def test_equal_seeds_give_equal_weights_and_another_seed_gives_others(digits: str, tmp_path: Path) -> None:
    runs = [
        train(recipe(epochs=2, seed=seed), digits, tmp_path / name)[1] for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    for left, right in zip(runs[0].get_weights(), runs[1].get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert any((a != b).any() for a, b in zip(runs[0].get_weights(), runs[2].get_weights(), strict=True))


def test_the_speed_of_epochs_of_one_step_leaves_out_the_one_that_compiled(digits: str, tmp_path: Path) -> None:
    training, _ = train(recipe(epochs=4, batch_size=512), digits, tmp_path)
    seconds = [512 / epoch.examples_per_second for epoch in training.history]
    assert training.steps == 4
    assert training.speed.step_ms == pytest.approx(1000 * np.mean(seconds[1:]), rel=1e-6)


def test_a_regression_learns_the_line_it_was_made_from(table: str, tmp_path: Path) -> None:
    wanted = recipe(model="wide_deep", epochs=40, batch_size=32, rate=0.01, dropout=0.0)
    training, model = train(wanted, table, tmp_path)
    columns, labels = everything(table, "test")
    # The noise alone has a mean absolute deviation of 0.8; always answering the mean would be wrong by 18.
    assert np.abs(model.predict_on_batch(columns)[:, 0] - labels).mean() < 2
    assert training.history[-1].metric < 2


def test_trees_learn_targets_on_a_scale_and_answer_in_their_units(table: str, tmp_path: Path) -> None:
    """Both scales are computed by hand in test_several_labels.py."""
    trees = {"model": {"name": "boosted_trees"}, "train": {"target": {"scale": "log1p", "clip": [0.01, 0.99]}}}
    training, model = train(Recipe.model_validate(recipe(model="mlp").model_dump() | trees), table, tmp_path)
    columns, labels = everything(table, "eval")
    found = np.abs(model.predict_on_batch(columns)[:, 0] - labels).mean()
    assert found == pytest.approx(training.history[training.best_epoch - 1].metric, rel=1e-4) and found < 6


def test_a_training_tells_what_its_time_goes_into_while_it_goes_on(
    digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "PROBE_AT_CALL", 3)
    monkeypatch.setattr(speed, "PACE_SECONDS", 0.0)
    train(recipe(epochs=3), digits, tmp_path)
    log = capfd.readouterr().err
    pace, done = events.last(log, "pace"), events.last(log, "progress")
    assert pace is not None and float(pace["prefetched_step_ms"]) > 0 and float(pace["step_seconds"]) > 0
    assert done is not None and int(done["peak_mib"]) > 100
    assert verdict(log[: log.rindex('{"event": "trained"')]).sentence.startswith("step ")
    assert verdict(log).cause == "finishing"


def test_a_bfloat16_run_leaves_a_float32_model(digits: str, tmp_path: Path) -> None:
    training, model = train(recipe(epochs=3, precision="bfloat16"), digits, tmp_path)
    assert training.precision == "bfloat16"
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert training.history[-1].train_loss < training.history[0].train_loss
    images, labels = everything(digits, "eval")
    accuracy = np.mean(np.argmax(model.predict_on_batch(images), -1) == labels)
    assert accuracy == pytest.approx(training.history[training.best_epoch - 1].metric, abs=0.05)


def test_a_network_of_the_recipes_own_needs_no_head_in_float32(digits: str, tmp_path: Path) -> None:
    """The narrower range is that of float16."""
    module = tmp_path / "own.py"
    module.write_text(
        "import keras\n"
        "def build_model(features, outputs):\n"
        "    image = keras.Input(features[0].shape, name='image')\n"
        "    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))\n"
        "    return keras.Model({'image': image}, keras.layers.Dense(outputs)(x))\n"
    )
    named = recipe(rate=0.02, epochs=5, precision="float16")
    own = named.model_copy(update=carried(module) | {"model": named.model.model_copy(update={"name": None})})
    training, _ = train(own, digits, tmp_path)
    assert training.precision == "float16"
    assert training.history[-1].eval_loss < 0.7 * training.history[0].eval_loss


def test_a_float16_run_scales_its_loss_and_learns(table: str, tmp_path: Path) -> None:
    wanted = recipe(model="mlp", epochs=15, rate=0.01, precision="float16")
    training, model = train(wanted, table, tmp_path)
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert training.history[-1].eval_loss < 0.2 * training.history[0].eval_loss


def test_a_diverging_run_is_retried_once_and_leaves_nothing_that_is_not_finite(
    digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        DataError, match=r"not finite at step \d+, again after one retry at 0\.1 times .* 1e\+30"
    ) as error:
        train(diverging(epochs=3), digits, tmp_path)
    assert error.value.exit_code == 10
    assert capsys.readouterr().err.count("diverged") == 1
    assert not (tmp_path / "output" / "model.keras").exists()
    checkpoints = CheckpointFolder(str(tmp_path / "checkpoints"), "", keep=3)
    assert checkpoints.steps()
    for step in checkpoints.steps():
        assert all(np.isfinite(value).all() for value in checkpoints.read(step).arrays.values())


def test_a_run_that_diverges_once_goes_on_at_a_tenth_of_the_rate(
    digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainyard.steps.train.loop import loop

    monkeypatch.setattr(loop, "RETRY_SCALE", 1e-33)
    training, model = train(diverging(epochs=2), digits, tmp_path)
    assert "diverged" in capsys.readouterr().err
    assert training.history[0].learning_rate == pytest.approx(1e-3)
    assert all(np.isfinite(value).all() for value in model.get_weights())


def test_a_corrupt_shard_stops_the_run_and_is_named(tmp_path: Path) -> None:
    examples = train_folders.digits(tmp_path / "examples", limit=100)
    flip(next(Path(examples).glob("examples/train-*")))
    with pytest.raises(DataError, match=r"examples/examples/train-.*: its content differs .*--from preprocess"):
        train(recipe(epochs=1), examples, tmp_path)


def test_training_stops_when_the_eval_loss_no_longer_falls(digits: str, tmp_path: Path) -> None:
    training, _ = train(
        recipe(epochs=12, rate=0.05, schedule="constant", early_stopping={"patience": 2}), digits, tmp_path
    )
    assert training.epochs == training.best_epoch + 2 < 12


def test_a_recipes_own_build_model_is_trained_and_one_of_another_form_is_refused(table: str, tmp_path: Path) -> None:
    module = tmp_path / "own.py"
    module.write_text(
        "import keras\n"
        "def build_model(features, outputs):\n"
        "    inputs = {f.name: keras.Input(f.shape, name=f.name, dtype=f.dtype) for f in features}\n"
        "    return keras.Model(inputs, keras.layers.Dense(outputs)(inputs['numbers']), name='own')\n"
    )
    training, _ = train(
        recipe(model=None, module=module, epochs=30, rate=0.1, task="regression"), table, tmp_path / "a"
    )
    assert training.model == "own" and training.parameters == 3
    assert training.history[-1].metric < 5
    wrong = tmp_path / "wrong.py"
    wrong.write_text(module.read_text().replace("Dense(outputs)", "Dense(outputs + 1)"))
    with pytest.raises(ConfigurationError, match=r"wrong\.py: build_model's model maps c, numbers to \(None, 2\)"):
        train(recipe(model=None, module=wrong, task="regression"), table, tmp_path / "b")


def recipe(
    *,
    model: str | None = "cnn_small",
    module: Path | None = None,
    task: str | None = None,
    seed: int = 1,
    rate: float = 0.003,
    dropout: float = 0.2,
    **train: Any,
) -> Recipe:
    image = model == "cnn_small"
    columns = {"numbers": {"type": "numeric"}, "c": {"type": "category"}}
    return Recipe.model_validate(
        {
            "name": "t",
            "seed": seed,
            **(carried(module) if module else {}),
            "task": task or ("classification" if image else "regression"),
            "data": {
                "format": "image_folder" if image else "csv",
                "path": "/nowhere",
                "features": {} if image else columns,
            },
            "model": {"name": model, "dropout": dropout},
            "train": {"batch_size": 32, "optimizer": {"learning_rate": rate}, **train},
        }
    )


def carried(module: Path) -> dict[str, Any]:
    """Return the keys of a recipe that carries `module`."""
    return {"module": module.name, "files": {module.name: module.read_text()}}


def diverging(epochs: int) -> Recipe:
    """A recipe with a rate that no file may hold."""
    made = recipe(epochs=epochs)
    optimizer = made.train.optimizer.model_copy(update={"learning_rate": 1e30})
    return made.model_copy(update={"train": made.train.model_copy(update={"optimizer": optimizer})})


def train(recipe: Recipe, examples: str, folder: Path) -> tuple[Training, keras.Model]:
    output = folder / "output"
    output.mkdir(parents=True)
    run.run(recipe, examples, str(folder / "checkpoints"), output)
    document = Training.model_validate_json((output / "training.json").read_text())
    return document, keras.saving.load_model(output / "model.keras", safe_mode=True)


def everything(examples: str, split: Split) -> tuple[dict[str, np.ndarray], np.ndarray]:
    features, labels, _ = next(iter(open_examples(examples).batches(split, 10_000)))
    return {name: value.numpy() for name, value in features.items()}, labels.numpy()
