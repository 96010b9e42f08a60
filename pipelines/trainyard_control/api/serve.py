"""A pushed model behind HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trainyard.contract.serving import split_name
from trainyard.errors import ConfigurationError
from trainyard_control.api.model import model_uri, require_tensorflow

if TYPE_CHECKING:
    from trainyard.serving.run import Addresses
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
    grpc_port: int | None,
    started: Callable[[Addresses, ServingVersion], None],
) -> None:
    """Serve `model`, named as for `load`, until SIGTERM or Ctrl-C; see `trainyard.serving.run.serve`.

    Raises `DataError` if there is no model, `ConfigurationError` if it cannot be served here.
    """
    folder = model_uri(model, environment)
    name = name or default_name(folder)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--model-name {name[:100]!r}: letters, digits, '.', '_' and '-' are allowed. Give another."
        )
    require_tensorflow()
    if find_spec("aiohttp") is None or find_spec("prometheus_client") is None:
        raise ConfigurationError("aiohttp is not installed; the server needs it. Install trainyard[cpu].")
    from trainyard.serving.run import Options, serve

    serve(Options(folder, name, host, port, reload_seconds, request_bytes, grpc_port), started)


def default_name(folder: str) -> str:
    """Return the name in URLs of a model in `folder`: the folder above its versions."""
    parts = split_name(folder)[0].rstrip("/").split("/")
    names = [part for part in parts if part not in ("", ".", "..", "models") and not part.isdecimal()]
    return re.sub(r"[^\w.-]+", "-", names[-1]) if names else "model"
