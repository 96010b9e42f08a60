"""Where the wall time of a training went, and how a gang compares with one worker, from hand-made records."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from report_folders import training

from trainyard.contract.artifacts.train import Restart
from trainyard.report.report import Scaling, scaling
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.storage import storage


@pytest.fixture(autouse=True)
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass in a test."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)


def test_every_second_goes_into_steps_restarts_lost_work_or_what_was_spent() -> None:
    restart = Restart(reason="killed", step=30, resumed_at=25, lost_steps=5, seconds=10.0)
    past = GangHistory(started=time.monotonic() - 100, began_at=0, restarts=[restart])
    goodput = past.goodput(step=600, step_seconds=0.1, spent={"compile": 4.0, "step": 3.0, "eval": 6.0})
    split = goodput.seconds
    assert split["other"] == pytest.approx(100 - 60 - 10 - 0.5 - 6)
    assert {**split, "other": 0} == {"step": 60.0, "restart": 10.0, "lost_work": 0.5, "eval": 6.0, "other": 0}
    assert goodput.share == pytest.approx(0.6)


def test_the_start_counts_by_itself_where_nothing_was_restarted() -> None:
    past = GangHistory(started=time.monotonic() - 10, began_at=0, spent={"import": 2.0})
    split = past.goodput(step=40, step_seconds=0.1, spent={"compile": 1.0}).seconds
    assert {**split, "other": 0} == {"step": 4.0, "import": 2.0, "compile": 1.0, "other": 0}


def test_the_steps_of_an_earlier_run_do_not_count_also_where_the_gang_was_broken() -> None:
    past = GangHistory(started=time.monotonic() - 100, last_break=("killed", 430, time.monotonic() - 5))
    past.note_new_steps(resumed_at=400, workers=2)
    assert past.began_at == 400
    later = GangHistory(started=past.started, began_at=400, last_break=("killed", 530, time.monotonic() - 5))
    later.note_new_steps(resumed_at=525, workers=2)
    assert (later.began_at, later.restarts[0].lost_steps) == (400, 5)
    assert later.goodput(step=700, step_seconds=0.1, spent={}).seconds["step"] == 30.0
    assert GangHistory().goodput(step=700, step_seconds=0.1, spent={}).seconds["step"] == 0  # nothing was left to do


def test_the_time_in_the_queue_comes_before_the_others() -> None:
    past = GangHistory(started=time.monotonic() - 10, began_at=0, spent={"meet": 2.0})
    goodput = past.goodput(step=40, step_seconds=0.1, spent={}, queue=30.0)
    split = goodput.seconds
    assert split["other"] == pytest.approx(4)
    assert {**split, "other": 0} == {"step": 4.0, "meet": 2.0, "queue": 30.0, "other": 0}
    assert goodput.share == pytest.approx(0.1)


def test_a_gang_is_held_against_the_one_worker_whose_batch_each_of_its_workers_has(tmp_path: Path) -> None:
    gang: dict[str, object] = {
        "workers": 2,
        "examples_per_second": 180.0,
        "step_ms": 1000 * 64 / 180,
        "worker_counts": [],
    }
    write(tmp_path / "gang", **gang)
    write(tmp_path / "whole", examples_per_second=120.0, step_ms=1000 * 64 / 120)
    write(tmp_path / "half", examples_per_second=100.0, step_ms=1000 * 32 / 100)
    write(tmp_path / "another", examples_per_second=1.0, step_ms=1000 * 32, parameters=7)
    gang_training = training(**gang)
    changing = training(**gang | {"worker_counts": training().gang.worker_counts})
    assert scaling(changing, str(tmp_path / "gang")) is None
    assert scaling(gang_training, str(tmp_path / "gang")) == Scaling(2, 0.9, 100.0, same_part=True)
    storage.remove(str(tmp_path / "half"))
    assert scaling(gang_training, str(tmp_path / "gang")) == Scaling(2, 0.75, 120.0, same_part=False)
    storage.remove(str(tmp_path / "whole"))
    assert scaling(gang_training, str(tmp_path / "gang")) is None
    (tmp_path / "copied").mkdir()
    training(examples_per_second=100.0, step_ms=320.0).write(tmp_path / "copied")
    assert scaling(gang_training, str(tmp_path / "gang")) is None, "what is not committed is no training"


def write(folder: Path, **changes: object) -> None:
    with storage.stage(str(folder), "trainyard.train") as staged:
        training(**{"worker_counts": []} | changes).write(staged)
