"""Uploads local data, weights, teachers, packages and larger code of a recipe to a cluster's storage, before a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainyard import quantity, uris
from trainyard.errors import ConfigurationError
from trainyard.measured import duration_text
from trainyard.spec.environment import Environment
from trainyard.spec.networks import IMAGENET
from trainyard.storage import uploads
from trainyard.storage.uploads import Upload
from trainyard_control.cluster import environments
from trainyard_control.compiler.compilation import reachable, takes_uploads, with_code

if TYPE_CHECKING:
    from trainyard.spec.recipe import Recipe

LIMIT = "5Gi"
"""The most that is uploaded without a question. Chosen: a few minutes of an office's connection."""

Confirm = Callable[[str], bool]
"""Asks the person, and returns True for yes."""


def with_uploads(recipe: Recipe, environment: Environment) -> tuple[Recipe, dict[str, Upload]]:
    """Return `recipe` with the URIs that its local files will have in the storage, and their uploads by recipe key.

    Nothing is sent. A window of days is not uploaded: its files change.
    """
    if not takes_uploads(environment):
        return with_code(recipe, environment)
    teacher = recipe.train.teacher
    paths = {
        "data.path": None if recipe.data.window_days else recipe.data.path,
        "model.weights": recipe.model.weights,
        "train.teacher.model": teacher.model if teacher else None,
    }
    found = {
        key: uploads.plan(path, environment.storage, f"{recipe.name}: {key}")
        for key, path in paths.items()
        if path and path != IMAGENET and not reachable(path, environment)
    }
    for key, upload in found.items():
        recipe = _replaced(recipe, key.split("."), upload.uri)
    recipe, code = with_code(recipe, environment)
    return recipe, found | code


def send(
    named: dict[str, Upload], environment: Environment, limit: str = LIMIT, confirm: Confirm | None = None
) -> list[str]:
    """Upload what `environment`'s storage lacks of `named`, with a bar on a terminal, and return a sentence for each.

    If that is more than `limit`, `confirm` is asked; without it, or with no as the answer, it is refused with
    `ConfigurationError`, and nothing is sent.
    """
    if named:
        environments.readable_storage(environment)
    lacking = {name: uploads.missing(upload) for name, upload in named.items()}
    sizes = {name: sum(named[name].files[path].bytes for path in paths or ()) for name, paths in lacking.items()}
    total = sum(sizes.values())
    if total > _bytes(limit):
        seconds = sum(uploads.seconds_for(named[name], size) for name, size in sizes.items())
        text = f"{_size(total)} of {', '.join(named)} would be uploaded, in about {duration_text(seconds)}"
        if confirm is None or not confirm(text):
            raise ConfigurationError(
                f"--upload-limit {limit}: {text}. Nothing was sent. Raise the limit, or name data in a bucket."
            )
    return [_sent(name, upload, lacking[name], sizes[name]) for name, upload in named.items()]


def upload(path: str, environment: str, limit: str = LIMIT, confirm: Confirm | None = None) -> tuple[str, str]:
    """Upload a file, a folder or a glob to the storage of an environment; return its URI there, and a sentence."""
    loaded = environments.load(environment)
    if why := uris.path_error(path) or ("is in a bucket already" if uris.is_bucket(path) else ""):
        raise ConfigurationError(f"{uris.without_secrets(path)[:200]}: {why}.")
    if not takes_uploads(loaded):
        raise ConfigurationError(
            f"{loaded.name}: '{path}' is on this machine, and the storage {loaded.storage} is no bucket and no volume. "
            "Copy it to a folder that the steps mount, and name that."
        )
    planned = uploads.plan(os.path.abspath(path), loaded.storage, loaded.name)  # noqa: PTH100 - keeps a glob
    (sentence,) = send({path: planned}, loaded, limit, confirm)
    return planned.uri, sentence


def _sent(name: str, upload: Upload, lacking: list[str] | None, size: int) -> str:
    if lacking is None:
        return f"{name}: is in {upload.folder} already"
    from trainyard_control.api.progress import transfer_bar

    with transfer_bar(name, size) as progress:
        uploads.send(upload, lacking, progress)
    rest = f" (the other {_size(upload.bytes - size)} were there)" if size < upload.bytes else ""
    files = f"{len(lacking):,} files" if len(lacking) != 1 else "1 file"
    return f"{name}: {files}, {_size(size)} uploaded to {upload.folder}{rest}"


def _bytes(limit: str) -> float:
    try:
        return quantity.in_bytes(limit)
    except ValueError as error:
        raise ConfigurationError(f"--upload-limit {limit[:100]!r}: is not a size. Give one such as 20Gi.") from error


def _size(count: int) -> str:
    unit, size = ("GiB", 1 << 30) if count >= 1 << 30 else ("MiB", 1 << 20) if count >= 1 << 20 else ("KiB", 1 << 10)
    return f"{count / size:,.1f} {unit}"


def _replaced(model: Recipe, names: list[str], value: str) -> Recipe:
    """Return a copy of a model whose field `names`, of models in it, has another value."""
    name, *rest = names
    inner = getattr(model, name)
    return model.model_copy(update={name: _replaced(inner, rest, value) if rest else value})
