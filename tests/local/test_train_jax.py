"""JAX trains what TensorFlow trains: the same steps, alone and in gangs, and a model that TensorFlow exports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import gang_processes
import keras
import numpy as np
import pytest
import tensorflow as tf
import train_folders
from gang_processes import UNDER_JAX, Trained, relative_difference, resume, start

from trainyard.data.examples import open_examples
from trainyard.errors import DataError

pytestmark = pytest.mark.usefixtures("jax_template", "warm_processes")

JAX = {"TRAINYARD_ENGINE": "jax"}
CLIPPED = {"normalization": True, "clip_norm": 0.05}
TOLERANCE = 1e-6  # |difference| / |weights| after 2 epochs of SGD in float32; measured: 8e-8 to 3e-7
ENGINES_TOLERANCE = 1e-5  # the same between the engines, whose convolutions add in another order

TABLE = """
name: tiny
task: regression
data:
  format: csv
  path: /nowhere.csv
  features: {numbers: {type: numeric}, c: {type: category}}
model: {name: wide_deep, hidden: [16], dropout: 0}
train:
  epochs: 2
  batch_size: 32
  optimizer: {name: adamw, learning_rate: 0.01, clip_norm: 0.5}
  checkpoints: {keep: 99}
"""


GROWS = """
name: grows
module: own.py
data: {format: image_folder, bundled: digits, channels: 1}
train:
  epochs: 2
  batch_size: 32
  progressive_resizing: [{epochs: 1, size: 32}]
  optimizer: {name: lars, learning_rate: 0.02, learning_rate_batch: 32, clip_norm: 0.05}
  checkpoints: {keep: 99}
"""
POOLED = """
import keras
def build_model(features, outputs):
    image = keras.Input((40, 40, 1), name="image")
    x = keras.layers.Conv2D(8, 3, activation="relu", name="conv")(keras.layers.Rescaling(1 / 255)(image))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.BatchNormalization()(x))
    return keras.Model({"image": image}, keras.layers.Dense(outputs)(x), name="pooled")
