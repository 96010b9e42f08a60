"""Initializes a network with trained weights, matched by name and shape; executes nothing of a file."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.backend.config import keras_home  # Keras has no public name for it

from trainyard import events
from trainyard.contract import version
from trainyard.contract import weights as source
from trainyard.contract.version import EXTRA
from trainyard.contract.weights import FIELD
from trainyard.data import trained
from trainyard.data.trained import UNREADABLE
from trainyard.errors import ConfigurationError, DataError, TrainyardError, TransientError, listed
from trainyard.models import applications
from trainyard.spec.model import ModelConfig
from trainyard.spec.networks import IMAGENET
from trainyard.storage import storage
from trainyard.storage.cache import locked
from trainyard.storage.disk import os_errors

HEAD = "logits"
"""The output layer of every named image network; all other layers are its backbone."""

_LISTED = 3  # differences in a sentence

Arrays = Mapping[str, np.ndarray]


def load_weights(model: ModelConfig, network: keras.Model, labels: list[str] | None, published_at: str = "") -> None:
    """Load the weights that model.weights names into `network`, built from `model`.

    published_at: the storage folder that keeps Keras' published weights, '' for none. The head is loaded only from a
    pushed version with the same classes, `labels`: a head of other classes is a worse start than a new one.

    Raises `ConfigurationError` if another layer is missing, superfluous or of another shape, `DataError` if the file is
    damaged, `TransientError` if it cannot be fetched.
    """
    weights = model.weights or ""
    arrays = _by_name(published_network(model, published_at)) if weights == IMAGENET else _arrays(weights, network)
    variables = {variable.path: variable for variable in network.weights}
    head = {name for name in variables.keys() | arrays.keys() if name.startswith(f"{HEAD}/")}
    body = {name for name in variables.keys() | arrays.keys() if name not in head}
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if differences := _differences(shapes, arrays, body):
        raise ConfigurationError(
            f"{FIELD}: {weights}: of another network than '{model.name}' is for these images: "
            f"{listed(differences, _LISTED, '; ')}. "
            "Give model.name, data.image_size and data.channels that they were trained with, or other weights."
        )
    same_head = _labels(weights) == (labels or []) and not _differences(shapes, arrays, head)
    for name in body | head if same_head else body:
        variables[name].assign(arrays[name])
    events.emit("weights", source=weights, variables=len(body), head="kept" if same_head else "new")


def _differences(shapes: Mapping[str, tuple[int, ...]], arrays: Arrays, names: set[str]) -> list[str]:
    """Describe how `arrays` differ from variables of `shapes` among `names`, one phrase a layer."""
    phrases: dict[str, str] = {}
    for name in sorted(names):
        layer = name.rpartition("/")[0] or name
        if name not in arrays:
            phrases.setdefault(layer, f"the layer {layer} is missing")
        elif name not in shapes:
            phrases.setdefault(layer, f"the layer {layer} is not in the network")
        elif shapes[name] != arrays[name].shape:
            phrases.setdefault(layer, f"{name} is {arrays[name].shape} and not {shapes[name]}")
    return list(phrases.values())


def _arrays(weights: str, network: keras.Model) -> Arrays:
    """Return the arrays of the file or pushed version `weights` by variable name."""
    if not source.is_file(weights):
        return _by_name(trained.load_pushed(weights))
    with source.local_file(weights) as path:
        if weights.endswith(source.KERAS):
            return _by_name(trained.load_foreign(path))
        return _from_hdf5(weights, path, network)


def _by_name(network: keras.Model) -> Arrays:
    return {variable.path: variable.numpy() for variable in network.weights}


def _from_hdf5(weights: str, path: Path, network: keras.Model) -> Arrays:
    """Return the arrays that Model.save_weights wrote to `path`, by the variable names of `network`.

    The file numbers the arrays of a layer. Keras' editor reads arrays only, and refuses links and virtual data.
    """
    try:
        with path.open("rb") as stream:
            trained.require_bounded(f"{FIELD}: {weights}", stream, path.stat().st_size)
        with contextlib.redirect_stdout(io.StringIO()):
            layers = _Editor(str(path))
    except UNREADABLE as error:
        raise DataError(
            f"{FIELD}: {weights}: Keras refuses to read it safely ({first_line(error)}). Save it again with "
            "Model.save_weights."
        ) from error
    names: dict[str, list[str]] = {}
    for layer in network.layers:
        for variable in layer.weights:
            names.setdefault(variable.path.rpartition("/")[0], []).append(variable.path)
    arrays: dict[str, np.ndarray] = {}
    for group, numbered in _groups(layers.weights_dict):
        owner = _layer_name(layers.object_metadata, group)
        for number, value in numbered.items():
            position = int(number) if number.isdigit() else -1
            known = names.get(owner, [])
            name = known[position] if 0 <= position < len(known) else f"{owner}/{number}"
            arrays[name] = np.asarray(value)
            if arrays[name].dtype.kind not in "fiub":
                raise DataError(f"{FIELD}: {weights}: {name} holds no numbers. Save it again with Model.save_weights.")
    return arrays


class _Editor(keras.saving.KerasFileEditor):
    """Also reads nested layers, such as those of attention, which Keras 3.15 leaves out."""

    def _extract_weights_from_store(
        self, data: Mapping[str, Any], metadata: dict[str, Mapping[str, object]] | None = None, inner_path: str = ""
    ) -> tuple[dict[str, Any], dict[str, Mapping[str, object]]]:
        result, metadata = super()._extract_weights_from_store(data, metadata, inner_path)  # refuses links in `data`
        for key, group in data.items():
            if isinstance(group, Mapping) and "vars" in group and len(group) > 1:
                inside, metadata = self._extract_weights_from_store(group, metadata, f"{inner_path}/{key}")
                result[key] = {**inside.pop("vars", {}), **inside}
                metadata[f"{inner_path}/{key}"] = dict(group["vars"].attrs)
        return result, metadata


def _layer_name(metadata: Mapping[str, Mapping[str, object]], group: str) -> str:
    """Return the name of the layer at `group`, prefixed by its parent layers' names."""
    parts = group.split("/")
    paths = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
    return "/".join(str(metadata[path]["name"]) for path in paths if "name" in metadata.get(path, {})) or parts[-1]


