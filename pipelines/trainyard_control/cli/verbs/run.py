"""`trainyard run`: the whole recipe on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainyard.errors import ExitCode, GateRefused
from trainyard_control.cli.answers import print_answer
from trainyard_control.cli.options import LOCAL, Day, EnvironmentName, Output, OutputFormat, Overrides, RecipeName, Step


def run(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    from_step: Annotated[
        Step | None, typer.Option("--from", help="Do this step and the later ones again, whatever is there.")
    ] = None,
    require_blessed: Annotated[
        bool, typer.Option("--require-blessed", help="Exit with 60 if the gate refuses the model.")
    ] = False,
    no_push: Annotated[
        bool, typer.Option("--no-push", help="Only try: export a blessed model, and leave the champion as it is.")
    ] = False,
    day: Day = "",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Preprocess, train, evaluate, export and push a recipe on this machine.

    What an earlier run finished is used again; what it left half done is resumed.
    """
    from trainyard.contract import refusal
    from trainyard_control import api
    from trainyard_control.api.run import INTERRUPTED
    from trainyard_control.cli.screen import show

    step = from_step.value if from_step else None
    try:
        done = api.run(recipe, environment=environment, set_=set_ or [], from_step=step, day=day, push=not no_push)
    except KeyboardInterrupt:
        print(f"✗ {INTERRUPTED}", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    print_answer(output, done.summary, lambda: show(done))
    if require_blessed and done.verdict == "refused":
        raise GateRefused(f"{done.recipe}: {refusal.SENTENCE} ({done.reason}).")
