"""Submits a run exactly once: names are looked up before anything is created, and once more afterwards.

Kubeflow accepts any number of runs with one name, and a client's own id is no lock: server 2.17 starts the second
workflow before its database refuses the second run. So clients that create a run at the same moment agree on which one
stays.
"""

from __future__ import annotations

import time
from typing import Any

from trainyard.errors import ConfigurationError, TransientError
from trainyard_control.compiler.compilation import Submission, request
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

_OVER = frozenset({"FAILED", "CANCELED", "CANCELING"})
_SETTLE_SECONDS = 15.0  # chosen: longer than another client takes from creating its run to looking for others
_POLL_SECONDS = 0.5


def submit(submission: Submission, server: KubeflowServer) -> tuple[str, bool]:
    """Return the id of the run of this name, and True if it existed before: it is active or has succeeded.

    If a run of this name failed or was cancelled, a new one is created and reuses its finished steps. If an answer is
    lost, the run is looked up. Raises `ConfigurationError` if a run of this name has other content.
    """
    pipeline, version = server.upload(submission.pipeline, submission.version, submission.package)
    if going := _going(server, submission.run):
        return _attached(going[0], submission, version)
    made = _made(server, submission, pipeline, version)
    if _stays(server, made, submission.run):
        return str(made.run_id), False
    server.delete(str(made.run_id))
    if not (going := _going(server, submission.run)):
        raise TransientError(
            f"--name {submission.run}: another command withdrew its run too. Run the same command again."
        )
    return _attached(going[0], submission, version)


def _made(server: KubeflowServer, submission: Submission, pipeline: str, version: str) -> Any:
    body = request(submission, server.experiment(), pipeline, version)
    before = {run.run_id for run in server.find_runs(submission.run)}
    try:
        return server.create_run(body)
    except TransientError:
        arrived = next((run for run in server.find_runs(submission.run) if run.run_id not in before), None)
        if arrived is None:
            raise
        return arrived


def _stays(server: KubeflowServer, made: Any, name: str) -> bool:
    """Return True if `made` is the run that stays, if other clients created one at the same moment.

    The oldest stays: its client waits until the others are deleted. An older run that stays visible was looked for
    before `made` could be seen, so nobody will delete it, and `made` gives way.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        competing = [run for run in _going(server, name) if run.run_id != made.run_id]
        if not competing:
            return True
        if _age(competing[0]) < _age(made) or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _going(server: KubeflowServer, name: str) -> list[Any]:
    """Return the active and succeeded runs of this name, the oldest first."""
    return sorted((run for run in server.find_runs(name) if str(run.state) not in _OVER), key=_age)


def _age(run: Any) -> tuple[Any, str]:
    """Return the sort key of runs with one name; the server's times have a resolution of a second."""
    return run.created_at, str(run.run_id)


def _attached(run: Any, submission: Submission, version: str) -> tuple[str, bool]:
    reference = run.pipeline_version_reference
    if reference is None or reference.pipeline_version_id != version:
        raise ConfigurationError(
            f"--name {submission.run}: a run of that name exists ({run.run_id}, {run.state}) and is of another recipe, "
            "environment or code. Give this one another name."
        )
    return str(run.run_id), True
