"""The trained weights that a recipe begins with, and its teacher: what names their content, and how they come here."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainyard.errors import ConfigurationError
from trainyard.spec.networks import IMAGENET
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache, listing, storage
from trainyard.storage.buckets import bucket_source
from trainyard.storage.disk import os_errors
from trainyard.storage.listing import open_file

FIELD = "model.weights"
TEACHER = "train.teacher"
KERAS, HDF5 = ".keras", ".weights.h5"
_CHUNK = 1 << 20  # chosen: bytes


def digest(recipe: Recipe) -> str:
    """Return a digest of the recipe's initial weights and teacher; '' without either.

    A local file counts with its SHA-256, an object of a bucket with size and checksum, a pushed version with its
    manifest, and those of Keras with their name: Keras, whose version is in the key, knows their digests.

    Raises `DataError` if there are none at that place, `ConfigurationError` if it is a file of another kind,
    `TransientError` if a bucket cannot be reached.
    """
    teacher = recipe.train.teacher
    taught = [_pushed(teacher.model, TEACHER, "the folder of a version")] if teacher else []
    return " ".join(filter(None, [_first_weights(recipe.model.weights), *taught]))


def _first_weights(weights: str | None) -> str:
    if weights is None or weights == IMAGENET:
        return weights or ""
    if not is_file(weights):
        return _pushed(weights, FIELD, f"a {KERAS} or {HDF5} file or the folder of a version")
    files = listing.list_files(weights, FIELD).files
    if len(files) != 1 or files[0].reason:
        raise ConfigurationError(
            f"{FIELD}: {weights}: {files[0].detail if files else 'there is no such file'}. Name a {KERAS} or "
            f"{HDF5} file, the folder of a pushed version, or {IMAGENET}."
        )
    if storage.is_bucket(weights):
        return f"{files[0].bytes} {files[0].state}"
    digest = hashlib.sha256()
    with _opened(weights) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def is_file(weights: str) -> bool:
    """Return True if `weights` names a file, not the folder of a pushed version."""
    return weights.endswith((KERAS, HDF5))


@contextmanager
def local_file(weights: str) -> Iterator[Path]:
    """Yield the file `weights` on this machine; a bucket's is copied for the block. Raises as `digest`."""
    if not storage.is_bucket(weights):
        yield Path(weights)
        return
    with cache.temporary_folder() as folder:
        path = folder / weights.rpartition("/")[2]
        with _opened(weights) as stream, os_errors(path), path.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
        yield path


def _pushed(folder: str, field: str, allowed: str) -> str:
    manifest = storage.committed(folder)
    if manifest is None:
        raise ConfigurationError(
            f"{field}: {folder}: is not {allowed} that Trainyard pushed, such as models/3. Name one."
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
