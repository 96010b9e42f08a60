"""Keras' published weights: downloaded by Keras once, and kept in the storage for other machines."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path

import keras
from keras.src.backend.config import keras_home  # Keras has no public name for it

from trainyard import events
from trainyard.contract.training.weights import FIELD
from trainyard.errors import DataError, TrainyardError, TransientError
from trainyard.models import applications
from trainyard.spec.networks import IMAGENET
from trainyard.spec.training.model import ModelConfig
from trainyard.storage import storage
from trainyard.storage.cache import locked
from trainyard.storage.disk import os_errors

_PRODUCER = "trainyard.weights"


def published(model: ModelConfig, storage_folder: str) -> keras.Model:
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
        folder = storage.local(uri, made_by="train")
        with os_errors(cache):
            for name in manifest.files:
                partial = cache / f".{name}.{os.getpid()}"
                shutil.copyfile(folder / name, partial)
                partial.rename(cache / name)
    except TrainyardError as error:
        events.emit("warning", message=f"{uri}: the weights kept there could not be used ({error})")
        if isinstance(error, DataError):
            storage.remove(uri)  # damaged: a new download replaces it


def _keep(names: set[str], cache: Path, uri: str) -> None:
    """Copy the files `names` of `cache` to `uri` for other machines."""
    try:
        with storage.stage(uri, producer=_PRODUCER) as folder:
            for name in names:
                shutil.copyfile(cache / name, folder / name)
    except TrainyardError as error:
        events.emit("warning", message=f"{uri}: the weights could not be kept there ({error})")


def _unreachable(name: str, reason: str) -> TransientError:
    return TransientError(
        f"{FIELD}: {IMAGENET}: the weights of {name} could not be fetched ({reason}). Check the network and run the "
        "same command again, or copy the file into Keras' cache (KERAS_HOME), or name a file of weights."
    )