"""


@pytest.fixture(scope="module")
def alone(
    tmp_path_factory: pytest.TempPathFactory, examples: str, train_with_jax: Callable[[Path, str], None]
) -> Trained:
    folder = gang_processes.write_recipe(tmp_path_factory.mktemp("alone"), 1, **CLIPPED)
    train_with_jax(folder, examples)
    return Trained(folder)


@pytest.mark.parametrize(
    ("value", "fits"), [(2**31 - 1, True), (-(2**31), True), (2**31, False), (-(2**31) - 1, False)]
)
def test_integers_that_jax_cannot_hold_are_refused_by_the_name_of_their_feature(value: int, fits: bool) -> None:
    from trainyard.steps.train.engines.jax_engine import narrow

    values = np.array([[0, value]])
    if fits:
        assert narrow(values, "user").tolist() == values.tolist() and narrow(values, "user").dtype == np.int32
        return
    with pytest.raises(DataError, match=rf"^'user': JAX has integers of 32 bits, which do not hold {value}\. "):
        narrow(values, "user")


def test_batches_go_to_the_devices_ahead_in_order_up_to_the_error_that_ends_them() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from trainyard.steps.train.engines import jax_engine

    rows = NamedSharding(Mesh(np.array(jax.devices()), (jax_engine.AXIS,)), PartitionSpec(jax_engine.AXIS))
    numbers = tf.data.Dataset.range(6 * jax.device_count()).map(
        lambda number: (
            {"n": tf.debugging.check_numerics(1.0 / tf.cast([5 - number], tf.float32), "")},
            [number],
            [1.0],
        )
    )
    before = threading.active_count()
    batches = iter(jax_engine._Batches(numbers, rows))
    assert [int(next(batches)[1][0]) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Inf"):
        next(batches)
    endless = iter(jax_engine._Batches(numbers.take(1).repeat(), rows))
    assert next(endless)[0]["n"].tolist() == [pytest.approx(0.2)]
    del endless
    for thread in threading.enumerate():
        if thread.name.startswith("batches"):
            thread.join(60)
    assert threading.active_count() == before


def test_an_input_worker_feeds_jax_the_batches_that_it_makes_itself(
    examples: str, alone: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", gang_processes.NOBODY)
    fed = start(tmp_path, examples, 1, input_workers=1, **CLIPPED, **JAX)
    fed.finish()
    assert (fed.training.machine.engine, fed.training.speed.input_workers) == ("jax", 1)
    np.testing.assert_array_equal(fed.weights(), alone.weights())


def test_a_batch_computed_in_parts_takes_the_steps_of_the_whole(
    examples: str, tmp_path: Path, train_with_jax: Callable[[Path, str], None]
) -> None:
    folders = {parts: tmp_path / str(parts) for parts in (1, 4)}
    for parts, folder in folders.items():
        gang_processes.write_recipe(folder, 1, clip_norm=0.05, accumulation_steps=parts, dropout=0)
        train_with_jax(folder, examples)
    assert relative_difference(*map(Trained, folders.values())) < TOLERANCE


def test_two_devices_of_one_process_end_with_the_weights_of_one(examples: str, alone: Trained, tmp_path: Path) -> None:
    gang_processes.write_recipe(tmp_path, 1, **CLIPPED)
    devices = "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"  # read with the first
    command = [sys.executable, "-c", devices + UNDER_JAX]
    subprocess.run(command, env=os.environ | JAX, input=f"{tmp_path} {examples}\n", text=True, check=True)
    mirrored = Trained(tmp_path)
    assert mirrored.training.machine.devices == ["CPU:0", "CPU:1"]
    assert (mirrored.training.gang.replicas, mirrored.training.gang.workers) == (2, 1)
    assert relative_difference(mirrored, alone) < TOLERANCE


def test_a_training_that_tensorflow_began_ends_under_jax_as_under_tensorflow(
    examples: str, tmp_path: Path, train_with_jax: Callable[[Path, str], None]
) -> None:
    """By LAMB, the table below by AdamW and the images that grow by LARS.

    Only those normalize: a bias before it has no gradient but rounding, which the steps of the others blow up.
    """
    gang_processes.write_recipe(tmp_path / "tensorflow", 1, clip_norm=0.05, optimizer="lamb")
    own = tmp_path / "tensorflow" / "own.py"
    # The engines draw other numbers from the same seeds.
    own.write_text(own.read_text().replace("keras.layers.Dropout(0.2)", "keras.layers.Dropout(0.0)"))
    recipe = tmp_path / "tensorflow" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("every_steps: 5", "every_steps: 5, keep: 99"))
    assert_engines_agree(tmp_path, examples, train_with_jax)


def test_a_regression_with_categories_ends_under_jax_as_under_tensorflow(
    tmp_path: Path, train_with_jax: Callable[[Path, str], None]
) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/recipe.yaml").write_text(TABLE)
    assert_engines_agree(tmp_path, train_folders.table(tmp_path / "examples"), train_with_jax)


def test_images_that_grow_train_the_same_weights_under_jax_as_under_tensorflow(
    tmp_path: Path, train_with_jax: Callable[[Path, str], None]
) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/recipe.yaml").write_text(GROWS)
    for name in ("tensorflow", "jax"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "own.py").write_text(POOLED)
    assert_engines_agree(tmp_path, train_folders.digits(tmp_path / "examples", limit=120, scale=5), train_with_jax)


def assert_engines_agree(folder: Path, examples: str, train_with_jax: Callable[[Path, str], None]) -> None:
    """Train by the recipe in `tensorflow` below `folder`, and from its first checkpoint with JAX as well."""
    begun = gang_processes.resume_here(folder / "tensorflow", examples)
    shutil.copytree(folder / "tensorflow/checkpoints/ckpt-0", folder / "jax/checkpoints/ckpt-0")
    shutil.copy(folder / "tensorflow/recipe.yaml", folder / "jax")
    train_with_jax(folder / "jax", examples)
    ended = Trained(folder / "jax")
    assert ended.training.machine.engine == "jax"
    assert ended.training.start.resumed_from == 0 and ended.training.steps == begun.training.steps
    losses = [[(e.learning_rate, e.train_loss, e.eval_loss) for e in gang.training.history] for gang in (ended, begun)]
    np.testing.assert_allclose(*losses, rtol=ENGINES_TOLERANCE)
    assert relative_difference(ended, begun) < ENGINES_TOLERANCE


def test_the_saved_model_answers_under_tensorflow_as_it_did_under_jax(examples: str, alone: Trained) -> None:
    model = keras.saving.load_model(alone.folder / "output" / "model.keras")
    batches = [(model(features), labels) for features, labels, _ in open_examples(examples).batches("eval", 64)]
    losses = [keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True) for logits, labels in batches]
    best = min(epoch.eval_loss for epoch in alone.training.history)
    assert float(np.mean(np.concatenate(losses))) == pytest.approx(best, rel=1e-5)


def test_the_whole_pipeline_ends_with_a_pushed_model(tmp_path: Path) -> None:
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/runs\n")
    short = ["--set", "train.epochs=3", "--set", "evaluate.gates=[{metric: accuracy, min: 0.5}]"]
    short += ["--set", "evaluate.bootstrap=20", "--set", "export.formats=[saved_model, litert_float32]"]
    # Executed, by an option of Python's: its other steps need TensorFlow under Keras, and the template has JAX.
    program = [sys.executable, "-u", str(Path(sys.executable).parent / "trainyard")]
    command = [*program, "run", "digits", "-e", str(tmp_path / "here.yaml")]
    ended = subprocess.run([*command, *short, "-o", "json"], env=os.environ | JAX, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)
    assert len(record["exports"]) == 2 and (Path(record["pushed"]["path"]) / "saved_model.pb").is_file()


def test_what_jax_does_not_do_is_refused(examples: str, tmp_path: Path) -> None:
    gang_processes.write_recipe(tmp_path, 1)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("  epochs:", "  precision: float16\n  epochs:"))
    gang = resume(tmp_path, examples, **JAX)
    gang.finish(code=20)
    assert "train.precision: float16 needs loss scaling" in gang.events("failed")[-1]["message"]


def test_devices_that_jax_does_not_find_end_the_step_with_40_and_a_gang_on_gpus_is_refused() -> None:
    program = (
        "import json, os, sys\nfrom trainyard.errors import TrainyardError\n"
        "from trainyard.steps.train.engines import engine\n"
        "engine.prepare()\n"
        "for devices, workers in json.loads(sys.argv[1]):\n"
        "    os.environ['TRAINYARD_DEVICES'] = json.dumps(devices)\n"
        "    cluster = {'worker': [f'127.0.0.1:{port}' for port in range(1, workers + 1)]}\n"
        "    os.environ['TF_CONFIG'] = json.dumps({'cluster': cluster, 'task': {'type': 'worker', 'index': 0}})\n"
        "    made = engine.create_engine()\n"
        "    try:\n        made.check()\n        made.join()\n"
        "    except TrainyardError as error:\n        print(int(error.exit_code), error)\n"
    )
    tpu = {"kind": "tpu", "accelerator": "tpu-v6e-slice", "count": 4}
    gpu = {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1}
    command = [sys.executable, "-c", program, json.dumps([(tpu, 1), (gpu, 1), (gpu, 2)])]
    done = subprocess.run(command, env={**os.environ, **JAX}, capture_output=True, text=True, timeout=300)
    no_tpu, no_gpu, gang = done.stdout.splitlines()
    assert no_tpu.startswith("40 devices: the pool should have 4 tpu-v6e-slice, JAX") and "not start them" in no_tpu
    assert no_gpu.startswith("40 devices: the pool should have 1 nvidia-l4, JAX")  # it has no CUDA, or no driver
    assert gang.startswith("20 TRAINYARD_ENGINE: JAX trains on the GPUs of one worker, and this gang has 2.")


def test_tensorflow_trains_without_jax_and_imports_nothing_else_that_no_step_calls() -> None:
    program = (
        "import sys\nfrom trainyard.steps.train.engines import engine\nengine.prepare()\n"
        "from trainyard.steps.train import session\nmade = type(engine.create_engine()).__name__\n"
        "print(made, *{'jax', 'sklearn'} & sys.modules.keys())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRAINYARD_ENGINE"}
    command = [sys.executable, "-u", "-c", program]  # with an option, so that nothing forks it that has imported more
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["TensorFlowEngine"]
