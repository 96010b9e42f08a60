"""The trained model as later steps may use it: its bytes verified, no code of its own, in float32."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainyard.contract import version
from trainyard.contract.champion import EXTRA
from trainyard.data.examples import Tensors as Tensors
from trainyard.errors import ConfigurationError, DataError
from trainyard.graph import producer
from trainyard.spec.gates import Task
from trainyard.storage import storage

FILE = "model.keras"
PRODUCER = producer("train")

_FUNCTION_BY_NAME = ("builtins", "function")  # how Keras writes a function of its own, such as an activation


def load(uri: str) -> keras.Model:
    """Return the model of the train step's committed folder `uri`, in the precision it was trained in.

    Raises `DataError` if the file is not the one the step wrote, `ConfigurationError` if it holds a Lambda layer
    or a class of somebody's own: such code would travel with the model and is not run here.
    """
    manifest = storage.require(uri, "train")
    path = storage.local(uri, "train") / FILE
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
    manifest, name = storage.require(folder, "push"), f"{EXTRA}/{FILE}"
    path = storage.local(folder, "push") / name
    if manifest.producer != version.PRODUCER or name not in manifest.files:
        raise ConfigurationError(
            f"{path}: no model that Trainyard pushed. Add keras to export.formats and push a model with it first."
        )
    return load_file(path)


def load_file(path: Path) -> keras.Model:
    """Return the Keras model at `path`, built from Keras' own classes alone; raises `ConfigurationError` otherwise."""
    foreign = sorted(set(_foreign(_config(path))))
    if foreign:
        raise ConfigurationError(
            f"{path}: holds {', '.join(foreign)}. A model that is exported consists of Keras' own layers and "
            "functions, without Lambda. Write the layer with keras.layers or keras.ops in build_model."
        )
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except (ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"{path}: Keras refuses to load it safely ({reason}).") from error


def in_float32(model: keras.Model) -> keras.Model:
    """Return `model` with every layer computing in float32: itself if that is so already, else a copy.

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
    """Return what `predictor` gives is called in the signatures of exported files."""
    return "prediction" if task == "regression" else "probabilities"


def predictor(model: keras.Model, task: Task) -> Callable[[Tensors], tf.Tensor]:
    """Return a function from model features (n, ...) to float32 probabilities (n, classes), or predictions.

    Predictions are (n,), of several targets (n, targets).
    """

    def predict(features: Tensors) -> tf.Tensor:
        outputs = tf.cast(model(features, training=False), tf.float32)
        if task == "regression":
            return tf.squeeze(outputs, axis=-1) if outputs.shape[-1] == 1 else outputs
        return tf.nn.softmax(outputs) if task == "classification" else tf.nn.sigmoid(outputs)

    return predict


def _config(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a .keras file ({error}). Run with --from train to write it again.") from error


def _foreign(config: Any) -> Iterator[str]:
    """Yield what in a serialized `config` is code that Keras did not bring.

    Source: https://keras.io/api/models/model_saving_apis: an object is named by module, class_name and registered_name.
    """
    if isinstance(config, dict):
        module, name = config.get("module"), config.get("class_name")
        registered = str(config.get("registered_name") or "")
        if name in ("Lambda", "__lambda__"):
            yield "a Lambda layer"
        elif isinstance(module, str) and module.split(".")[0] != "keras" and (module, name) != _FUNCTION_BY_NAME:
            yield f"the class '{module}.{name}'"
        elif ">" in registered:
            yield f"the registered class '{registered}'"
        for value in config.values():
            yield from _foreign(value)
    elif isinstance(config, list):
        for value in config:
            yield from _foreign(value)
