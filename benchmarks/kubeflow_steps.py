"""Where the seconds of a finished run on Kubeflow went: before each step, in its start-up and in its own code.

    python -m benchmarks.kubeflow_steps RUN_ID --namespace kubeflow

reads the pods of the run and their logs, as long as the cluster has them, and prints one table.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import Any

from kubernetes import client, config

OWN_LINE = re.compile(r"^[a-z_]+( \w+=\S+)+$")  # an event of trainyard.core.step
NAME = re.compile(r"Looking for component `(\w+)`")  # kfp's executor


def measure(run_id: str, namespace: str) -> list[dict[str, Any]]:
    """Return, a step after the other, its name and its seconds.

    before: since the step before it ended (for the first, since the run was created). queued: the part of it after the step's
    pod was created. startup: from the start of the container to the first line of the step's own. own: from there to its end.
    """
    config.load_kube_config()
    core = client.CoreV1Api()
    pods = core.list_namespaced_pod(namespace, label_selector=f"pipeline/runid={run_id}").items
    pods.sort(key=lambda pod: pod.metadata.creation_timestamp)
    workflows = client.CustomObjectsApi().list_namespaced_custom_object(
        "argoproj.io", "v1alpha1", namespace, "workflows", label_selector=f"pipeline/runid={run_id}"
    )["items"]
    ended = datetime.fromisoformat(workflows[0]["metadata"]["creationTimestamp"])
    rows = []
    for pod in pods:
        name = pod.metadata.name
        status = next(each for each in pod.status.container_statuses if each.name == "main")
        log = core.read_namespaced_pod_log(name, namespace, container="main", timestamps=True)
        lines = [line.split(" ", 1) for line in log.splitlines() if " " in line]
        own = [_time(moment) for moment, text in lines if OWN_LINE.match(text)]
        if not own:  # a driver
            continue
        started, over = status.state.terminated.started_at, status.state.terminated.finished_at
        rows.append(
            {
                "step": NAME.findall(log)[0],
                "before": (started - ended).total_seconds(),
                "queued": (started - pod.metadata.creation_timestamp).total_seconds(),
                "startup": (own[0] - started).total_seconds(),
                "own": (over - own[0]).total_seconds(),
            }
        )
        ended = over
    return rows


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
