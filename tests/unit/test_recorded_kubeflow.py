"""Runs as a real Kubeflow Pipelines 2.17.0 with Argo 4.0.5 tells of them, cut to the fields that are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp_server_api as kfp
import pytest

from trainyard_control.cluster import argo
from trainyard_control.kubeflow.run_view import StepView, steps_of_tasks

RECORDED = json.loads(Path(__file__).with_name("kubeflow_2_17_0.json").read_text())


def by_task(run: dict[str, Any]) -> dict[str, StepView]:
    tasks = [
        kfp.V2beta1PipelineTaskDetail(
            display_name=task["display_name"],
            state=task.get("state"),
            start_time=datetime.fromisoformat(task["start_time"]),
            end_time=datetime.fromisoformat(task["end_time"]) if "end_time" in task else None,
        )
        for task in run["tasks"]
    ]
    return {view.name: view for view in steps_of_tasks(tasks, datetime.now(UTC))}


def test_a_step_that_the_cache_answered_is_known_behind_argos_retry_nodes() -> None:
    assert argo.cached([RECORDED["cached"]["workflow"]]) == {"train", "export"}
    assert argo.cached([RECORDED["refused"]["workflow"]]) == set()


def test_steps_that_a_gate_left_out_or_whose_upstream_failed_are_no_steps_of_the_run() -> None:
    refused = RECORDED["refused"]
    assert refused["state"] == "SUCCEEDED"
    assert list(by_task(refused)) == ["preprocess", "train", "evaluate"]
    states = {task["display_name"]: task.get("state") for task in refused["tasks"]}
    assert (states["export"], states["push"]) == ("SKIPPED", None)
    assert {name: view.state for name, view in by_task(RECORDED["cancelled"]).items()} == {"preprocess": "failed"}


def test_a_killed_step_of_a_cancelled_run_ended_with_the_run() -> None:
    workflow = RECORDED["cancelled"]["workflow"]
    (node,) = argo.cancelled_nodes([workflow])
    assert workflow["status"]["nodes"][node]["message"] == "main: Error (exit code 143)"
    assert argo.retried([workflow]) == set()
    assert argo.cancelled_nodes([RECORDED["refused"]["workflow"]]) == set()


@pytest.mark.parametrize(("name", "seconds"), [("preprocess", 120.0), ("train", 18.0), ("evaluate", 50.0)])
def test_the_time_of_a_step_is_that_of_its_retry_node(name: str, seconds: float) -> None:
    assert by_task(RECORDED["refused"])[name].seconds == pytest.approx(seconds, abs=2)
