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


def test_training_processes_killed_in_their_pods_cost_at_most_one_checkpoint_interval_each(
    desk: Desk, calm: Run, run: Run
) -> None:
    run.start().reaches(2 * INTERVAL)
    signalled = signal_training_process(run.namespace, run.worker(1))
    run.says('"event": "recovered"')
    recovered = run.moment('"event": "recovered"')
    print(f"seconds from the kill to new steps: {recovered - signalled:.1f}")
    signal_training_process(run.namespace, run.worker(0))
    training = assert_survived(desk, run, calm)
    for worker, restart in zip((1, 0), training["gang"]["restarts"], strict=True):
        assert restart["lost_steps"] <= INTERVAL
        assert re.search(killed(worker), restart["reason"])


def test_pods_deleted_by_force_cost_at_most_one_checkpoint_interval_each(desk: Desk, calm: Run, run: Run) -> None:
    run.start().reaches(2 * INTERVAL)
    steps = []
    for index in (1, 0):
        steps.append(run.step())
        run.namespace.kubectl("delete", "pod", run.worker(index), "--grace-period=0", "--force")
        until(lambda: len(run.event("resumed")) >= len(steps) or run.has_ended(), SECONDS)
    assert_survived(desk, run, calm)
    resumed = [event["step"] for event in run.event("resumed")]
    assert resumed[0] >= steps[0] - INTERVAL and resumed[-1] >= steps[1] - INTERVAL


def test_a_gang_fed_by_input_workers_survives_the_death_of_one_with_the_weights_of_an_unfed_one(
    desk: Desk, calm: Run, run: Run
) -> None:
    run.input_workers = 2
    run.start().reaches(2 * INTERVAL)
    step = run.step()
    run.namespace.kubectl("delete", "pod", run.worker(1, "-input"), "--grace-period=0", "--force")
    training = assert_survived(desk, run, calm)
    (restart,) = training["gang"]["restarts"]
    assert "input worker 1 of 2" in restart["reason"] and restart["resumed_at"] >= step - INTERVAL


def test_a_worker_with_ten_seconds_of_grace_saves_the_step_it_is_at(desk: Desk, calm: Run, run: Run) -> None:
    run.start().reaches(EPOCH + INTERVAL)  # an epoch's end is compiled by then, which takes seconds
    run.namespace.kubectl("delete", "pod", run.worker(1), "--grace-period=10", "--wait=false")
    training = assert_survived(desk, run, calm)
    (restart,) = training["gang"]["restarts"]
    assert restart["lost_steps"] == 0 and "got SIGTERM" in restart["reason"]
