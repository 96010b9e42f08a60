"""A pushed model behind HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trainyard import uris
from trainyard.contract import keys
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import documents
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard_control.api.model import require_tensorflow

if TYPE_CHECKING:
    from trainyard.serving.versions import ServingVersion

_NAME = re.compile(r"[\w.-]+")


def serve(
    model: str,
    *,
    environment: str,
    host: str,
    port: int,
    name: str | None,
    reload_seconds: float,
    request_bytes: int,
    started: Callable[[str, ServingVersion], None],
) -> None:
    """Serve `model`, named as for `load`, until SIGTERM or Ctrl-C; see `trainyard.serving.run.serve`.

    Raises `DataError` if there is no model, `ConfigurationError` if it cannot be served here.
    """
    folder, default = _folder(model, environment)
    name = name or default
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"--name {name[:100]!r}: letters, digits, '.', '_' and '-' are allowed. Give another.")
    require_tensorflow()
    if find_spec("aiohttp") is None or find_spec("prometheus_client") is None:
        raise ConfigurationError("aiohttp is not installed; the server needs it. Install trainyard[cpu].")
    from trainyard.serving.run import Options, serve

    serve(Options(folder, name, host, port, reload_seconds, request_bytes), started)


def _folder(model: str, environment: str) -> tuple[str, str]:
    """Return the folder of a version or of versions that `model` names, and a name for URLs."""
    why = uris.path_error(model)
    if why and uris.is_bucket(model):
        raise DataError(f"{uris.without_secrets(model)}: {why}.")
    if (uris.is_bucket(model) and not documents.is_file_name(model)) or (not why and os.path.isdir(model)):  # noqa: PTH112 - False for impossible names
        folder = model.rstrip("/") if uris.is_bucket(model) else os.path.realpath(model)
        parts = [part for part in folder.split("/") if not part.isdecimal() and part != "models"]
        return folder, (re.sub(r"[^\w.-]+", "-", parts[-1]) if parts else "") or "model"
    recipe = recipes.load(model)
    return keys.models_folder(environments.load(environment).storage, recipe), recipe.name
