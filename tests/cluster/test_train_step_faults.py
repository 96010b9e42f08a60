"""Faults in the pods of a gang on a real Kubernetes: what each costs, and that the weights do not show it.

TRAINYARD_IMAGE names the image (images/Dockerfile, target cpu) of this very code that every node has.
"""

from __future__ import annotations

import re

import pytest
from namespaces import until
from survival import EPOCH, INTERVAL, assert_survived, killed
from train_step import IMAGE, SECONDS, Desk, Run, signal_training_process

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]


def test_killed_processes_cost_at_most_one_checkpoint_interval_each_and_a_pod_with_grace_no_step(
    desk: Desk, calm: Run, run: Run
) -> None:
    run.start().reaches(2 * INTERVAL)
    signalled = signal_training_process(run.namespace, run.worker(1))
    run.says('"event": "recovered"')
    recovered = run.moment('"event": "recovered"')
    print(f"seconds from the kill to new steps: {recovered - signalled:.1f}")
    signal_training_process(run.namespace, run.worker(0))
    until(lambda: len(run.event("recovered")) == 2 or run.has_ended(), SECONDS)
    run.reaches(EPOCH + INTERVAL)  # an epoch's end is compiled by then, which takes seconds
    run.namespace.kubectl("delete", "pod", run.worker(1), "--grace-period=10", "--wait=false")
    training = assert_survived(desk, run, calm)
    *kills, last = training["gang"]["restarts"]
    for worker, restart in zip((1, 0), kills, strict=True):
        assert restart["lost_steps"] <= INTERVAL
        assert re.search(killed(worker), restart["reason"])
    assert last["lost_steps"] == 0 and "got SIGTERM" in last["reason"]


def test_pods_deleted_by_force_cost_at_most_one_checkpoint_interval_each_also_of_input_workers(
    desk: Desk, calm: Run, run: Run
) -> None:
    """The weights are those of a run without input workers."""
    run.input_workers = 2
    run.start().reaches(2 * INTERVAL)
    steps = []
    for pod in (run.worker(1, "-input"), run.worker(1), run.worker(0)):
        steps.append(run.step())
        run.namespace.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        until(lambda: len(run.event("resumed")) >= len(steps) or run.has_ended(), SECONDS)
    assert_survived(desk, run, calm)
    resumed = [event["step"] for event in run.event("resumed")]
    assert all(begins >= step - INTERVAL for begins, step in zip(resumed, steps, strict=True))
    assert "input worker 1 of 2" in run.event("restarting")[0]["reason"]
