"""`trainyard runs`: the runs of an environment, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import LOCAL, DryRun, EnvironmentName, Output, OutputFormat
from trainyard_control.cluster.durations import duration_text

if TYPE_CHECKING:
    from trainyard_control.kubeflow.runs import Runs

app = typer.Typer(no_args_is_help=True, help="Look after the runs of a cluster.")

_Run = Annotated[str, typer.Argument(help="Name or id of the run.")]


@app.command("list")
def list_(
    environment: EnvironmentName = LOCAL,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many of the newest.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Of every experiment.")] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """List the newest runs with state, recipe, environment and duration."""
    views = _runs(environment).newest(count, everything)
    if output is Output.JSON:
        typer.echo(json.dumps([run.summary() for run in views]))
        return
    rows = [("NAME", "STATE", "RECIPE", "ENVIRONMENT", "CREATED", "DURATION")]
    rows += [
        (view.name, view.state, view.recipe, view.environment, view.created, duration_text(view.seconds))
        for view in views
    ]
    _table(rows)


@app.command("show")
def show(run: _Run, environment: EnvironmentName = LOCAL, output: OutputFormat = Output.TEXT) -> None:
    """Show a run's steps with states, pods, pools, durations and outputs."""
    runs = _runs(environment)
    view = runs.view(runs.find(run))
    if output is Output.JSON:
        typer.echo(json.dumps(view.document()))
        return
    typer.echo(
        f"{view.name}  {view.state}  {duration_text(view.seconds)}  "
        f"({view.recipe} on {view.environment}, {view.run_id})"
    )
    rows = [("STEP", "STATE", "POOL", "NODE", "POD", "DURATION", "OUTPUT")]
    for step in view.steps:
        state = f"{step.state} ({step.attempts} pods)" if step.attempts > 1 else step.state
        rows.append((step.name, state, step.pool, step.node, step.pod, duration_text(step.seconds), step.output))
    _table(rows)
    if view.record:
        typer.echo(f"report  {view.record['report']}")
    if view.state != "SUCCEEDED" or view.refused or (view.record and view.record.get("not_due")):
        typer.echo(f"{view.reason.rstrip('.')}.")


@app.command("logs")
def logs(
    run: _Run,
    step: Annotated[str, typer.Argument(help="Name of the step, such as train, or 'train worker 1'.")],
    environment: EnvironmentName = LOCAL,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only the last lines.")] = None,
) -> None:
    """Print the log of a step; of a gang that of its worker 0."""
    runs = _runs(environment)
    typer.echo(runs.log(runs.find(run), step, tail), nl=False)


@app.command("cancel")
def cancel(
    run: _Run,
    environment: EnvironmentName = LOCAL,
    dry_run: DryRun = False,
) -> None:
    """End a run and all that it started, and wait until it is gone."""
    runs = _runs(environment)
    run_id = runs.find(run)
    if dry_run:
        view = runs.view(run_id)
        pods = [step.pod for step in view.steps if step.state in ("waiting", "running")]
        typer.echo(f"would end {view.name} ({run_id}) and its pods: {', '.join(pods) or 'none is left'}")
        return
    runs.cancel(run_id)
    typer.echo(f"✓ {run} is over and nothing of it is left running", err=True)


def _runs(environment: str) -> Runs:
    from trainyard.spec import environment as environments
    from trainyard_control.kubeflow.runs import Runs

    return Runs(environments.load(environment))


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
