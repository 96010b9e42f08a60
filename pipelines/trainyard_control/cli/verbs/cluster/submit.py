"""`trainyard submit`: compile, place, upload and run a recipe on a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

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
    import secrets
    from dataclasses import replace
    from datetime import datetime

    from trainyard.errors import ConfigurationError
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.compiler.compilation import compiled
    from trainyard_control.compiler.submission import submission
    from trainyard_control.planning.expectation import expect

    loaded_environment = environments.load(environment)
    if loaded_environment.target == "local":
        raise ConfigurationError(
            f"--environment {environment}: its target is local. "
            "Use `trainyard run`, or name an environment of a cluster with -e."
        )
    loaded_recipe = recipes.load(recipe, set_)
    run = name or f"{loaded_recipe.name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    placed = compiled(loaded_recipe, loaded_environment, day=day, again=no_cache.value if no_cache else "")
    what = submission(loaded_recipe, loaded_environment, placed, run)
    if loaded_environment.target == "kubeflow":
        what = replace(what, about=replace(what.about, expected=expect(loaded_recipe, loaded_environment)))
    if dry_run:
        typer.echo(_dry(what), nl=False)
        return
    if wait and loaded_environment.target == "vertex":
        raise ConfigurationError("--wait: only runs on Kubeflow are followed. Leave it out.")
    record = _to_vertex(what) if loaded_environment.target == "vertex" else _to_kubeflow(what)
    code = 0
    if wait:
        from trainyard_control.cli.follow import follow

        view, code = follow(loaded_environment, record["run_id"], pending_limit)
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


def _to_kubeflow(what: Submission) -> dict[str, Any]:
    from trainyard_control.kubeflow.kubeflow_api import Kubeflow
    from trainyard_control.kubeflow.submit import submit

    done = submit(what, Kubeflow(what.environment))
    how = "was submitted before" if done.attached else "submitted"
    typer.echo(f"✓ {done.name} {how}: run {done.run_id}, {what.pipeline} {what.version}", err=True)
    if what.about.expected and not done.attached:
        typer.echo(f"· train: the plan expects {what.about.expected}", err=True)
    return {
        "run_id": done.run_id,
        "name": done.name,
        "attached": done.attached,
        "pipeline": what.pipeline,
        "version": what.version,
    }


def _to_vertex(what: Submission) -> dict[str, Any]:
    from trainyard_control.compiler.vertex import send

    resource, attached = send(what)
    typer.echo(f"✓ {what.run} {'was submitted before' if attached else 'submitted'}: {resource}", err=True)
    return {"run_id": resource, "name": what.run, "attached": attached}
