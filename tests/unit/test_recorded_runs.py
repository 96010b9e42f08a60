"""What real servers answered of runs is read as what happened: recorded/ has it, trimmed, with their versions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp_server_api

from trainyard_control.cluster import argo
from trainyard_control.kubeflow.run_view import steps_of_tasks


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())


def test_a_retry_that_argo_killed_at_its_authors_bound_is_the_one_attempt_that_has_it_as_its_reason() -> None:
    workflow = recorded("bounded")["workflow"]
    nodes = workflow["status"]["nodes"]
    reasons = argo.stop_reasons([workflow])
    pods = {nodes[name]["displayName"]: reason for name, reason in reasons.items() if nodes[name]["type"] == "Pod"}
    assert pods == {"executor(1)": argo.OUT_OF_TIME[0]}
    assert not argo.retried([workflow]) and not argo.cancelled(workflow) and argo.overdue([workflow]) is None


def test_a_run_that_was_cancelled_between_two_attempts_is_neither_overdue_nor_tried_again() -> None:
    answer = recorded("cancelled")
    workflow = answer["workflow"]
    assert argo.cancelled(workflow) and argo.overdue([workflow]) is None and not argo.retried([workflow])
    assert answer["run"]["state"] == "FAILED"  # Kubeflow's word for it; its history says more
    assert [moment.get("state") for moment in answer["run"]["state_history"]][-2:] == ["CANCELING", "FAILED"]


def test_a_step_is_shown_once_though_kubeflow_tells_of_its_driver_its_executor_and_each_attempt() -> None:
    details = recorded("failed")["run"]["run_details"]["task_details"]
    assert {"preprocess", "preprocess(0)", "preprocess-driver", "executor(0)"} <= {
        task["display_name"] for task in details
    }
    tasks = [
        kfp_server_api.V2beta1PipelineTaskDetail(
            display_name=task["display_name"],
            state=task.get("state"),  # none for what never began
            start_time=datetime.fromisoformat(task["start_time"]),
            end_time=datetime.fromisoformat(task["end_time"]),
        )
        for task in details
    ]
    views = [view for view in steps_of_tasks(tasks, datetime.now(UTC)) if view.name == "preprocess"]
    assert [(view.state, view.seconds) for view in views] == [("failed", 17.0)]
