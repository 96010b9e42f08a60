"""`trainyard compile`: a recipe as a pipeline package for Kubeflow or Vertex AI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainyard_control.cli.options import Overrides, RecipeName


def compile(
    recipe: RecipeName = "digits",
    environment: Annotated[
        str, typer.Option("--environment", "-e", help="local, kind, gke, vertex, or a YAML file.")
    ] = "local",
    set_: Overrides = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="- is stdout.")] = "-",
) -> None:
    """Compile a recipe into a pipeline package, placed on the pools of an environment."""
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.compiler.compilation import compiled, to_yaml

    placed = compiled(recipes.load(recipe, set_), environments.load(environment))
    write(output, to_yaml(placed.documents))


def write(output: str, text: str) -> None:
    """Leave `text` in the file `output`, whole or not at all; '-' is stdout."""
    from trainyard import uris
    from trainyard.errors import ConfigurationError
    from trainyard.storage import storage

    if output == "-":
        sys.stdout.write(text)
        return
    if fault := uris.fault(output):
        raise ConfigurationError(f"--output {output}: {fault}.")
    file = Path(output).absolute()
    try:
        if file.is_dir():
            raise ConfigurationError(f"--output {output}: is a folder. Name a file in it.")
        if file.exists() and not file.is_file():
            file.write_text(text, encoding="utf-8")  # a pipe or a device such as /dev/null, which must not be replaced
        else:
            storage.write_text(str(file), text)
    except OSError as error:
        raise ConfigurationError(
            f"--output {output}: cannot be written ({error.strerror}). Name another file."
        ) from error
    typer.echo(f"✓ wrote {output}", err=True)
