"""`trainyard run`: train a recipe on this machine or on a cluster, and wait for its end."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainyard.errors import ExitCode, GateRefused
from trainyard_control.cli.options import (
    LOCAL,
    Day,
    EnvironmentName,
    Label,
    Output,
    OutputFormat,
    Overrides,
    PendingLimit,
    RecipeOrData,
    RunName,
    Step,
    UploadLimit,
    print_answer,
    recipe_or_draft,
    say_left_out,
)


def run(
    recipe: RecipeOrData = "digits",
    label: Label = None,
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    name: RunName = None,
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
    pending_limit: PendingLimit = 3600,
    upload_limit: UploadLimit = "5Gi",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Train a recipe, from data to a pushed model.

    The steps are preprocess, train, evaluate, export and push. Finished steps of earlier runs are reused, and an
    interrupted one is resumed. If you name data instead of a recipe, a recipe is drafted, saved in the current folder
    and run.

    With the environment of a cluster, local data, weights and a teacher are uploaded to its storage, the run is
    submitted and followed to its end, and its report is saved in the current folder. `submit` does not wait.
    """
    from trainyard.contract.artifacts.gate import REFUSED
    from trainyard_control.api.cluster_run import require_followed
    from trainyard_control.api.run import check_options
    from trainyard_control.cluster import environments

    loaded = environments.load(environment)
    check_options(loaded, push=not no_push, override=override, name=name)
    require_followed(loaded)
    recipe = recipe_or_draft(recipe, label, loaded)
    step = from_step.value if from_step else None
    if loaded.target == "local":
        name, refused = _run_here(recipe, environment, set_, step, day, not no_push, override, output)
    else:
        from trainyard_control.api.packages import prepare
        from trainyard_control.cli.follow import run_on_cluster

        submission = prepare(recipe, environment, set_ or [], name, day, step)
        say_left_out(recipe, set_)
        name, refused = run_on_cluster(submission, environment, upload_limit, pending_limit, output)
    if require_blessed and refused:
        raise GateRefused(f"{name}: {REFUSED} ({refused}).")


def _run_here(
    recipe: str,
    environment: str,
    set_: list[str] | None,
    step: str | None,
    day: str,
    push: bool,
    override: str,
    output: Output,
) -> tuple[str, str]:
    """Run `recipe` on this machine, and return its name and why its gate refused, '' if it did not."""
    from trainyard_control import api
    from trainyard_control.api.run import INTERRUPTED
    from trainyard_control.cli.screen import show

    try:
        done = api.run(
            recipe, environment=environment, set_=set_ or [], from_step=step, day=day, push=push, override=override
        )
    except KeyboardInterrupt:
        print(f"✗ {INTERRUPTED}", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    print_answer(output, done.summary, lambda: show(done))
    return done.recipe, done.reason if done.verdict == "refused" else ""
