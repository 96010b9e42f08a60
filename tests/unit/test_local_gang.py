"""A gang on this machine whose supervisors are small shell scripts."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard import events
from trainyard.contract.gang import ElasticGang
from trainyard.errors import DataError, TransientError
from trainyard.spec import recipe as recipes
from trainyard.steps.train.gang import local_gang

KILLED_THREE_TIMES = "echo >> starts; [ $(wc -l < starts) -gt 3 ] || kill -9 $$; touch done"
UNTIL_WORKER_0_IS_DONE = "until [ -e done ]; do sleep 0.02; done"
FAILED = '{"event": "failed", "step": "train", "code": 10, "error": "DataError", "message": "train: no rows."}'


@pytest.mark.parametrize(("counts", "codes"), [([1, 2, 3], "0 with 0, worker 1 with 0"), ([3], "0 with -9")])
def test_a_worker_0_that_is_killed_again_and_again_gets_the_place_of_the_last_worker_of_an_elastic_gang(
    counts: list[int], codes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_script(_: list[str], environment: dict[str, str], **__: Any) -> subprocess.Popen[str]:
        script = UNTIL_WORKER_0_IS_DONE if int(environment["TRAINYARD_WORKER_INDEX"]) else KILLED_THREE_TIMES
        return subprocess.Popen(["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(local_gang, "start_program", start_script)
    monkeypatch.setattr(local_gang, "_LAST_SECONDS", 0.2)
    elastic = ElasticGang(counts=counts, replace_seconds=1, start_deadline_seconds=9)
    with pytest.raises(TransientError, match=rf"ended without a model \(worker {codes}\)"):
        local_gang.run(recipes.load("digits"), "", f"{tmp_path}/checkpoints", tmp_path / "output", elastic=elastic)


def test_a_worker_that_gave_its_place_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 ends once worker 2 was started twice."""

    def start_script(_: list[str], environment: dict[str, str], **__: Any) -> subprocess.Popen[str]:
        worker = int(environment["TRAINYARD_WORKER_INDEX"])
        until_both = "until [ -e starts-2 ] && [ $(wc -l < starts-2) -gt 1 ]; do sleep 0.02; done"
        chief = f"echo >> starts; [ $(wc -l < starts) -gt 3 ] || kill -9 $$; {until_both}; touch done"
        script = f"echo >> starts-{worker}; {UNTIL_WORKER_0_IS_DONE}" if worker else chief
        return subprocess.Popen(["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(local_gang, "start_program", start_script)
    monkeypatch.setattr(local_gang, "_LAST_SECONDS", 0.2)
    elastic = ElasticGang(counts=[1, 2, 3], replace_seconds=1, start_deadline_seconds=9)
    with pytest.raises(TransientError, match=r"\(worker 0 with 0, worker 1 with 0, worker 2 with 0\)"):
        local_gang.run(recipes.load("digits"), "", f"{tmp_path}/checkpoints", tmp_path / "output", elastic=elastic)


def test_the_failure_of_a_supervisor_is_known_though_its_last_line_is_read_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_script(*_: Any, **__: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(["sh", "-c", f"echo '{FAILED}'; exit 10"], stdout=subprocess.PIPE, text=True)

    def parse_late(line: str) -> dict[str, Any]:
        time.sleep(0.3)
        return parse(line)

    parse = events.parse
    monkeypatch.setattr(events, "parse", parse_late)
    monkeypatch.setattr(local_gang, "start_program", start_script)
    with pytest.raises(DataError, match=r"^train: no rows\.$"):
        local_gang.run(recipes.load("digits"), "", f"{tmp_path}/checkpoints", tmp_path / "output")
