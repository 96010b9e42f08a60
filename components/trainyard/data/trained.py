"""A trained model from its files, on every local accelerator if asked; and the errors that damaged files raise."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, assert_never

import h5py
import keras
import numpy as np
import tensorflow as tf

from trainyard.contract import version
from trainyard.contract.version import EXTRA
from trainyard.data.examples import Tensors as Tensors
from trainyard.data.skeleton import skeleton
from trainyard.errors import ConfigurationError, DataError
from trainyard.graph import producer, remedy
from trainyard.spec.gates import Task
from trainyard.storage import storage

FILE = "model.keras"
PRODUCER = producer("train")

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_MOST_CONFIG_BYTES = 64 << 20  # chosen: the largest networks of Keras have some hundred thousand
_EXPANSION, _ROOM_BYTES = 4, 64 << 20  # chosen: Keras compresses nothing, others half of it

_FUNCTION_BY_NAME = ("builtins", "function")  # how Keras writes its own functions, such as an activation
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tf.errors.OpError,
)
"""Of Keras, HDF5, zipfile and TensorFlow."""

_LONGEST = 200  # characters; chosen
Model = TypeVar("Model")
Batch = TypeVar("Batch")
Answer = TypeVar("Answer")


def load(uri: str) -> keras.Model:
    """Return the model of the train step's committed folder `uri`, in the precision it was trained in.

    Raises `DataError` if the file is not the one the step wrote, `ConfigurationError` if it holds a Lambda layer
    or a class of somebody's own: such code would travel with the model and is not run here.
    """
    manifest = storage.require(uri, remedy("train"))
    path = storage.local(uri, remedy("train")) / FILE
    if manifest.producer != PRODUCER or FILE not in manifest.files:
        raise DataError(
            f"{path}: not listed by a manifest of {PRODUCER} (producer '{manifest.producer}'). "
            "Only models that the train step wrote are exported. Run with --from train."
        )
    return load_file(path)


def load_pushed(folder: str) -> keras.Model:
    """Return the model.keras of the pushed version in `folder`.

    Raises `ConfigurationError` if it was not exported with the version, `DataError` if it is not the file that was
    pushed, and as `load_file`.
    """
    manifest, name = storage.require(folder, remedy("push")), f"{EXTRA}/{FILE}"
    path = storage.local(folder, remedy("push")) / name
    if manifest.producer != version.PRODUCER or name not in manifest.files:
        raise ConfigurationError(
            f"{path}: no model that Trainyard pushed. Add keras to export.formats and push a model with it first."
        )
    return load_foreign(path)


def load_foreign(path: Path) -> keras.Model:
    """Return the Keras model at `path`, which somebody else may have written; as `load_file`.

    Raises `DataError` before anything is built if its layers would need more memory than its weights fill.
    """
    config = _config(path)
    _require_weights(path, config)
    return _load(path, config)


def load_file(path: Path) -> keras.Model:
    """Return the Keras model at `path`, built from Keras' own classes alone.

    Raises `ConfigurationError` if other code belongs to it, `DataError` if it is damaged.
    """
    return _load(path, _config(path))


def _load(path: Path, config: dict[str, Any]) -> keras.Model:
    """Return the Keras model at `path`, whose archive was checked and holds `config`."""
    try:
        foreign = sorted(set(_foreign(config)))
    except RecursionError as error:
        raise _damaged(path, error) from error
    if foreign:
        raise ConfigurationError(
            f"{path}: holds {', '.join(foreign)}. A model that is exported consists of Keras' own layers and "
            "functions, without Lambda. Write the layer with keras.layers or keras.ops in build_model."
        )
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path}: Keras refuses to load it safely ({reason(error)}).") from error
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def require_bounded(place: object, weights: IO[bytes], size: int) -> None:
    """Raise `DataError` if the HDF5 file `weights` of `size` bytes promises arrays that it does not hold.

    Those that were never written, or are compressed, take more memory than the file.
    """
    promised = 0

    def add(_: str, item: h5py.Group | h5py.Dataset) -> None:
        nonlocal promised
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise ValueError("an array in another file")
            promised += item.nbytes

    with h5py.File(weights, "r") as file:
        file.visititems(add)
    if promised > _size_limit(size):
        raise DataError(
            f"{place}: its arrays would take {promised:,} bytes, and the file has {size:,}. Keras writes none like it. "
            "Save the model again with Model.save."
        )


def in_float32(model: keras.Model) -> keras.Model:
    """Return `model` with every layer computing in float32: unchanged if it already does, otherwise a copy.

    Mixed precision keeps its variables in float32, so the copy loses nothing, and devices and CPU servers that know no
    bfloat16 can run it.
    """
    text = model.to_json()
    mixed = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")
    if not any(f'"{name}"' in text for name in mixed):
        return model
    for name in mixed:
        text = text.replace(f'"{name}"', '"float32"')
    copy = keras.models.model_from_json(text)
    copy.set_weights(model.get_weights())
    return copy


def output_name(task: Task) -> str:
    """Return the output name of `predictor` in the signatures of exported files."""
    return "prediction" if task == "regression" else "probabilities"


def predictor(model: keras.Model, task: Task) -> Callable[[Tensors], tf.Tensor]:
    """Return a function from model features (n, ...) to float32 probabilities (n, classes), or predictions.

    Predictions are (n,), of several targets (n, targets).
    """

    def predict(features: Tensors) -> tf.Tensor:
        outputs = tf.cast(model(features, training=False), tf.float32)
        match task:
            case "regression":
                return tf.squeeze(outputs, axis=-1) if outputs.shape[-1] == 1 else outputs
            case "classification":
                return tf.nn.softmax(outputs)
            case "multi_label":
                return tf.nn.sigmoid(outputs)
            case _:
                assert_never(task)

    return predict


def _config(path: Path) -> Any:
    """Return the configuration of the model at `path`. Raises `DataError` if the file is none that Keras wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            members, size = archive.infolist(), path.stat().st_size
            if any(member.flag_bits & 1 for member in members):
                raise ValueError("it is encrypted")
            if len({member.filename for member in members}) < len(members):
                raise ValueError("a member is there twice")
            if archive.getinfo(_CONFIG).file_size > _MOST_CONFIG_BYTES:
                raise ValueError(f"{_CONFIG} has more than {_MOST_CONFIG_BYTES:,} bytes")
            if sum(member.file_size for member in members) > _size_limit(size):
                raise ValueError("it unpacks to many times its size")
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} differs from its checksum")
            config = json.loads(archive.read(_CONFIG))
    except UNREADABLE as error:
        raise _damaged(path, error) from error
    if not isinstance(config, dict):
        raise _damaged(path, ValueError(f"{_CONFIG} is no object"))
    return config


