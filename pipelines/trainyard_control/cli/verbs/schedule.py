"""`trainyard schedule`: run recipes on a schedule that a file defines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import ExitCode
from trainyard_control.cli.options import DryRun, EnvironmentName, Output, OutputFormat, print_answer

if TYPE_CHECKING:
    from trainyard_control.compiler.compilation import Submission
    from trainyard_control.kubeflow.schedules import Action, Recurring, Schedule, Schedules

app = typer.Typer(no_args_is_help=True, help="Run recipes on a schedule that a file defines.")

_File = Annotated[Path, typer.Argument(help="YAML file of a schedule.")]


@app.command("apply")
def apply(file: _File, dry_run: DryRun = False) -> None:
    """Create or update the schedule of a file on the server."""
    from trainyard_control.cluster.environments import store_uploads

    schedules, schedule, submission, actions = _planned(file)
    if not dry_run:
        store_uploads(submission.uploads, submission.environment)
    for action in actions:
        if not dry_run:
            schedules.perform(action, schedule, submission)
        typer.echo(f"{'would ' if dry_run else '✓ '}{action}")


@app.command("diff")
def diff(file: _File) -> None:
    """Show what apply would change; exit with 20 if anything."""
    _, _, _, actions = _planned(file)
    for action in actions:
        typer.echo(f"would {action}")
    if any(action.verb != "keep" for action in actions):
        raise typer.Exit(ExitCode.CONFIGURATION)


@app.command("list")
def list_(environment: EnvironmentName, output: OutputFormat = Output.TEXT) -> None:
    """List the schedules on the server."""
    from trainyard_control.cluster import environments
    from trainyard_control.kubeflow.schedules import Schedules

    recurring = Schedules(environments.load(environment)).existing()
    rows = [
        {
            "name": schedule.name,
            "enabled": schedule.enabled,
            "cron": schedule.cron,
            "last": schedule.last and schedule.last.isoformat(),
            "message": schedule.message,
        }
        for schedule in recurring
    ]
    print_answer(output, rows, lambda: _show(recurring))


@app.command("remove")
def remove(file: _File, dry_run: DryRun = False) -> None:
    """Remove the schedule of a file from the server; its runs stay."""
    from trainyard_control.cluster import environments
    from trainyard_control.kubeflow.schedules import Schedules, load, removal

    schedule = load(file)
    schedules = Schedules(environments.load(schedule.environment))
    for action in removal(schedules.existing(schedule.name)):
        if not dry_run:
            schedules.perform(action)
        typer.echo(f"{'would ' if dry_run else '✓ '}{action}")


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of schedules, for editors."""
    from trainyard_control.kubeflow.schedules import Schedule

    typer.echo(json.dumps(Schedule.model_json_schema(by_alias=True), indent=2))


def _show(recurring: list[Recurring]) -> None:
    for schedule in recurring:
        last = schedule.last.isoformat(timespec="minutes") if schedule.last else "never"
        state = "enabled" if schedule.enabled else "disabled"
        activity = ", active" if schedule.running else ""
        typer.echo(f"{schedule.name}  {state}  {schedule.cron}  last run {last}{activity}")
        if message := schedule.message:
            answer = "delivered" if message["delivered"] else f"not delivered: {message['fault']}"
            typer.echo(f"  message {message['event']} of {message['time']}: {answer}")


def _planned(file: Path) -> tuple[Schedules, Schedule, Submission, list[Action]]:
    from datetime import UTC, datetime

    from trainyard_control.cluster import environments
    from trainyard_control.kubeflow.schedules import Schedules, load, package, plan

    schedule = load(file)
    schedules = Schedules(environments.load(schedule.environment))
    schedules.check_time_zone(schedule)
    submission, name = package(schedule, schedules.environment)
    return (
        schedules,
        schedule,
        submission,
        plan(name, schedule.paused, schedules.existing(schedule.name), datetime.now(UTC)),
    )
