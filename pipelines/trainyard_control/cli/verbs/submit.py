"""`trainyard submit`: compile, place, upload and run a recipe on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard_control.cli.answers import say
from trainyard_control.cli.options import (
    Day,
    DryRun,
    EnvironmentName,
    Output,
    OutputFormat,
    Overrides,
    PendingLimit,
    RecipeName,
    RunName,
    Step,
    Wait,
)


def submit(
    environment: EnvironmentName,
    recipe: RecipeName = "digits",
    set_: Overrides = None,
    name: RunName = None,
    day: Day = "",
    no_cache: Annotated[
        Step | None,
        typer.Option("--no-cache", "--from", help="Run this step and the following ones again."),
    ] = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    pending_limit: PendingLimit = 3600,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Run a recipe on Kubeflow Pipelines or Vertex AI."""
    from trainyard.spec import recipe as recipes
    from trainyard_control.api.packages import prepare
    from trainyard_control.cli.follow import send_and_follow

    submission = prepare(recipe, environment, set_ or [], name, day, no_cache.value if no_cache else None)
    for key, _ in recipes.left_out(recipe, set_ or []):
        say(f"! {key}: is not a setting of the model and is left out", err=True)
    send_and_follow(submission, dry_run=dry_run, wait=wait, pending_limit=pending_limit, output=output)
