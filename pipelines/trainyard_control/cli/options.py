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
VersionName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Recipe, folder of versions or its URI; @VERSION or @ALIAS chooses one."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value, such as train.epochs=3.")
]
EnvironmentName = Annotated[
    str,
    typer.Option("--environment", "-e", help="Bundled environment (local, kind, gke, vertex), or a YAML file."),
]
LOCAL = "local"  # the default environment
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
PackageFile = Annotated[str, typer.Option("--to", metavar="FILE", help="File to write; - is stdout.")]
Day = Annotated[
    str, typer.Option("--day", help="Day of the run, YYYY-MM-DD, for recipes with window_days. Default: today.")
]
RunName = Annotated[str | None, typer.Option("--name", help="Name of the run. The same name follows an existing run.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the run to its end, and exit with its exit code.")]
PendingLimit = Annotated[
    int,
    typer.Option("--pending-limit", min=1, help="Cancel the run if a step waits longer for a node, in seconds."),
]
ModelName = Annotated[
    str | None, typer.Option("--model-name", help="Model name on the server. Default: the recipe's or the folder's.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")]
Label = Annotated[str | None, typer.Option("--label", help="Column to predict.")]
HtmlPage = Annotated[Path | None, typer.Option("--html", help="Also write an HTML page.")]
