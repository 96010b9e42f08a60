"""`trainyard run`: train a recipe on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainyard.errors import ConfigurationError, ExitCode, GateRefused
from trainyard_control.cli.options import (
    LOCAL,
    Day,
    EnvironmentName,
    Label,
    Output,
    OutputFormat,
    Overrides,
    Step,
    print_answer,
    write_file,
)


def run(
    recipe: Annotated[
        str,
        typer.Argument(help="Bundled recipe, YAML file or its gs:// or s3:// URI; or data to draft a recipe from."),
    ] = "digits",
    label: Label = None,
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    from_step: Annotated[
        Step | None, typer.Option("--from", help="Run this step and the following ones again.")
    ] = None,
    require_blessed: Annotated[
        bool, typer.Option("--require-blessed", help="Exit with 60 if the gate refuses the model.")
    ] = False,
    no_push: Annotated[bool, typer.Option("--no-push", help="Export a blessed model without pushing it.")] = False,
    override: Annotated[
        str, typer.Option(metavar="REASON", help="Push a model that a gate refuses. The reason is recorded.")
    ] = "",
    day: Day = "",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Train a recipe on this machine, from data to a pushed model.

    The steps are preprocess, train, evaluate, export and push. Finished steps of earlier runs are reused, and an
    interrupted one is resumed. If you name data instead of a recipe, a recipe is drafted, saved in the current folder
    and run.
    """
    from trainyard.contract.artifacts.gate import REFUSED
    from trainyard_control import api
    from trainyard_control.api.run import INTERRUPTED
    from trainyard_control.cli.screen import show

    recipe = _recipe_or_draft(recipe, label)
    step = from_step.value if from_step else None
    try:
        done = api.run(
            recipe,
            environment=environment,
            set_=set_ or [],
            from_step=step,
            day=day,
            push=not no_push,
            override=override,
        )
    except KeyboardInterrupt:
        print(f"✗ {INTERRUPTED}", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    print_answer(output, done.summary, lambda: show(done))
    if require_blessed and done.verdict == "refused":
        raise GateRefused(f"{done.recipe}: {REFUSED} ({done.reason}).")


def _recipe_or_draft(recipe: str, label: str | None) -> str:
    """Return `recipe`; if it names data, draft a recipe, print and save it, and return its file."""
    from trainyard import escape
    from trainyard_control.api import arguments

    if not arguments.is_data(recipe):
        if label is not None:
            raise ConfigurationError(f"--label {label}: {recipe} is a recipe and names its label. Leave --label out.")
        return recipe
    file = arguments.recipe_file(recipe)
    text, _ = arguments.draft(recipe, file, label)
    if not file.exists():
        write_file(text, file, mode="x")
    elif file.read_text(encoding="utf-8") != text:
        raise ConfigurationError(
            f"{file}: already exists and differs from the recipe drafted from the data. Run it: trainyard run {file}. "
            "Or move it away."
        )
    typer.echo(escape.lines(text), err=True)
    return str(file)
