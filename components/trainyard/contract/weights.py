"""The trained weights that a recipe begins with: what names their content, and how they come to this machine."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainyard.errors import ConfigurationError
from trainyard.spec.networks import IMAGENET
from trainyard.spec.recipe import Recipe
from trainyard.storage import listing, storage
from trainyard.storage.buckets import bucket_source
from trainyard.storage.disk import os_errors
from trainyard.storage.source_stream import open_file

FIELD = "model.weights"
KERAS, HDF5 = ".keras", ".weights.h5"
_CHUNK = 1 << 20  # chosen: bytes


def digest(recipe: Recipe) -> str:
    """Return what names the content of the weights that `recipe` begins with, '' if it draws its own.

    A local file counts with its SHA-256, an object of a bucket with size and checksum, a pushed version with its
    manifest, and those of Keras with their name: Keras, whose version is in the key, knows their digests.

    Raises `DataError` if there are none at that place, `ConfigurationError` if it is a file of another kind,
    `TransientError` if a bucket cannot be reached.
    """
    weights = recipe.model.weights
    if weights is None or weights == IMAGENET:
        return weights or ""
    if not is_file(weights):
        return _pushed(weights)
    files = listing.list_files(weights, FIELD).files
    if len(files) != 1 or files[0].reason:
        raise ConfigurationError(
            f"{FIELD}: {weights}: {files[0].detail if files else 'there is no such file'}. Name a {KERAS} or "
            f"{HDF5} file, the folder of a pushed version, or {IMAGENET}."
        )
    if storage.is_bucket(weights):
        return f"{files[0].bytes} {files[0].state}"
    found = hashlib.sha256()
    with _opened(weights) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def is_file(weights: str) -> bool:
    """Return whether `weights` names a file of weights, and not the folder of a pushed version."""
    return weights.endswith((KERAS, HDF5))


@contextmanager
def local_file(weights: str) -> Iterator[Path]:
    """Yield the file `weights` on this machine; a bucket's is copied for the block. Raises as `digest`."""
    if not storage.is_bucket(weights):
        yield Path(weights)
        return
    with os_errors(Path(tempfile.gettempdir())):
        temporary = tempfile.TemporaryDirectory(prefix="trainyard-")
    with temporary as folder:
        path = Path(folder) / weights.rpartition("/")[2]
        with _opened(weights) as stream, os_errors(path), path.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
        yield path


def _pushed(folder: str) -> str:
    manifest = storage.committed(folder)
    if manifest is None:
        raise ConfigurationError(
            f"{FIELD}: {folder}: is neither a {KERAS} or {HDF5} file nor a version that Trainyard pushed, such as "
            f"models/3. Name one of them, or {IMAGENET}."
        )
    return manifest.digest


@contextmanager
def _opened(weights: str) -> Iterator[IO[bytes]]:
    """Yield the bytes of the file `weights`."""
    with (
        os_errors(Path(weights), "read"),
        bucket_source.source_errors(f"{FIELD}: {weights}", FIELD),
        open_file(weights) as stream,
    ):
        yield stream
