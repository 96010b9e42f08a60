"""A trained model's file is opened only as its train step left it, and never runs code that came with it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import export_folders as made
import keras
import pytest
import tensorflow as tf

from trainyard.data import trained
from trainyard.errors import ConfigurationError, DataError
from trainyard.storage import storage


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "model"
    x = keras.Input((4,), name="x")
    made.commit_model(folder, keras.Model({"x": x}, keras.layers.Dense(2)(x)))
    return folder


def test_a_lambda_layer_is_refused(tmp_path: Path) -> None:
    image = keras.Input((4,), name="x")
    made.commit_model(tmp_path / "model", keras.Model({"x": image}, keras.layers.Lambda(lambda x: x * 2)(image)))
    with pytest.raises(ConfigurationError, match="holds a Lambda layer"):
        trained.load(str(tmp_path / "model"))


def test_a_class_that_keras_did_not_bring_is_refused(tmp_path: Path) -> None:
    @keras.saving.register_keras_serializable("somebody")
    class Twice(keras.layers.Layer):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return inputs * 2

    x = keras.Input((4,), name="x")
    made.commit_model(tmp_path / "model", keras.Model({"x": x}, Twice()(x)))
    with pytest.raises(ConfigurationError, match=r"holds the .*Twice"):
        trained.load(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("subprocess", "run"),
        ("keras.utils", "get_file"),
        ("keras.layers", "Lambda"),
    ],
)
def test_a_model_file_that_names_other_code_is_refused_and_runs_nothing(
    module: str, name: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.keras"
    proof = tmp_path / "proof"
    with zipfile.ZipFile(model / "model.keras") as source, zipfile.ZipFile(path, "w") as target:
        for member in source.namelist():
            content = source.read(member)
            if member == "config.json":
                config = json.loads(content)
                config["config"]["layers"][1] |= {
                    "module": module,
                    "class_name": name,
                    "config": {"command": f"touch {proof}", "fname": str(proof), "origin": f"file://{path}"},
                }
                content = json.dumps(config).encode()
            target.writestr(member, content)
    with pytest.raises(ConfigurationError):
        trained.load_file(path)
    assert not proof.exists()


def test_a_model_whose_bytes_changed_after_training_is_refused(model: Path, tmp_path: Path) -> None:
    content = bytearray((model / "model.keras").read_bytes())
    with storage.stage(str(tmp_path / "model"), producer="trainyard.train") as folder:
        (folder / "model.keras").write_bytes(content)
    content[len(content) // 2] ^= 1
    (tmp_path / "model" / "model.keras").write_bytes(content)
    with pytest.raises(DataError, match="its content differs from its manifest's checksum"):
        trained.load(str(tmp_path / "model"))


def test_a_model_that_another_producer_committed_is_refused(model: Path, tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "model"), producer="somebody") as folder:
        (folder / "model.keras").write_bytes((model / "model.keras").read_bytes())
    with pytest.raises(DataError, match="producer 'somebody'"):
        trained.load(str(tmp_path / "model"))
