"""`trainyard submit`: compile, place, upload and run a recipe on a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import (
    LOCAL,
    Day,
    DryRun,
    EnvironmentName,
    Output,
    OutputFormat,
    Overrides,
    RecipeName,
    Step,
)

if TYPE_CHECKING:
    from trainyard_control.compiler.submission import Submission


def submit(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The run's name: given twice, there is one run, and the second follows it."),
    ] = None,
    day: Day = "",
    no_cache: Annotated[
        Step | None,
        typer.Option(
            "--no-cache",
            "--from",
            help="Do this step and the later ones again, whatever is there.",
        ),
    ] = None,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run, and exit with its exit code.")] = False,
    pending_limit: Annotated[
        int, typer.Option("--pending-limit", min=1, help="With --wait: seconds a step may wait for a node.")
    ] = 3600,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Compile a recipe, upload it and run it on Kubeflow Pipelines or Vertex AI."""
    from trainyard.errors import ConfigurationError
    from trainyard_control.api.packages import prepare, send

    what = prepare(recipe, environment, set_ or [], name, day, no_cache.value if no_cache else None)
    if dry_run:
        typer.echo(_dry(what), nl=False)
        return
    vertex = what.environment.target == "vertex"
    if wait and vertex:
        raise ConfigurationError("--wait: only runs on Kubeflow are followed. Leave it out.")
    done = send(what)
    how = "was submitted before" if done.attached else "submitted"
    number = done.run_id if vertex else f"run {done.run_id}, {done.pipeline} {done.version}"
    typer.echo(f"✓ {done.name} {how}: {number}", err=True)
    if done.expected and not done.attached:
        typer.echo(f"· train: the plan expects {done.expected}", err=True)
    record, code = done.document(), 0
    if wait:
        from trainyard_control.cli.follow import follow
        from trainyard_control.kubeflow.runs import Runs

        view, code = follow(Runs(what.environment), done.run_id, pending_limit)
        record |= {"run": view.document()}
    if output is Output.JSON:
        typer.echo(json.dumps(record))
    if code:
        raise typer.Exit(code)


def _dry(what: Submission) -> str:
    """Return the package and the request as YAML documents; ids that the server gives stand in angle brackets."""
    import yaml

    from trainyard_control.compiler.submission import request

    if what.environment.target == "vertex":
        from google.auth.credentials import AnonymousCredentials
        from google.protobuf import json_format

        from trainyard_control.compiler.vertex import job

        sent = json_format.MessageToDict(job(what, AnonymousCredentials())._gca_resource._pb)
        return str(yaml.safe_dump(sent, sort_keys=False, width=120))
    import kfp_server_api

    ids = (f"<experiment {what.experiment}>", f"<pipeline {what.pipeline}>", f"<version {what.version}>")
    body = kfp_server_api.ApiClient().sanitize_for_serialization(request(what, *ids))
    return f"{what.package}---\n{yaml.safe_dump(body, sort_keys=False, width=120, allow_unicode=True)}"
