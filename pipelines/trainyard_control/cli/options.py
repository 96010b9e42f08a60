"""The arguments and options that several verbs have, each with one spelling and one help text."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How the answer is written to stdout."""

    TEXT = "text"
    JSON = "json"


class Step(StrEnum):
    """The steps in their order."""

    PREPROCESS = "preprocess"
    TRAIN = "train"
    EVALUATE = "evaluate"
    EXPORT = "export"
    PUSH = "push"


RecipeName = Annotated[str, typer.Argument(help="Name of a bundled recipe, or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value, such as train.epochs=3.")
]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="text, or one JSON object on stdout.")]
