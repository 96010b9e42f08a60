"""A run as a person looks at it: how it ended, why, and its steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import kfp_server_api
import pytest
from tests.unit.test_explanation import FAILED, ended, pod

from trainyard.errors import ExitCode
from trainyard_control.cli.follow import show_troubled_steps
from trainyard_control.cluster.argo import overdue
from trainyard_control.cluster.explanation import Evidence, Finding, explain
from trainyard_control.kubeflow import run_view
from trainyard_control.kubeflow.run_view import RunView, steps, steps_of_tasks


def run(state: str, *findings: Finding, record: dict[str, Any] | None = None) -> RunView:
    now = datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    return RunView("id", "nightly", state, "digits", "kind", "", 180.0, steps(findings, now), record)


def test_a_runs_exit_code_is_that_of_the_step_that_failed() -> None:
    data = ended(1, FAILED % (10, "row 7: no label."))
    assert run("SUCCEEDED").exit_code == ExitCode.DONE
    assert run("CANCELED").exit_code == ExitCode.INTERRUPTED
    assert run("FAILED", data).exit_code == ExitCode.DATA
    assert run("FAILED", data).reason.startswith("train ended with exit code 10 (data): row 7")
    assert run("FAILED", record={"exit_code": 20, "failure": "no pool."}).exit_code == ExitCode.CONFIGURATION
    assert run("FAILED", record={"exit_code": 20, "failure": "no pool."}).reason == "nightly: no pool"
    assert run("FAILED").exit_code == ExitCode.TRANSIENT


@pytest.mark.parametrize(
    ("deadline", "finished", "expected"),
    [
        (600, "2026-01-01T00:10:03Z", 600),
        (600, "2026-01-01T00:09:03Z", None),  # failed by itself
        (0, "2026-01-01T00:10:03Z", None),  # cancelled: Kubeflow sets 0
        (None, "2026-01-01T00:10:03Z", None),
    ],
)
def test_a_run_that_argo_ended_at_its_deadline_is_told_from_others(
    deadline: int | None, finished: str, expected: int | None
) -> None:
    spec = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    status = {"phase": "Failed", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": finished}
    assert overdue([{"spec": spec, "status": status}]) == expected
    assert overdue([{"spec": spec, "status": {"phase": "Running", "startedAt": "2026-01-01T00:00:00Z"}}]) is None


def test_a_scheduled_run_that_had_nothing_to_train_says_why() -> None:
    view = run("SUCCEEDED", record={"not_due": "version 1 stands"})
    assert (view.reason, view.exit_code) == (f"{view.name} had nothing to train: version 1 stands", ExitCode.DONE)


REFUSED = {
    "failure": None,
    "gate": {
        "verdict": "refused",
        "thresholds": [
            {"name": "accuracy >= 0.9", "value": 0.8512345678, "bound": 0.9, "interval": None, "passed": False}
            | {"split": "test"},
            {"name": "loss <= 1", "value": 0.5, "bound": 1.0, "interval": None, "passed": True},
            {"name": "f1 [sex=female] >= 0", "value": None, "bound": 0.0, "interval": None, "passed": False}
            | {"note": "No example of the split is in the slice 'sex=female'."},
        ],
    },
}


def test_a_run_whose_model_the_gate_refused_says_what_was_refused_and_why() -> None:
    view = run("SUCCEEDED", record=REFUSED)
    assert view.exit_code == ExitCode.DONE and view.document()["refused"]
    assert view.reason == (
        "nightly has ended: the gate refused the model, so it is not pushed (accuracy >= 0.9, was 0.851235; "
        "f1 [sex=female] >= 0, was not measured: No example of the split is in the slice 'sex=female')"
    )
    assert run("SUCCEEDED", record=REFUSED | {"gate": None}).reason == "nightly has succeeded"
    assert not run("FAILED", record=REFUSED).refused


def test_a_run_whose_record_is_out_of_reach_is_known_as_refused_by_the_push_that_it_has_not() -> None:
    steps = [explain(Evidence(pod(f"p-{name}", step=name, phase="Succeeded"))) for name in ("evaluate", "export")]
    view = run("SUCCEEDED", *steps)
    assert view.reason.startswith(
        "nightly has ended: the gate refused the model, so it is not pushed (its record cannot"
    )
    pushed = explain(Evidence(pod("p-push", step="push", phase="Succeeded")))
    assert run("SUCCEEDED", *steps, pushed).reason == run("SUCCEEDED").reason == "nightly has succeeded"


def test_an_overdue_run_says_what_was_left_and_which_setting_to_raise() -> None:
    done = explain(Evidence(pod("p0", step="preprocess", phase="Succeeded")))
    view = replace(run("FAILED", done, ended(143)), overdue=600)
    assert view.exit_code == ExitCode.INFRASTRUCTURE
    assert view.reason == (
        "nightly: took more than the 600 s that a run may (unfinished: train). Raise deadline_seconds in the "
        "environment, and submit again: finished steps are reused"
    )


def test_who_may_not_read_pods_sees_the_states_of_kubeflow() -> None:
    start, now = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    tasks = [
        kfp_server_api.V2beta1PipelineTaskDetail(display_name="root", state="RUNNING", start_time=start),
        kfp_server_api.V2beta1PipelineTaskDetail(display_name="train", state="RUNNING", start_time=start),
        kfp_server_api.V2beta1PipelineTaskDetail(display_name="export", state="SKIPPED", start_time=start),
        kfp_server_api.V2beta1PipelineTaskDetail(display_name="push", state="RUNTIME_STATE_UNSPECIFIED"),
        kfp_server_api.V2beta1PipelineTaskDetail(
            display_name="preprocess", state="SUCCEEDED", start_time=start, end_time=now
        ),
    ]
    views = steps_of_tasks(tasks, now)
    assert [(view.name, view.state, view.seconds) for view in views] == [
        ("preprocess", "done", 180.0),
        ("train", "running", 180.0),
    ]


def test_a_step_that_kubeflows_cache_answered_is_done_though_it_has_no_pod() -> None:
    start, now = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    states = {"preprocess": "SUCCEEDED", "train": "SUCCEEDED", "evaluate": "RUNNING", "push": "SKIPPED"}
    message = steps_of_tasks(
        [
            kfp_server_api.V2beta1PipelineTaskDetail(display_name=name, state=state, start_time=start)
            for name, state in states.items()
        ],
        now,
    )
    step_views = steps([explain(Evidence(pod(step=step))) for step in ("preprocess", "evaluate")], now)
    views = run_view.with_podless(step_views, message)
    assert [(view.name, view.pod, view.state) for view in views] == [
        ("preprocess", "p", "running"),
        ("train", "", "done"),
        ("evaluate", "p", "running"),
    ]
    assert run_view.with_podless((), message) == message


def test_explain_says_each_sentence_once(capsys: pytest.CaptureFixture[str]) -> None:
    data = FAILED % (10, "row 7: no label.")
    end = {"exitCode": 10, "reason": "Error", "finishedAt": "2026-01-01T00:01:00Z"}
    statuses = [{"name": "main", "state": {"terminated": end}}]
    pods = [pod(f"p{at}", created=f"2026-01-01T00:0{at}:00Z", phase="Failed", containerStatuses=statuses)
            for at in range(3)]  # fmt: skip
    view = run("FAILED", *(explain(Evidence(failed, log=data)) for failed in pods))
    show_troubled_steps(view)
    shown = capsys.readouterr().out
    assert "row 7" in view.reason and shown == "✗ train (p2)\n    before: p0, p1: the same\n"


def test_a_step_of_several_attempts_took_the_time_of_all_also_of_those_whose_pods_are_gone() -> None:
    start, now = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 10, 12, tzinfo=UTC)
    task = kfp_server_api.V2beta1PipelineTaskDetail(
        display_name="train", state="SUCCEEDED", start_time=start, end_time=now
    )
    last = steps([explain(Evidence(pod("p2", created="2026-01-01T00:10:00Z")))], now)
    assert [view.seconds for view in last] == [12.0]
    assert [view.seconds for view in run_view.with_lost_attempts(last, steps_of_tasks([task], now))] == [612.0]


def test_a_running_gang_says_its_pace_once() -> None:
    pods = [pod("l"), pod("w0"), pod("w1")]
    for index, worker in enumerate(pods[1:]):
        worker["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    view = run("RUNNING", *(explain(Evidence(running)) for running in pods))
    assert view.reason == "train is running on gpu-0 (train worker 0 on gpu-0, train worker 1 on gpu-0)"
    workers = run("RUNNING", *(explain(Evidence(running)) for running in pods[1:]))  # the launcher waits for its retry
    assert workers.reason == "train worker 0 is running on gpu-0; train worker 1 is running on gpu-0"
