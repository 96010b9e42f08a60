"""`trainyard compile`: compile a recipe to a pipeline package for Kubeflow or Vertex AI."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.errors import ConfigurationError
from trainyard_control.cli.answers import say
from trainyard_control.cli.options import LOCAL, EnvironmentName, Overrides, PackageFile, RecipeName


def compile(
    recipe: RecipeName = "digits", environment: EnvironmentName = LOCAL, set_: Overrides = None, to: PackageFile = "-"
) -> None:
    """Compile a recipe into a pipeline package.

    Its steps are placed on the pools of the environment.
    """
    from trainyard_control import api

    write(to, api.compile(recipe, environment=environment, set_=set_ or []))


def write(file: str, text: str) -> None:
    """Write `text` to `file` atomically; '-' is stdout."""
    from trainyard import uris
    from trainyard.storage import storage

    if file == "-":
        sys.stdout.write(text)
        return
    if fault := uris.path_error(file):
        raise ConfigurationError(f"--to {file}: {fault}.")
    path = Path(file).absolute()
    try:
        if path.is_dir():
            raise ConfigurationError(f"--to {file}: is a folder. Name a file in it.")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe or a device such as /dev/null, which must not be replaced
        else:
            storage.write_text(str(path), text)
    except OSError as error:
        raise ConfigurationError(f"--to {file}: cannot be written ({error.strerror}). Name another file.") from error
    say(f"✓ wrote {file}", err=True)
