"""Submits a run exactly once: names are looked up before anything is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.core.errors import ConfigurationError, TransientError
from yardmaster.kubeflow_api import Kubeflow
from yardmaster.submission import Submission, request

_OVER = frozenset({"FAILED", "CANCELED", "CANCELING"})


@dataclass(frozen=True)
class Submitted:
    """A run at the server; attached where it had been submitted before."""

    run_id: str
    name: str
    attached: bool


def submit(what: Submission, server: Kubeflow) -> Submitted:
    """Return the one run of that name: new, or found where it is going on or has succeeded.

    After a failed or cancelled one of that name a new one is made; what the old one finished is used again. When an
    answer is lost on its way, the run is looked up. Raises `ConfigurationError` where a run of that name is of other
    content.
    """
    pipeline, version = server.upload(what.pipeline, what.version, what.package)
    if found := _going(server, what.run):
        return _attached(found, what, version)
    body = request(what, server.experiment(), pipeline, version)
    before = {run.run_id for run in server.find_runs(what.run)}
    try:
        made = server.create_run(body)
    except TransientError:
        arrived = next((run for run in server.find_runs(what.run) if run.run_id not in before), None)
        if arrived is None:
            raise
        made = arrived
    return Submitted(str(made.run_id), what.run, attached=False)


def _going(server: Kubeflow, name: str) -> Any:
    return next((run for run in server.find_runs(name) if str(run.state) not in _OVER), None)


def _attached(run: Any, what: Submission, version: str) -> Submitted:
    reference = run.pipeline_version_reference
    if reference is None or reference.pipeline_version_id != version:
        raise ConfigurationError(
            f"--name {what.run}: a run of that name exists ({run.run_id}, {run.state}) and is of another recipe, "
            "environment or code. Give this one another name."
        )
    return Submitted(str(run.run_id), what.run, attached=True)
