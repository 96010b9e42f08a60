"""`trainyard place`: place a compiled pipeline on the pools of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.answers import say, say_table
from trainyard_control.cli.options import LOCAL, EnvironmentName, PackageFile

_HEAD = ("task", "step", "pool", "accelerators")
_MAX_BYTES = 4 << 20  # chosen: a hundred times the catalog's pipelines


def place(
    file: Annotated[Path, typer.Argument(help="Pipeline package from `kfp dsl compile`.")],
    environment: EnvironmentName = LOCAL,
    to: PackageFile = "-",
) -> None:
    """Place a compiled pipeline on the pools of an environment."""
    from trainyard.spec import environment as environments
    from trainyard_control.cli.verbs.compile import write
    from trainyard_control.compiler import placement
    from trainyard_control.compiler.compilation import to_yaml

    spec, platform = _read(file)
    loaded = environments.load(environment)
    placed = placement.place(spec, loaded, platform)
    for sentence in placement.bounded_retries(placed, loaded):
        say(f"! {sentence}", err=True)
    if rows := placement.table(spec, loaded):
        say_table([_HEAD, *rows], err=True)
    write(to, to_yaml(placed.documents))


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read the IR in `file`, and the platform spec if the package has one."""
    from trainyard.spec import plain_yaml
    from trainyard.spec.documents import read_text

    text = read_text(file, _MAX_BYTES)
    try:
        documents = plain_yaml.load_all(text)
    except ValueError as error:
        raise ConfigurationError(f"{file}: not valid YAML ({error}). Name a compiled pipeline.") from error
    spec = documents[0] if documents else None
    if not isinstance(spec, dict) or not {"root", "components", "deploymentSpec"} <= spec.keys() or len(documents) > 2:
        raise ConfigurationError(
            f"{file}: not a compiled pipeline, no root, components and deploymentSpec in it. "
            "Write one with `kfp dsl compile` or `trainyard compile`."
        )
    return spec, documents[1] if len(documents) == 2 else None
