"""`trainyard prune`: delete old runs and unused outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import TrainyardError
from trainyard_control.cli.answers import print_answer, print_lines, say
from trainyard_control.cli.options import LOCAL, DryRun, EnvironmentName, Output, OutputFormat

if TYPE_CHECKING:
    from trainyard_control.local.retention import Removal


def prune(
    recipe: Annotated[str, typer.Argument(help="Recipe name. Default: all recipes in the storage.")] = "",
    environment: EnvironmentName = LOCAL,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Number of newest runs of each recipe to keep.")] = 10,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Delete old runs and unused outputs.

    Outputs that no kept run uses and abandoned attempts are deleted. The champion and versions with an alias are kept,
    with their runs and everything that they were made from.
    """
    from trainyard.report import index
    from trainyard.spec import environment as environments
    from trainyard_control.cli.screen import size
    from trainyard_control.local import retention

    place = environments.load(environment)
    root = place.storage
    notes: list[str] = []

    def over(runs: list[str]) -> set[str]:
        """Return the runs that have ended without a record, according to Kubeflow if the environment has one."""
        from trainyard_control.kubeflow.runs import KubeflowRuns

        try:
            return KubeflowRuns(place).over(runs) if place.target == "kubeflow" else set()
        except TrainyardError as error:
            notes.append(str(error))
            return set()

    plan = retention.plan(root, keep, recipe, over=over)
    notes += plan.notes

    def removals() -> Iterator[Removal]:
        for removal in plan.removals:
            if not dry_run and (reason := retention.remove(root, removal)):
                notes.append(reason)
            else:
                yield removal

    removed = print_lines(output, removals(), _line)
    if removed and not dry_run:
        index.write(root)
    total = sum(removal.bytes for removal in removed)

    def show() -> None:
        folders = "1 folder" if len(removed) == 1 else f"{len(removed):,} folders"
        typer.echo(f"{size(total):>10}  {'would be deleted' if dry_run else 'deleted'}, {folders} of {root}")
        for note in notes:
            say(f"! {note}", err=True)

    answer = {"removed": list(map(asdict, removed)), "bytes": total, "dry_run": dry_run, "notes": notes}
    print_answer(output, answer, show)


def _line(removal: Removal) -> str:
    from trainyard_control.cli.screen import size

    more = " (abandoned attempts)" if removal.kind == "attempt" else ""
    return f"{size(removal.bytes):>10}  {removal.recipe}/{removal.name}{more}"
