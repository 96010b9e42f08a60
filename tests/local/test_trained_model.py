"""A trained model's file is opened only as its train step left it, and never runs code that came with it."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import export_folders as made
import h5py
import keras
import pytest
import tensorflow as tf
from tests.damage import flip

from trainyard.data import trained
from trainyard.errors import ConfigurationError, DataError
from trainyard.process import memory
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


def changed(model: Path, path: Path, **members: Callable[[bytes], bytes | None]) -> Path:
    """Return `path`, the model with some members changed, or left out for None."""
    with zipfile.ZipFile(model / "model.keras") as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.namelist():
            change = members.get(member.split(".")[1] if member.startswith("model") else member.split(".")[0])
            content = change(source.read(member)) if change else source.read(member)
            if content is not None:
                target.writestr(member, content)
    return path


def config(**layer: Any) -> Callable[[bytes], bytes]:
    """Return what changes the Dense layer of a configuration, its own one by `config`."""

    def change(content: bytes) -> bytes:
        document = json.loads(content)
        dense = document["config"]["layers"][1]
        own = dense["config"] | layer.pop("config", {})
        dense |= layer | {"config": own}
        return json.dumps(document).encode()

    return change


def arrays(shape: tuple[int, ...]) -> Callable[[bytes], bytes]:
    """Return what makes the kernel of the weights an array of `shape` that was never written."""

    def change(content: bytes) -> bytes:
        stream = io.BytesIO(content)
        with h5py.File(stream, "r+") as file:
            group = file["layers/dense/vars"]
            del group["0"]
            group.create_dataset("0", shape, "f4", chunks=tuple(min(side, 1024) for side in shape))
        return stream.getvalue()

    return change


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"HDF")] ^= 1
    path.write_bytes(content)


def encrypted(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


HOSTILE: dict[str, tuple[dict[str, Callable[[bytes], bytes | None]], str]] = {
    "bomb": ({"config": lambda content: content + b" " * (64 << 20)}, r"config\.json has more than 67,108,864 bytes"),
    "all of it": ({"weights": lambda content: content + bytes(80 << 20)}, "unpacks to many times its size"),
    "deep": ({"config": lambda _: b'{"a":' + b"[" * 100_000}, "not a .keras file, or damaged"),
    "a list": ({"config": lambda _: b"[]"}, r"config\.json is no object"),
    "no weights": ({"weights": lambda _: None}, "not a .keras file, or damaged"),
    "other weights": ({"weights": lambda _: b"\x89HDF\r\n\x1a\n"}, "not a .keras file, or damaged"),
    "a list as module": ({"config": config(module=["os"])}, "which is no name"),
    "an object as class": ({"config": config(class_name={"os": "system"})}, "which is no name"),
    "units": ({"config": config(config={"units": 10**11})}, "its layers would take 2,000,000,000,000 bytes"),
    "units beyond integers": ({"config": config(config={"units": 10**30})}, "its layers would take 20,000,000"),
    "no units": ({"config": config(config={"units": -1})}, "refuses to load it safely|damaged"),
    "arrays": ({"weights": arrays((1 << 17, 1 << 17))}, r"its arrays would take 68,719,\d{3},\d{3} bytes"),
    "another shape": ({"weights": arrays((1024, 7))}, "refuses to load it safely|damaged"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_model_file_is_a_sentence_in_little_memory(case: str, model: Path, tmp_path: Path) -> None:
    members, sentence = HOSTILE[case]
    path = changed(model, tmp_path / "model.keras", **members)
    before = memory.peak_mib(os.getpid())
    with pytest.raises((ConfigurationError, DataError), match=sentence) as refused:
        trained.load_foreign(path)
    assert str(path) in str(refused.value) and len(str(refused.value).splitlines()) == 1
    with keras.StatelessScope():
        pass  # its end gives values to all variables that have none: to none of the refused model
    assert memory.peak_mib(os.getpid()) - before < 400


@pytest.mark.parametrize("damage", [flipped, encrypted, cut])
def test_a_damaged_model_file_is_named(damage: Callable[[Path], None], model: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes((model / "model.keras").read_bytes())
    assert trained.load_foreign(path).count_params() == 10
    damage(path)
    with pytest.raises(DataError, match=r"model\.keras: not a \.keras file, or damaged \("):
        trained.load_foreign(path)


def test_a_model_whose_bytes_changed_after_training_is_refused(model: Path, tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "model"), producer="trainyard.train") as folder:
        (folder / "model.keras").write_bytes((model / "model.keras").read_bytes())
    flip(tmp_path / "model" / "model.keras")
    with pytest.raises(DataError, match="its content differs from its manifest's checksum"):
        trained.load(str(tmp_path / "model"))


def test_a_model_that_another_producer_committed_is_refused(model: Path, tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "model"), producer="somebody") as folder:
        (folder / "model.keras").write_bytes((model / "model.keras").read_bytes())
    with pytest.raises(DataError, match="producer 'somebody'"):
        trained.load(str(tmp_path / "model"))
