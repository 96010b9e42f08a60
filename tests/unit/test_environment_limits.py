"""How long a step and a run may take, and how often a step is started again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_environment import KUBEFLOW, load

from trainyard.spec import environment as environments
from trainyard.steps.train.peers import launcher_heartbeat


def test_a_step_has_a_deadline_and_few_retries_where_nothing_is_said_of_them(tmp_path: Path) -> None:
    silent = load(tmp_path, KUBEFLOW)
    assert (silent.timeout_of("train"), silent.retries_of("train")) == (7 * 86400, 3)
    assert (silent.timeout_of("push"), silent.retries_of("push")) == (3600, 1)
    assert (silent.timeout_of("somebody-elses"), silent.retries_of("somebody-elses")) == (None, 0)
    loaded = load(tmp_path, KUBEFLOW + "timeout_seconds: {default: 60, train: 90}\nretries: {default: 0}\n")
    assert (loaded.timeout_of("train"), loaded.timeout_of("push"), loaded.retries_of("train")) == (90, 60, 0)


@pytest.mark.parametrize("retries", range(11))
def test_no_pause_before_a_retry_outlasts_the_patience_of_a_gang_without_its_launcher(retries: int) -> None:
    waits = environments.pauses(retries)
    assert len(waits) == retries and waits == sorted(waits)
    assert (
        max(waits, default=0) + 300 <= launcher_heartbeat._PATIENCE_SECONDS
    )  # five minutes for the pod of the retry to start


def test_pauses_double_until_they_would_grow_too_long() -> None:
    assert environments.pauses(5) == [30, 60, 120, 240, 480]
    assert environments.pauses(7) == [300] * 7


def test_a_run_has_a_deadline_of_its_steps_and_a_day_for_waits_unless_one_of_them_may_take_any_time(
    tmp_path: Path,
) -> None:
    silent = load(tmp_path, KUBEFLOW)
    twice, four_times = 2 * 60 + 30, 4 * 90 + 30 + 60 + 120
    assert silent.deadline_of([("preprocess", 60), ("train", 90)]) == 86400 + twice + four_times
    assert silent.deadline_of([("check", 60)]) == 86400 + twice
    assert silent.deadline_of([("train", None)]) is None
    assert silent.deadline_of([("somebody-elses", 60)]) is None
    assert load(tmp_path, KUBEFLOW + "deadline_seconds: 7\n").deadline_of([("somebody-elses", 60)]) == 7
    assert load(tmp_path, KUBEFLOW + "deadline_seconds: 0\n").deadline_of([("train", 90)]) is None
