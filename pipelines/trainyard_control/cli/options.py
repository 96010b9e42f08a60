"""Arguments and options that several verbs share, each with one spelling and one help text."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainyard.graph import OUTPUTS


class Output(StrEnum):
    """The format of the answer on stdout."""

    TEXT = "text"
    JSON = "json"


Step = StrEnum("Step", {name.upper(): name for name in OUTPUTS})  # type: ignore[misc]  # python/mypy#2401

RecipeName = Annotated[str, typer.Argument(help="Bundled recipe, YAML file, or its gs:// or s3:// URI.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value, such as train.epochs=3.")
]
EnvironmentName = Annotated[
    str,
    typer.Option(
        "--environment", "-e", help="Name of a bundled environment (local, kind, gke, vertex), or a YAML file."
    ),
]
LOCAL = "local"  # the environment of every verb that is given none
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="Form of the answer on stdout.")]
PackageFile = Annotated[str, typer.Option("--to", metavar="FILE", help="File to write; - is stdout.")]
Day = Annotated[
    str, typer.Option("--day", help="Day of the run, YYYY-MM-DD, if the recipe reads a window of days; else today.")
]
RunName = Annotated[
    str | None, typer.Option("--name", help="The run's name: given twice, there is one run, and the second follows it.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the run, and exit with its exit code.")]
PendingLimit = Annotated[
    int,
    typer.Option("--pending-limit", min=1, help="Seconds that a step of a run that is followed may wait for a node."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Label = Annotated[str | None, typer.Option("--label", help="Column to predict, if no recipe names it.")]
HtmlPage = Annotated[Path | None, typer.Option("--html", help="Write a page with pictures too.")]
