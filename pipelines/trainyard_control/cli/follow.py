"""Shows the steps of a cluster's run, and follows it to its end."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from trainyard.errors import ExitCode
from trainyard_control.cli.answers import say
from trainyard_control.cluster.durations import duration_text

if TYPE_CHECKING:
    from trainyard_control.kubeflow.run_view import RunView, StepView
    from trainyard_control.kubeflow.runs import KubeflowRuns

_MARKS = {"done": "✓", "failed": "✗", "waiting": "…", "running": "·"}


def follow(runs: KubeflowRuns, run_id: str, pending_limit: float = math.inf) -> tuple[RunView, ExitCode]:
    """Return the run as it ended, with its exit code.

    A step that waits for longer than `pending_limit` seconds ends the run: Kubeflow itself would let it wait for ever.
    Without a limit nothing is ended, whatever comes.
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
        typer.echo(f"! the run goes on without this command: trainyard explain {run_id}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    assert view is not None  # noqa: S101 - watch yields at least once
    if view.overdue and pending_limit < math.inf:
        runs.cancel(run_id)  # Argo ends the run's own pods, and a gang is none of them
    mark = "!" if view.refused else "✓" if view.state == "SUCCEEDED" else "✗"
    typer.echo(f"{mark} {view.reason.rstrip('.')}. ({duration_text(view.seconds)})", err=True)
    return view, view.exit_code


def show_troubled_steps(view: RunView) -> None:
    """Print a line for each step that failed, waits or was tried before, its earlier attempts below it.

    A sentence that the run's reason or an earlier line has is not repeated: attempts are told by their pods, equal ones
    together.
    """
    said = {view.reason}
    for step in view.steps:
        if step.state not in ("failed", "waiting") and not step.earlier:
            continue
        known = any(step.sentence in sentence for sentence in said)
        say(f"{_MARKS[step.state]} {step.name} ({step.pod or step.cause})" if known else _line(step))
        said.add(step.sentence)
        for sentence, pods in _alike(step.earlier).items():
            also = "the same" if any(sentence in known_one for known_one in said) else sentence
            say(f"    before: {', '.join(pods)}: {also}")
            said.add(sentence)


def _alike(attempts: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Return the pods of `attempts`, (pod, sentence), by what is said of them."""
    pods: dict[str, list[str]] = {}
    for pod, sentence in attempts:
        pods.setdefault(sentence, []).append(pod)
    return pods


def _line(step: StepView) -> str:
    return f"{_MARKS[step.state]} {step.name.ljust(10)}  {step.sentence}"
