"""A gang on this machine whose supervisors are small shell scripts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
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


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a gang whose supervisor of each worker is a script."""

    def run(script_of: Callable[[int], str], **options: Any) -> None:
        def start_script(_: list[str], environment: dict[str, str], **__: Any) -> subprocess.Popen[str]:
            script = script_of(int(environment["TRAINYARD_WORKER_INDEX"]))
            return subprocess.Popen(["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)

        monkeypatch.setattr(local_gang, "start_program", start_script)
        local_gang.run(recipes.load("digits"), "", f"{tmp_path}/checkpoints", tmp_path / "output", **options)

    monkeypatch.setattr(local_gang, "_LAST_SECONDS", 0.2)
    return run


@pytest.mark.parametrize(("counts", "codes"), [([1, 2, 3], "0 with 0, worker 1 with 0"), ([3], "0 with -9")])
def test_a_worker_0_that_is_killed_again_and_again_gets_the_place_of_the_last_worker_of_an_elastic_gang(
    counts: list[int], codes: str, run: Callable[..., None]
) -> None:
    elastic = ElasticGang(counts=counts, replace_seconds=1, start_deadline_seconds=9)
    with pytest.raises(TransientError, match=rf"ended without a model \(worker {codes}\)"):
        run(lambda worker: UNTIL_WORKER_0_IS_DONE if worker else KILLED_THREE_TIMES, elastic=elastic)


def test_a_worker_that_gave_its_place_is_started_again(run: Callable[..., None]) -> None:
    """Worker 0 ends once worker 2 was started twice."""
    until_both = "until [ -e starts-2 ] && [ $(wc -l < starts-2) -gt 1 ]; do sleep 0.02; done"
    chief = KILLED_THREE_TIMES.replace("touch", f"{until_both}; touch")
    elastic = ElasticGang(counts=[1, 2, 3], replace_seconds=1, start_deadline_seconds=9)
    with pytest.raises(TransientError, match=r"\(worker 0 with 0, worker 1 with 0, worker 2 with 0\)"):
        run(lambda worker: f"echo >> starts-{worker}; {UNTIL_WORKER_0_IS_DONE}" if worker else chief, elastic=elastic)


def test_the_failure_of_a_supervisor_is_known_though_its_last_line_is_read_after_its_end(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse_late(line: str) -> dict[str, Any]:
        time.sleep(0.3)
        return parse(line)

    parse = events.parse
    monkeypatch.setattr(events, "parse", parse_late)
    with pytest.raises(DataError, match=r"^train: no rows\.$"):
        run(lambda _: f"echo '{FAILED}'; exit 10")
