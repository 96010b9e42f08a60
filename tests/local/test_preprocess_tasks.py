"""Tasks on every core of the machine: by this process and by workers that may be lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainyard.beam import tasks
from trainyard.errors import TransientError
from trainyard.process.child_process import ChildProcess

TASKS = list(range(20))


@dataclass
class Work:
    """Leaves a file named after the task and the process that did it. `fault` is what the workers meet."""

    folder: Path
    own_process: int
    fault: str = ""

    def __call__(self, task: int) -> None:
        helps = os.getpid() != self.own_process
        if helps and self.fault == "killed":
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "unreachable" and task == TASKS[-1] and self.count("worker"):
            raise TransientError("the bucket does not answer")
        latest = time.monotonic() + 100
        while not (helps or self.count("worker") or self.killed.exists()) and time.monotonic() < latest:
            time.sleep(0.05)  # until a worker is there, this process has no more than begun
        time.sleep(0.1)
        if helps:
            print(f"task {task}", flush=True)
        (self.folder / f"{task}.{'worker' if helps else 'own'}").touch()

    @property
    def killed(self) -> Path:
        return self.folder.with_name("killed")

    def count(self, who: str) -> int:
        return len(list(self.folder.glob(f"*.{who}")))

    def left(self) -> list[int]:
        done = {int(path.stem) for path in self.folder.iterdir()}
        return [task for task in TASKS if task not in done]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[ChildProcess]:
    """Return the list of the worker processes that the test has started."""
    started: list[ChildProcess] = []

    def start(*arguments: Any) -> ChildProcess:
        started.append(ChildProcess(*arguments))
        return started[-1]

    monkeypatch.setattr(tasks, "ChildProcess", start)
    return started


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Work]:
    monkeypatch.setattr(tasks, "_cores", lambda: 2)
    (tmp_path / "done").mkdir()
    return lambda fault: Work(tmp_path / "done", os.getpid(), fault)


def test_a_worker_takes_tasks_and_each_is_done_once(
    work: Callable[[str], Work], workers: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lines = work(""), list[str]()

    def write(line: str) -> None:
        time.sleep(0.2)  # longer than a task, so the reader is behind when the worker ends
        lines.append(line)

    monkeypatch.setattr(tasks.events, "write", write)
    tasks.run_tasks(job, job.left, "", tasks._BYTES, __name__)
    assert (job.count("own") + job.count("worker"), job.left()) == (len(TASKS), [])
    assert job.count("own") and job.count("worker")
    assert sum(line.startswith("task ") for line in lines) == job.count("worker")
    assert workers and not any(worker.is_alive() for worker in workers)


def test_what_a_killed_worker_took_is_done_all_the_same(
    work: Callable[[str], Work], capfd: pytest.CaptureFixture[str]
) -> None:
    job = work("killed")
    tasks.run_tasks(job, job.left, "", tasks._BYTES, __name__)
    assert job.killed.exists() and (job.count("own"), job.left()) == (len(TASKS), [])
    assert "a worker process was killed (SIGKILL)" in capfd.readouterr().err


def test_what_stops_a_task_is_raised_here_and_no_worker_stays(
    work: Callable[[str], Work], workers: list[ChildProcess]
) -> None:
    job = work("unreachable")
    with pytest.raises(TransientError, match=r"^the bucket does not answer$"):
        tasks.run_tasks(job, job.left, "", tasks._BYTES, __name__)
    assert TASKS[-1] in job.left()
    assert workers and not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize(
    ("cores", "limit_mib", "count", "data_bytes", "workers"),
    [
        (8, None, 100, 3 * tasks._BYTES, 3),
        (8, None, 100, tasks._BYTES - 1, 0),
        (4, None, 100, 100 * tasks._BYTES, 3),
        (8, 3 * tasks._PROCESS_MIB, 100, 100 * tasks._BYTES, 2),
        (8, None, 3, 100 * tasks._BYTES, 2),
        (8, None, 0, 100 * tasks._BYTES, 0),
    ],
)
def test_there_are_as_many_workers_as_data_cores_memory_and_tasks_allow(
    cores: int, limit_mib: int | None, count: int, data_bytes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_cores", lambda: cores)
    monkeypatch.setattr(tasks.memory, "limit_mib", lambda: limit_mib)
    assert tasks._worker_processes(count, data_bytes) == workers


def test_a_quota_counts_as_its_whole_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(tasks.os, "sched_getaffinity", lambda _: set(range(16)))
    for quota, cores in (("350000 100000", 3), ("50000 100000", 1), ("max 100000", 16)):
        (tmp_path / "cpu.max").write_text(quota)
        assert tasks._cores() == cores
