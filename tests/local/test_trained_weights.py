"""Files and pushed versions of trained weights, as networks begin with them; what is refused, and why."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import h5py
import keras
import numpy as np
import pytest
from keras.src.applications import mobilenet_v3
from keras.src.backend import config
from keras.src.legacy.saving import legacy_h5_format
from object_stores import Store

from trainyard.contract import weights as contract
from trainyard.contract.artifacts.preprocess import Feature
from trainyard.contract.version import EXTRA
from trainyard.errors import ConfigurationError, DataError, TransientError
from trainyard.models.build import build
from trainyard.models.weights import load_weights
from trainyard.spec import recipe as recipes
from trainyard.spec.model import ModelConfig
from trainyard.storage import storage
from trainyard.storage.buckets import stores

LABELS = ["a", "b", "c"]
COLD = recipes.load("digits")


def network(side: int = 8, channels: int = 1, name: str = "cnn_small", seed: int = 1) -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    return build(
        ModelConfig(name=name), [Feature(name="image", dtype="float32", shape=(side, side, channels))], 3, seed
    )


def begin(weights: Path | str, labels: list[str] | None = None, side: int = 8, channels: int = 1) -> keras.Model:
    begun = network(side, channels, seed=2)
    load_weights(ModelConfig(name="cnn_small", weights=str(weights)), begun, labels or LABELS)
    return begun


def equal(one: keras.Model, other: keras.Model) -> set[str]:
    """Return the names of the layers whose weights are the same."""
    pairs = zip(one.weights, other.weights, strict=True)
    different = {a.path.partition("/")[0] for a, b in pairs if not np.array_equal(a.numpy(), b.numpy())}
    return {variable.path.partition("/")[0] for variable in one.weights} - different


def test_every_layer_but_the_head_takes_the_weights_of_a_file(tmp_path: Path) -> None:
    trained = network()
    for variable in trained.weights:
        variable.assign(variable.numpy() + 0.1)
    trained.save(tmp_path / "model.keras")
    trained.save_weights(tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        assert equal(begin(tmp_path / name), trained) == {"conv2d", "conv2d_1", "conv2d_2", "dense"}


def test_the_layers_inside_of_attention_take_their_weights_from_either_file(tmp_path: Path) -> None:
    trained = transformer()
    trained.save(tmp_path / "model.keras")
    trained.save_weights(tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        begun = transformer()
        assert "attention" not in equal(begun, trained)
        load_weights(ModelConfig(name="vit_small", weights=str(tmp_path / name)), begun, LABELS)
        assert equal(begun, trained) == {"attention"}


def transformer() -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    image = keras.Input((8, 8, 1), name="image")
    rows = keras.layers.Reshape((8, 8))(image)
    x = keras.layers.MultiHeadAttention(2, 3, bias_initializer="random_normal", name="attention")(rows, rows)
    return keras.Model(
        {"image": image}, keras.layers.Dense(3, bias_initializer="ones", name="logits")(keras.layers.Flatten()(x))
    )


def test_a_pushed_version_of_the_same_classes_brings_its_head_along(tmp_path: Path) -> None:
    trained = network()
    trained.save(tmp_path / "model.keras")
    with storage.stage(str(tmp_path / "3"), producer="trainyard.push") as folder:
        (folder / EXTRA).mkdir()
        shutil.copyfile(tmp_path / "model.keras", folder / EXTRA / "model.keras")
        (folder / EXTRA / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    assert "logits" in equal(begin(tmp_path / "3"), trained)
    assert "logits" not in equal(begin(tmp_path / "3", labels=["a", "b", "d"]), trained)


def test_weights_of_another_network_are_refused_by_the_layers_that_differ(tmp_path: Path) -> None:
    network().save(tmp_path / "model.keras")
    network().save_weights(tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        with pytest.raises(
            ConfigurationError,
            match=r"of another network than 'cnn_small' is for these images: the layer conv2d_3 is missing; "
            r"the layer conv2d_4 is missing; dense/kernel is \(1024, 64\) and not \(2048, 64\)",
        ):
            begin(tmp_path / name, side=16)
        with pytest.raises(
            ConfigurationError, match=r"conv2d/kernel is \(3, 3, 1, 32\) and not \(3, 3, 3, 32\)\. Give"
        ):
            begin(tmp_path / name, channels=3)
    network(16).save(tmp_path / "larger.keras")
    with pytest.raises(ConfigurationError, match="the layer conv2d_3 is not in the network"):
        begin(tmp_path / "larger.keras")


def test_a_file_of_weights_holds_arrays_and_leads_nowhere(tmp_path: Path) -> None:
    network().save_weights(tmp_path / "good.weights.h5")
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["0"] = np.zeros((3, 3, 1, 32), np.float32)
    kernel = "layers/conv2d/vars/0"

    def external_link(file: h5py.File) -> None:
        file[kernel] = h5py.ExternalLink(str(secret), "0")

    def soft_link(file: h5py.File) -> None:
        file[kernel] = h5py.SoftLink("/layers/conv2d_1/vars/0")

    def external_data(file: h5py.File) -> None:
        file.create_dataset(kernel, (3, 3, 1, 32), "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])

    def virtual_data(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((3, 3, 1, 32), "f4")
        layout[...] = h5py.VirtualSource(str(secret), "0", (3, 3, 1, 32))
        file.create_virtual_dataset(kernel, layout)

    def huge(file: h5py.File) -> None:
        file.create_dataset(kernel, (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")

    def text(file: h5py.File) -> None:
        file.create_dataset(kernel, data=["import os"], dtype=h5py.string_dtype())

    for change in (external_link, soft_link, external_data, virtual_data, huge, text):
        path = tmp_path / f"{change.__name__}.weights.h5"
        shutil.copyfile(tmp_path / "good.weights.h5", path)
        with h5py.File(path, "a") as file:
            del file[kernel]
            change(file)
        with pytest.raises(
            DataError, match=rf"model\.weights: {path}: (Keras refuses|conv2d/kernel holds no|its arrays)"
        ):
            begin(path)
    content = (tmp_path / "good.weights.h5").read_bytes()
    for name, damaged in (("cut", content[:9000]), ("text", b"weights"), ("empty", b"")):
        (tmp_path / f"{name}.weights.h5").write_bytes(damaged)
        with pytest.raises(DataError, match="Keras refuses to read it safely"):
            begin(tmp_path / f"{name}.weights.h5")
    image = keras.Input((8, 8, 1), name="image")
    keras.Model({"image": image}, keras.layers.Lambda(lambda x: x)(image)).save(tmp_path / "lambda.keras")
    with pytest.raises(ConfigurationError, match="holds a Lambda layer"):
        begin(tmp_path / "lambda.keras")


def test_weights_come_from_a_bucket_too_and_count_with_their_content(store: Store, tmp_path: Path) -> None:
    trained = network()
    trained.save(tmp_path / "model.keras")
    trained.save_weights(tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        uri = f"{store.uri}/{tmp_path.name}/{name}"
        root, path = stores.split_uri(uri)
        stores.open_store(root).write(path, (tmp_path / name).read_bytes())
        recipe = COLD.model_copy(update={"model": ModelConfig(name="cnn_small", weights=uri)})
        first = contract.digest(recipe)
        assert equal(begin(uri), trained) == {"conv2d", "conv2d_1", "conv2d_2", "dense"}
        stores.open_store(root).write(path, b"other")
        assert contract.digest(recipe) != first
    recipe = COLD.model_copy(update={"model": ModelConfig(name="cnn_small", weights=f"{store.uri}/gone.keras")})
    with pytest.raises(ConfigurationError, match=r"model\.weights: .*/gone\.keras: there is no such file\. Name a"):
        contract.digest(recipe)
    recipe = COLD.model_copy(
        update={"model": ModelConfig(name="cnn_small", weights=f"{store.scheme}://no-bucket-here/w.keras")}
    )
    with pytest.raises(DataError, match=r"model\.weights: .*no such bucket or object\. Correct model\.weights in the"):
        contract.digest(recipe)


class Server:
    """A server of the files in a folder, and the requests that it has answered."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        handler = partial(_Handler, self.requests, directory=str(folder))
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/"


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, requests: list[str], *arguments: object, **options: object) -> None:
        self.requests = requests
        super().__init__(*arguments, **options)

    def log_message(self, format: str, *arguments: object) -> None:
        self.requests.append(self.path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    serving = Server(tmp_path / "served")
    yield serving
    serving.http.shutdown()
    serving.http.server_close()


def test_published_weights_are_fetched_once_and_verified(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "weights_mobilenet_v3_small_224_1.0_float_no_top_v2.h5"
    served, cached = tmp_path / "served" / name, tmp_path / "keras" / "models" / name
    body = keras.applications.MobileNetV3Small(include_top=False, weights=None, input_shape=(224, 224, 3))
    # The form of Keras' published files, which only its old writer makes.
    with h5py.File(served, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, body)
    digest = hashlib.md5(served.read_bytes()).hexdigest()
    (tmp_path / "keras").mkdir()
    monkeypatch.setattr(config, "_KERAS_DIR", str(tmp_path / "keras"))
    monkeypatch.setattr(mobilenet_v3, "BASE_WEIGHT_PATH", server.url)
    monkeypatch.setitem(mobilenet_v3.WEIGHTS_HASHES, "small_224_1.0_float", ("", digest))
    model = ModelConfig(name="mobilenet_v3_small", weights="imagenet")
    gray = network(32, 1, "mobilenet_v3_small", seed=2)
    load_weights(model, gray, LABELS)
    theirs = {variable.path: variable.numpy() for variable in body.weights}
    ours = {variable.path: variable.numpy() for variable in gray.weights}
    assert ours.keys() - theirs.keys() == {"logits/kernel", "logits/bias"}
    for path, value in theirs.items():
        np.testing.assert_array_equal(ours[path], value, err_msg=path)
    load_weights(model, gray, LABELS)
    assert server.requests == [f"/{name}"] and cached.is_file()

    cached.write_bytes(b"cut")
    load_weights(model, gray, LABELS)
    assert server.requests == [f"/{name}"] * 2 and cached.stat().st_size == served.stat().st_size
    kept = tmp_path / "storage" / "_published"
    cached.unlink()
    load_weights(model, gray, LABELS, str(kept))
    cached.unlink()
    load_weights(model, gray, LABELS, str(kept))  # another machine, whose storage is the same
    assert server.requests == [f"/{name}"] * 3 and cached.stat().st_size == served.stat().st_size
    (kept / "mobilenet_v3_small-1" / name).write_bytes(b"cut")
    cached.unlink()
    load_weights(model, gray, LABELS, str(kept))
    assert server.requests == [f"/{name}"] * 4 and cached.stat().st_size == served.stat().st_size
    assert (kept / "mobilenet_v3_small-1" / name).stat().st_size == served.stat().st_size
    cached.unlink()
    served.write_bytes(b"<html>log in</html>")
    with pytest.raises(
        DataError, match="the downloaded weights of mobilenet_v3_small are not those that Keras published"
    ):
        load_weights(model, gray, LABELS)
    cached.unlink(missing_ok=True)
    served.unlink()
    with pytest.raises(TransientError, match=r"the weights of mobilenet_v3_small could not be fetched \(.*404"):
        load_weights(model, gray, LABELS)
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(TransientError, match=r"could not be fetched \(.*[Rr]efused"):
        load_weights(model, gray, LABELS)


@pytest.mark.parametrize(
    ("name", "mode", "channels", "first"),
    [
        ("mobilenet_v3_small", "tf", 1, "conv"),
        ("resnet50", "caffe", 3, "conv1_pad"),
    ],
)
def test_pixels_reach_a_network_as_keras_prepares_them(name: str, mode: str, channels: int, first: str) -> None:
    pixels = np.random.default_rng(1).uniform(0, 255, (2, 32, 32, channels)).astype(np.float32)
    model = network(32, channels, name)
    prepared = keras.Model(model.input, model.get_layer(first).input)({"image": pixels}).numpy()
    colors = np.repeat(pixels, 3 // channels, axis=-1)
    expected = keras.applications.imagenet_utils.preprocess_input(colors, mode=mode)
    np.testing.assert_allclose(prepared, expected, rtol=1e-5, atol=1e-4)
