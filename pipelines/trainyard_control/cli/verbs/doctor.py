"""`trainyard doctor`: check an environment before a run."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard_control.cli.answers import print_answer, print_lines
from trainyard_control.cli.options import LOCAL, EnvironmentName, Output, OutputFormat

_MARKS = {"good": "✓", "bad": "✗", "unknown": "–"}


def doctor(
    recipe: Annotated[str | None, typer.Argument(help="Recipe to compile and check too.")] = None,
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Check an environment before a run.

    Servers, permissions, pools, storage, images and policies are checked.
    """
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.cluster.checks import worst
    from trainyard_control.kubeflow.doctor import examine

    loaded = environments.load(environment)
    found = examine(loaded, recipes.load(recipe) if recipe else None)
    checks = print_lines(output, found, lambda check: f"{_MARKS[check.verdict]} {check.name}: {check.sentence}")
    code = worst(checks)
    listed = [{"name": c.name, "verdict": c.verdict, "sentence": c.sentence, "exit_code": int(c.code)} for c in checks]
    print_answer(output, {"exit_code": int(code), "checks": listed}, lambda: None)
    if code:
        raise typer.Exit(code)
