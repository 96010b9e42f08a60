"""`trainyard doctor`: whether a run would find all that it needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import LOCAL, EnvironmentName, Output, OutputFormat

if TYPE_CHECKING:
    from trainyard.spec.environment import Environment
    from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

_MARKS = {"good": "✓", "bad": "✗", "unknown": "–"}


def doctor(
    recipe: Annotated[str | None, typer.Argument(help="A recipe to compile too.")] = None,
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Check an environment before a run: servers, rights, pools, storage, images and policies."""
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.cluster.checks import worst
    from trainyard_control.cluster.doctor import examine

    loaded = environments.load(environment)
    checks = []
    for check in examine(loaded, recipes.load(recipe) if recipe else None, _connect):
        checks.append(check)
        if output is Output.TEXT:
            typer.echo(f"{_MARKS[check.verdict]} {check.name}: {check.sentence}")
    code = worst(checks)
    if output is Output.JSON:
        listed = [
            {"name": c.name, "verdict": c.verdict, "sentence": c.sentence, "exit_code": int(c.code)} for c in checks
        ]
        typer.echo(json.dumps({"exit_code": int(code), "checks": listed}))
    if code:
        raise typer.Exit(code)


def _connect(environment: Environment) -> KubeflowServer:
    from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

    return KubeflowServer(environment)
