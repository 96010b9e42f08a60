"""Splits the seconds of a finished run on Kubeflow: before each step, in its start-up and in its own code.

    python -m benchmarks.commands.kubeflow_steps RUN_ID --namespace kubeflow

reads the pods of the run and their logs, as long as the cluster has them, and prints one table.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubernetes import client, config

OWN_LINE = re.compile(r'^\{"event": "')  # an event of trainyard.runtime.step
BEGUN = re.compile(r"Looking for component `\w+`")  # kfp's executor, just before the step's own code
STEP_LABEL = "app.kubernetes.io/component"  # which placed steps have, and Kubeflow's drivers have not


def measure(run_id: str, namespace: str) -> list[dict[str, Any]]:
    """Return, a step after the other, its name and its seconds as `spent` has them."""
    config.load_kube_config()
    core = client.CoreV1Api()
    pods = core.list_namespaced_pod(namespace, label_selector=f"pipeline/runid={run_id},{STEP_LABEL}").items
    pods.sort(key=lambda pod: pod.metadata.creation_timestamp)
    workflows = client.CustomObjectsApi().list_namespaced_custom_object(
        "argoproj.io", "v1alpha1", namespace, "workflows", label_selector=f"pipeline/runid={run_id}"
    )["items"]
    ended = datetime.fromisoformat(workflows[0]["metadata"]["creationTimestamp"])
    rows = []
    for pod in pods:
        main = next(each for each in pod.status.container_statuses if each.name == "main").state.terminated
        if main is None:
            raise SystemExit(f"{pod.metadata.name}: goes on. Give a run that is over.")
        times = Times(pod.metadata.creation_timestamp, main.started_at, main.finished_at)
        log = core.read_namespaced_pod_log(pod.metadata.name, namespace, container="main", timestamps=True)
        row, ended = spent(times, log, ended)
        rows.append({"step": pod.metadata.labels[STEP_LABEL]} | row)
    return rows


@dataclass(frozen=True)
class Times:
    """When a pod was created, and its step's container started and ended, in Kubernetes' whole seconds, cut off."""

    created: datetime
    started: datetime
    ended: datetime


def spent(times: Times, log: str, before: datetime) -> tuple[dict[str, float], datetime]:
    """Return the seconds of one step by phase, and its end; `before` is the end of the previous step.

    before: since then (for the first step, since the run was created). queued: the part of it after the step's pod was
    created. startup: from the start of the container to the first line of the step's own, or of kfp's before it where
    it has none. own: from there to its end. The log has the precise times.
    """
    lines = [(_time(moment), text) for moment, _, text in (line.partition(" ") for line in log.splitlines()) if text]
    begun = [moment for moment, text in lines if BEGUN.search(text)]
    own = [moment for moment, text in lines if OWN_LINE.match(text)]
    first = (own or begun or [times.started])[0]
    over = max([times.ended, *(moment for moment, _ in lines)])
    row = {
        "before": max(0.0, (times.started - before).total_seconds()),
        "queued": (times.started - times.created).total_seconds(),
        "startup": max(0.0, (first - times.started).total_seconds()),
        "own": (over - first).total_seconds(),
    }
    return row, over


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table of seconds, with their sums."""
    columns = ("before", "queued", "startup", "own")
    sums = {"step": "**together**"} | {column: sum(row[column] for row in rows) for column in columns}
    lines = [
        f"| {row['step']} | " + " | ".join(f"{row[column]:.1f}" for column in columns) + " |" for row in [*rows, sums]
    ]
    return "\n".join(
        ["| step | before | of it the pod | start-up | own |", "| --- | ---: | ---: | ---: | ---: |", *lines]
    )


def _time(text: str) -> datetime:
    """Return a container runtime's time, which has nanoseconds, in UTC."""
    return datetime.fromisoformat(text[:26]).replace(tzinfo=UTC)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("run_id")
    arguments.add_argument("--namespace", default="kubeflow")
    given = arguments.parse_args()
    print(table(measure(given.run_id, given.namespace)))
