"""Runs on a cluster: followed to their end with the screen of a local run, and read from their storage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.escape import shell
from trainyard.graph import OUTPUTS, STEPS
from trainyard.report import local_runs
from trainyard.storage import storage
from trainyard_control.api import packages
from trainyard_control.api.progress import ClusterScreen
from trainyard_control.api.run import Run
from trainyard_control.cluster import environments
from trainyard_control.cluster.environments import readable_storage

if TYPE_CHECKING:
    from trainyard.spec.environment import Environment
    from trainyard_control.kubeflow.run_view import RunView, StepView
    from trainyard_control.kubeflow.runs import KubeflowRuns

PENDING_SECONDS = 3600
"""The longest wait of a step for a node. Chosen: an autoscaler takes minutes, a full cluster an hour."""

_READ_SECONDS = 20.0  # chosen: a person waits for the last screen


def run(recipe: str, environment: str, sets: list[str], *, name: str | None, day: str, from_step: str | None) -> Run:
    """Submit a recipe, follow its run to its end, and return it. Raises the error of a run that fails."""
    from trainyard_control.kubeflow.runs import KubeflowRuns

    loaded = environments.load(environment)
    require_followed(loaded)
    sent = packages.submit(recipe, environment=environment, name=name, day=day, from_step=from_step, set_=sets)
    runs = KubeflowRuns(loaded)
    view = follow(runs, sent.run_id, watch_command(sent.name, environment), PENDING_SECONDS)
    if failure := view.failure:
        raise failure
    return ended(runs, view)


def require_followed(environment: Environment) -> None:
    """Raise `ConfigurationError` unless runs of `environment` can be followed."""
    if environment.target == "vertex":
        raise ConfigurationError(
            f"{environment.name}: its target is vertex, whose runs cannot be followed. Use `trainyard submit`."
        )


def watch_command(run: str, environment: str) -> str:
    """Return the command that follows a run again. environment: as the person named it."""
    return f"trainyard runs watch {shell(run)} -e {shell(environment)}"


def follow(runs: KubeflowRuns, run_id: str, again: str, pending_limit: float = math.inf) -> RunView:
    """Show the steps of a run until it has ended, and return it. Ctrl-C leaves the run alone.

    again: the command that follows it again. If a step waits longer than `pending_limit` seconds to start, the run is
    cancelled.

    Raises `TransientError` if the servers are silent for long, `InfrastructureError` if they refuse, and either if a
    step waits too long.
    """
    from trainyard_control.kubeflow.runs import changes

    with ClusterScreen() as screen:

        def show(step: StepView) -> None:
            reads_log = step.state == "done" and step.pod and not step.task.worker
            screen.step_changed(step, runs.step_events(run_id, step.name) if reads_log else ())

        views = changes(runs.watch(run_id, screen.connection_lost), show)
        while True:
            try:
                view = next(views)
            except (TransientError, InfrastructureError) as error:
                raise type(error)(f"{error} The run continues; follow it again: {again}") from error
            if view.over:
                break
            screen.steps_running(view.steps)
            runs.end_long_wait(view, pending_limit)
        for step, why in _skipped(view):
            screen.step_skipped(step, why)
    if view.overdue and pending_limit < math.inf:
        runs.cancel(run_id)  # Argo ends only the run's own pods, not a gang's
    return view


def ended(runs: KubeflowRuns, view: RunView) -> Run:
    """Return an ended run with its record and outputs. Raises `TrainyardError` if the storage cannot be read."""
    with storage.deadline(_READ_SECONDS):
        return Run.from_view(local_runs.view(readable_storage(runs.environment), view.recipe, view.run_id))


def _skipped(view: RunView) -> list[tuple[str, str]]:
    """Return the steps that a gate left out, each with the reason."""
    done = {step.name for step in view.steps}
    judged = [STEPS[step].judges for step in OUTPUTS if step in done and STEPS[step].judges]
    if not view.refused or not judged:
        return []
    left_out = [step for step in OUTPUTS if STEPS[step].optional and step not in done]
    return [(step, f"the gate refused {judged[-1]}") for step in left_out]
