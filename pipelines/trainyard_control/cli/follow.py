"""Sends runs to a cluster, shows their steps, and follows them to their end."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from trainyard.errors import ConfigurationError, ExitCode
from trainyard.measured import duration_text
from trainyard_control.cli.options import Output, say, say_table

if TYPE_CHECKING:
    from trainyard_control.compiler.compilation import Submission
    from trainyard_control.kubeflow.run_view import RunView, StepView
    from trainyard_control.kubeflow.runs import KubeflowRuns

_MARKS = {"done": "✓", "failed": "✗", "waiting": "…", "running": "·"}


def follow(runs: KubeflowRuns, run_id: str, pending_limit: float = math.inf) -> tuple[RunView, ExitCode]:
    """Follow a run to its end, and return it with its exit code.

    If a step waits longer than `pending_limit` seconds, the run is cancelled: Kubeflow itself would wait for ever.
    Without a limit nothing is cancelled.
    """
    from trainyard_control.kubeflow.runs import changes, longest_wait

    view = None
    try:
        for view in changes(runs.watch(run_id), lambda step: say(_line(step), err=True)):
            waiting = longest_wait(view, datetime.now(UTC))
            if waiting and waiting[0] > pending_limit and not view.over:
                typer.echo(f"✗ {waiting[1].name} waits for {duration_text(waiting[0])}: the run is ended", err=True)
                runs.cancel(run_id)
                return view, ExitCode.INFRASTRUCTURE if waiting[1].permanent else ExitCode.TRANSIENT
    except KeyboardInterrupt:
        typer.echo(f"! the run continues without this command: trainyard explain {run_id}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    assert view is not None  # noqa: S101 - watch yields at least once
    if view.overdue and pending_limit < math.inf:
        runs.cancel(run_id)  # Argo ends only the run's own pods, not a gang's
    mark = "!" if view.refused else "✓" if view.state == "SUCCEEDED" else "✗"
    typer.echo(f"{mark} {view.reason.rstrip('.')}. ({duration_text(view.seconds)})", err=True)
    return view, view.exit_code


def show_troubled_steps(view: RunView) -> None:
    """Print a line for each step that failed, waits or was retried, with its earlier attempts below it.

    A sentence that was printed before is not repeated; attempts with equal sentences share a line.
    """
    said = {view.reason}
    for step in view.steps:
        if step.state not in ("failed", "waiting") and not step.earlier:
            continue
        known = any(step.sentence in sentence for sentence in said)
        say(f"{_MARKS[step.state]} {step.name} ({step.pod or step.cause})" if known else _line(step))
        said.add(step.sentence)
        pods_by_sentence = defaultdict(list)
        for pod, sentence in step.earlier:
            pods_by_sentence[sentence].append(pod)
        for sentence, pods in pods_by_sentence.items():
            also = "the same" if any(sentence in known_one for known_one in said) else sentence
            say(f"    before: {', '.join(pods)}: {also}")
            said.add(sentence)


def _line(step: StepView) -> str:
    return f"{_MARKS[step.state]} {step.name.ljust(10)}  {step.sentence}"


def send_and_follow(submission: Submission, *, dry_run: bool, wait: bool, pending_limit: int, output: Output) -> None:
    """Send the run, or print it for a dry run; with `wait` exit with the run's exit code."""
    from trainyard_control.api.packages import send

    if dry_run:
        if submission.files:
            sizes = [(name, f"{size:,} bytes") for name, size in submission.files.items()]
            say_table([*sizes, ("sends", f"{sum(submission.files.values()):,} bytes of code")], err=True)
        show_all([submission], output)
        return
    vertex = submission.environment.target == "vertex"
    _require_kubeflow(submission, wait)
    done = send(submission)
    how = "was submitted before" if done.attached else "submitted"
    number = done.run_id if vertex else f"run {done.run_id}, {done.pipeline} {done.version}"
    typer.echo(f"✓ {done.name} {how}: {number}", err=True)
    if done.expected and not done.attached:
        typer.echo(f"· train: the plan expects {done.expected}", err=True)
    record, code = done.document(), 0
    if wait:
        from trainyard_control.kubeflow.runs import KubeflowRuns

        view, code = follow(KubeflowRuns(submission.environment), done.run_id, pending_limit)
        record |= {"run": view.document()}
    if output is Output.JSON:
        typer.echo(json.dumps(record))
    if code:
        raise typer.Exit(code)


def _require_kubeflow(submission: Submission, wait: bool) -> None:
    if wait and submission.environment.target == "vertex":
        raise ConfigurationError("--wait: only supported on Kubeflow. Leave it out.")


def send_all(runs: Collection[Submission], *, dry_run: bool, wait: bool, pending_limit: int, output: Output) -> int:
    """Send several parallel runs, or print them; with `wait` return the worst exit code."""
    from trainyard.storage import uploads
    from trainyard_control.api.packages import send

    if dry_run:
        show_all(runs, output)
        return 0
    for submission in runs:
        _require_kubeflow(submission, wait)
        for upload in submission.uploads.values():
            uploads.store(upload)
    sent, worst = [], 0
    for submission in runs:
        sent.append((submission, send(submission)))
        how = "was submitted before" if sent[-1][1].attached else "submitted"
        typer.echo(f"✓ {submission.run} {how}: {sent[-1][1].run_id}", err=True)
    for submission, done in sent if wait else ():
        from trainyard_control.kubeflow.runs import KubeflowRuns

        typer.echo(f"· {submission.run}", err=True)
        worst = max(worst, follow(KubeflowRuns(submission.environment), done.run_id, pending_limit)[1])
    return worst


def show_all(runs: Collection[Submission], output: Output) -> None:
    """Print the packages and requests that would be sent, as YAML documents or as a list in JSON."""
    import yaml

    documents = "---\n".join(_dry(submission) for submission in runs)
    if output is Output.JSON:
        typer.echo(json.dumps(list(yaml.safe_load_all(documents))))
    else:
        typer.echo(documents, nl=False)


def _dry(submission: Submission) -> str:
    """Return the package, the request and the objects of its gang as YAML documents.

    What only the servers know is in angle brackets.
    """
    import yaml

    from trainyard_control.compiler.compilation import request

    if submission.environment.target == "vertex":
        from google.auth.credentials import AnonymousCredentials
        from google.protobuf import json_format

        from trainyard_control.targets.vertex import job

        sent = json_format.MessageToDict(job(submission, AnonymousCredentials())._gca_resource._pb)
        return str(yaml.safe_dump(sent, sort_keys=False, width=120))
    import kfp_server_api

    from trainyard_control.compiler.compilation import gang_objects, to_yaml

    experiment = submission.environment.kubeflow.experiment
    ids = (f"<experiment {experiment}>", f"<pipeline {submission.pipeline}>", f"<version {submission.version}>")
    body = kfp_server_api.ApiClient().sanitize_for_serialization(request(submission, *ids))
    run = yaml.safe_dump(body, sort_keys=False, width=120, allow_unicode=True)
    return "---\n".join((submission.package, run, *(to_yaml([made]) for made in gang_objects(submission.package))))