def _groups(tree: Mapping[str, object], path: str = "") -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """Yield each group of `tree` with its arrays, except those of optimizers and seed generators."""
    arrays = {name: value for name, value in tree.items() if not isinstance(value, Mapping)}
    if arrays:
        yield path, arrays  # type: ignore[misc]
    for name, value in tree.items():
        if isinstance(value, Mapping) and name not in ("optimizer", "seed_generator"):
            yield from _groups(value, f"{path}/{name}" if path else name)


def _labels(weights: str) -> list[str] | None:
    """Return the classes of `weights`, None if unknown."""
    if weights == IMAGENET or source.is_file(weights):
        return None
    return version.names(weights, f"{EXTRA}/{version.LABELS}")


_PRODUCER = "trainyard.weights"


def published_network(model: ModelConfig, storage_folder: str) -> keras.Model:
    """Return the body of the named network with its published weights, verified by Keras.

    They come from Keras' cache, otherwise from `storage_folder` ('' for none), otherwise from their server, and are
    then kept in both. Raises `DataError` if the bytes are wrong, `TransientError` if the download fails.
    """
    name = model.name or ""
    uri = storage.join(storage_folder, f"{name}-{model.width:g}") if storage_folder else ""
    cache = Path(keras_home()) / "models"
    with os_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
    try:
        # Keras prints progress to stdout, which is for events; the lock makes other processes wait for the download.
        with locked(cache), contextlib.redirect_stdout(io.StringIO()):
            if uri:
                _fetch(uri, cache)
            before = _files(cache)
            body = applications.published(model)
            if uri and (new := _files(cache) - before):
                _keep(new, cache, uri)
            return body
    except OSError as error:
        raise _unreachable(name, str(error.strerror or error)) from error
    except ValueError as error:
        raise DataError(
            f"{FIELD}: {IMAGENET}: the downloaded weights of {name} are not those that Keras published "
            f"({first_line(error)}). Check the proxy, and run the same command again."
        ) from error
    except Exception as error:
        if type(error) is not Exception:  # what keras.utils.get_file raises if the server cannot be reached
            raise
        raise _unreachable(name, first_line(error)) from error


def first_line(error: Exception) -> str:
    """Return the first line of one of Keras' long messages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _files(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("*") if path.is_file()}


def _fetch(uri: str, cache: Path) -> None:
    """Copy files that are missing in `cache` from `uri`; Keras verifies their digests."""
    try:
        manifest = storage.committed(uri)
        if manifest is None or all((cache / name).exists() for name in manifest.files):
            return
        folder = storage.local(uri)
        with os_errors(cache):
            for name in manifest.files:
                partial = cache / f".{name}.{os.getpid()}"
                shutil.copyfile(folder / name, partial)
                partial.rename(cache / name)
    except TrainyardError as error:
        events.warn(f"{uri}: the weights kept there could not be used ({error})")
        if isinstance(error, DataError):
            storage.remove(uri)  # damaged: a new download replaces it


def _keep(names: set[str], cache: Path, uri: str) -> None:
    """Copy the files `names` of `cache` to `uri` for other machines."""
    fault = f"{uri}: the weights could not be kept there"
    with events.warned(fault, TrainyardError), storage.stage(uri, producer=_PRODUCER) as folder:
        for name in names:
            shutil.copyfile(cache / name, folder / name)


def _unreachable(name: str, reason: str) -> TransientError:
    return TransientError(
        f"{FIELD}: {IMAGENET}: the weights of {name} could not be fetched ({reason}). Check the network and run the "
        "same command again, or copy the file into Keras' cache (KERAS_HOME), or name a file of weights."
    )