def _require_weights(path: Path, config: dict[str, Any]) -> None:
    """Raise `DataError` if the layers of `config` need more memory than the weights beside it; nothing is allocated."""
    try:
        with zipfile.ZipFile(path) as archive:
            weights = archive.read(_WEIGHTS)
        require_bounded(path, io.BytesIO(weights), len(weights))
        if set(_foreign(config)):
            return  # `_load` names them, and nothing of theirs is built
        uncompiled = {**config, "compile_config": None}
        model = skeleton(lambda: keras.saving.deserialize_keras_object(uncompiled, safe_mode=True))
        needed = sum(_variable_bytes(variable) for variable in model.variables)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path}: Keras refuses to load it safely ({reason(error)}).") from error
    except UNREADABLE as error:
        raise _damaged(path, error) from error
    if needed > _size_limit(len(weights)):
        raise DataError(
            f"{path}: its layers would take {needed:,} bytes, and its weights have {len(weights):,}. They belong to "
            "another model. Save the model again with Model.save."
        )


def _variable_bytes(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * np.dtype(variable.dtype if variable.dtype != "bfloat16" else "int16").itemsize


def _size_limit(size: int) -> int:
    """Return the most bytes that a file of `size` bytes may stand for."""
    return _EXPANSION * size + _ROOM_BYTES


def _damaged(path: Path, error: BaseException) -> DataError:
    return DataError(
        f"{path}: not a .keras file, or damaged ({reason(error)}). Save the model again with Model.save, or run with "
        "--from train if a train step wrote it."
    )


def _foreign(config: Any) -> Iterator[str]:
    """Yield the parts of a serialized `config` that name code outside Keras.

    Source: https://keras.io/api/models/model_saving_apis: an object is named by module, class_name and registered_name.
    """
    if isinstance(config, dict):
        module, name = config.get("module"), config.get("class_name")
        registered = str(config.get("registered_name") or "")
        if name in ("Lambda", "__lambda__"):
            yield "a Lambda layer"
        elif "class_name" in config and not (isinstance(module, str | None) and isinstance(name, str)):
            yield f"the class '{str(module)[:40]}.{str(name)[:40]}', which is no name"
        elif isinstance(module, str) and module.split(".")[0] != "keras" and (module, name) != _FUNCTION_BY_NAME:
            yield f"the class '{module}.{name}'"
        elif ">" in registered:
            yield f"the registered class '{registered}'"
        for value in config.values():
            yield from _foreign(value)
    elif isinstance(config, list):
        for value in config:
            yield from _foreign(value)


def reason(error: BaseException) -> str:
    """Return the first line of `error` for a sentence."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:_LONGEST]


class Replicas(Generic[Model]):
    """A model on each GPU of this machine; without GPUs on each logical CPU, which is one by default.

    first: the model on TensorFlow's default device. load: returns it again, with its variables on the current device.
    """

    def __init__(self, first: Model, load: Callable[[], Model]) -> None:
        self.first = first
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        self._models: list[tuple[Model, str | None]] = [(first, None)]
        for device in devices[1:]:
            with tf.device(device.name):
                self._models.append((load(), device.name))

    def map(self, ask: Callable[[Model, Batch], Answer], batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answer]]:
        """Yield each batch with its answer, in order. A model is asked for one batch at a time, each in its thread.

        Each batch is computed whole by one device, so the answers do not depend on the number of devices. At most one
        batch more than there are devices is in memory.
        """
        if len(self._models) == 1:
            yield from ((batch, ask(self.first, batch)) for batch in batches)
            return

        def answer(model: Model, device: str | None, batch: Batch) -> Answer:
            with tf.device(device):
                return ask(model, batch)

        waiting: deque[tuple[Batch, Future[Answer]]] = deque()
        with ExitStack() as stack:
            threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in self._models]
            for number, batch in enumerate(batches):
                at = number % len(self._models)
                waiting.append((batch, threads[at].submit(answer, *self._models[at], batch)))
                if len(waiting) > len(self._models):
                    done, future = waiting.popleft()
                    yield done, future.result()
            for done, future in waiting:
                yield done, future.result()
