"""The arguments and options that several verbs have, each with one spelling and one help text."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from trainyard.graph import OUTPUTS


class Output(StrEnum):
    """How the answer is written to stdout."""

    TEXT = "text"
    JSON = "json"


Step = StrEnum("Step", {name.upper(): name for name in OUTPUTS})  # type: ignore[misc]  # python/mypy#2401: names of a table

RecipeName = Annotated[str, typer.Argument(help="Name of a bundled recipe, or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value, such as train.epochs=3.")
]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="text, or one JSON object on stdout.")]
