"""Sends runs to a cluster, shows their steps, and follows them to their end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainyard.errors import ExitCode, TrainyardError
from trainyard.measured import duration_text
from trainyard_control.cli.options import Output, confirm, say, write_file

if TYPE_CHECKING:
    from trainyard_control.api.packages import Submitted
    from trainyard_control.api.run import Run
    from trainyard_control.compiler.compilation import Submission
    from trainyard_control.kubeflow.run_view import RunView, StepView
    from trainyard_control.kubeflow.runs import KubeflowRuns

_MARKS = {"done": "✓", "failed": "✗", "waiting": "…", "running": "·"}


def upload_and_send(submission: Submission, upload_limit: str) -> Submitted:
    """Upload what the run reads, and start it or find the run of its name."""
    from trainyard_control.api import uploads

    for sentence in uploads.send(submission.uploads, submission.environment, upload_limit, confirm):
        say(f"✓ {sentence}", err=True)
    return send(submission)


def send(submission: Submission) -> Submitted:
    """Start the run or find the run of its name, and print which."""
    from trainyard_control.api import packages

    done = packages.send(submission)
    how = "was submitted before" if done.attached else "submitted"
    number = f"run {done.run_id}, {done.pipeline} {done.version}" if done.version else done.run_id
    typer.echo(f"✓ {done.name} {how}: {number}", err=True)
    if done.expected and not done.attached:
        typer.echo(f"· train: the plan expects {done.expected}", err=True)
    return done


def follow(runs: KubeflowRuns, run_id: str, again: str, pending_limit: float) -> RunView:
    """Follow a run to its end, as `cluster_run.follow`. Ctrl-C exits and leaves the run alone."""
    from trainyard_control.api import cluster_run

    try:
        return cluster_run.follow(runs, run_id, again, pending_limit)
    except KeyboardInterrupt:
        say(f"! The run continues without this command. Follow it again: {again}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def run_on_cluster(
    submission: Submission, environment: str, upload_limit: str, pending_limit: float, output: Output
) -> tuple[str, str]:
    """Submit a training and follow it to its last screen.

    Returns the recipe's name and why the gate refused the model, '' if it did not. environment: as the person named it.
    """
    from trainyard_control.api import cluster_run
    from trainyard_control.kubeflow.runs import KubeflowRuns

    done = upload_and_send(submission, upload_limit)
    runs, again = KubeflowRuns(submission.environment), cluster_run.watch_command(done.name, environment)
    view = follow_to_last_screen(runs, done.run_id, again, pending_limit, output)
    return view.recipe, view.refused


def follow_to_last_screen(runs: KubeflowRuns, run_id: str, again: str, pending_limit: float, output: Output) -> RunView:
    """Follow a run to its end, save its report here, and print the last screen of a local run.

    Raises the error of a run that fails. If the storage cannot be read from here, the run's end is printed instead.
    """
    from trainyard_control.api import cluster_run
    from trainyard_control.cli import screen

    view = follow(runs, run_id, again, pending_limit)
    run = None
    try:
        run = cluster_run.ended(runs, view)
        run = _with_saved_report(run, view.name)
    except TrainyardError as error:
        say(f"! {error}", err=True)
    if failure := view.failure:
        raise failure
    is_judged = run is not None and bool(run.record.get("gate"))
    if not is_judged:
        say_end(view)
    if output is Output.JSON:
        typer.echo(json.dumps(run.summary if run and run.record else view.summary()))
    elif run and is_judged:
        screen.show(run, curves=False)
    return view


def _with_saved_report(run: Run, name: str) -> Run:
    """Save the report of `run` in the current folder, and return the run with the file as its report."""
    from trainyard.storage import storage

    page = storage.read_text(str(run.report)) if run.report else None
    if page is None:
        return run
    file = Path(f"{name}.html")
    write_file(page, file)
    return replace(run, record=run.record | {"report": str(file)})


def say_end(view: RunView) -> None:
    """Print in one line how a run has ended, and how long it took."""
    mark = "!" if view.refused else "✓" if view.state == "SUCCEEDED" else "✗"
    say(f"{mark} {view.reason.rstrip('.')}. ({duration_text(view.seconds)})", err=True)


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


def send_and_follow(
    submission: Submission, environment: str, *, wait: bool, pending_limit: int, output: Output
) -> None:
    """Send a run that is no training; with `wait` follow it to its end. Raises the error of a run that fails.

    environment: as the person named it.
    """
    from trainyard_control.api import cluster_run
    from trainyard_control.kubeflow.runs import KubeflowRuns

    if wait:
        cluster_run.require_followed(submission.environment)
    done = send(submission)
    record = done.document()
    if wait:
        runs, again = KubeflowRuns(submission.environment), cluster_run.watch_command(done.name, environment)
        view = follow(runs, done.run_id, again, pending_limit)
        if failure := view.failure:
            raise failure
        say_end(view)
        record |= {"run": view.document()}
    if output is Output.JSON:
        typer.echo(json.dumps(record))


def send_all(runs: Collection[Submission], environment: str, *, wait: bool, pending_limit: int) -> int:
    """Send several parallel runs; with `wait` return the worst exit code. environment: as the person named it."""
    from trainyard_control.api import cluster_run
    from trainyard_control.cluster.environments import store_uploads
    from trainyard_control.kubeflow.runs import KubeflowRuns

    for submission in runs:
        if wait:
            cluster_run.require_followed(submission.environment)
        store_uploads(submission.uploads, submission.environment)
    sent, worst = [(submission, send(submission)) for submission in runs], 0
    for submission, done in sent if wait else ():
        say(f"· {submission.run}", err=True)
        again = cluster_run.watch_command(done.name, environment)
        try:
            view = follow(KubeflowRuns(submission.environment), done.run_id, again, pending_limit)
        except TrainyardError as error:
            say(f"✗ {error}", err=True)
            worst = max(worst, error.exit_code)
        else:
            say_end(view)
            worst = max(worst, view.exit_code)
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
