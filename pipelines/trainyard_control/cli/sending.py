"""Sends a run to a cluster, or shows what would be sent, and follows it if asked."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.follow import follow
from trainyard_control.cli.options import Output

if TYPE_CHECKING:
    from trainyard_control.compiler.submission import Submission


def send_and_follow(what: Submission, *, dry_run: bool, wait: bool, pending_limit: int, output: Output) -> None:
    """Send the run and say so, or only print it; with `wait` end with its exit code."""
    from trainyard_control.api.packages import send

    if dry_run:
        typer.echo(_dry(what), nl=False)
        return
    vertex = what.environment.target == "vertex"
    _require_kubeflow(what, wait)
    done = send(what)
    how = "was submitted before" if done.attached else "submitted"
    number = done.run_id if vertex else f"run {done.run_id}, {done.pipeline} {done.version}"
    typer.echo(f"✓ {done.name} {how}: {number}", err=True)
    if done.expected and not done.attached:
        typer.echo(f"· train: the plan expects {done.expected}", err=True)
    record, code = done.document(), 0
    if wait:
        from trainyard_control.kubeflow.runs import KubeflowRuns

        view, code = follow(KubeflowRuns(what.environment), done.run_id, pending_limit)
        record |= {"run": view.document()}
    if output is Output.JSON:
        typer.echo(json.dumps(record))
    if code:
        raise typer.Exit(code)


def _require_kubeflow(what: Submission, wait: bool) -> None:
    if wait and what.environment.target == "vertex":
        raise ConfigurationError("--wait: only runs on Kubeflow are followed. Leave it out.")


def send_all(runs: Collection[Submission], *, dry_run: bool, wait: bool, pending_limit: int) -> int:
    """Send several runs, which go on side by side, or only print them; with `wait` return the worst exit code."""
    from trainyard_control.api.packages import send

    if dry_run:
        show_all(runs)
        return 0
    for what in runs:
        _require_kubeflow(what, wait)
    sent, worst = [], 0
    for what in runs:
        sent.append((what, send(what)))
        how = "was submitted before" if sent[-1][1].attached else "submitted"
        typer.echo(f"✓ {what.run} {how}: {sent[-1][1].run_id}", err=True)
    for what, done in sent if wait else ():
        from trainyard_control.kubeflow.runs import KubeflowRuns

        typer.echo(f"· {what.run}", err=True)
        worst = max(worst, follow(KubeflowRuns(what.environment), done.run_id, pending_limit)[1])
    return worst


def show_all(runs: Collection[Submission]) -> None:
    """Print the packages and requests that would be sent."""
    typer.echo("---\n".join(_dry(what) for what in runs), nl=False)


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

    experiment = what.environment.kubeflow.experiment
    ids = (f"<experiment {experiment}>", f"<pipeline {what.pipeline}>", f"<version {what.version}>")
    body = kfp_server_api.ApiClient().sanitize_for_serialization(request(what, *ids))
    return f"{what.package}---\n{yaml.safe_dump(body, sort_keys=False, width=120, allow_unicode=True)}"
