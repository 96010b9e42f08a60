"""Children of the fork server: what is known of them where it, or they, are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from trainyard import processes, signals
from trainyard.errors import Preempted


def hold(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def leave(code: int) -> None:
    os._exit(code)


def server() -> int:
    return int(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]


def held(path: Path) -> processes.Child:
    path.unlink(missing_ok=True)
    child = processes.Child(hold, (str(path),), "held")
    while not path.exists() or path.read_text() != str(child.pid):
        time.sleep(0.01)
    return child


def test_a_child_does_not_outlive_a_killed_server_and_the_next_one_has_a_fresh_server(tmp_path: Path) -> None:
    processes.prepare([])
    child, before = held(tmp_path / "pid"), server()
    os.kill(before, signal.SIGKILL)
    child.join(10)
    assert child.code == processes.LOST and not child.is_alive()
    assert not processes.started(child.pid)
    other = processes.Child(leave, (7,))
    other.join(10)
    assert other.code == 7 and server() != before


def test_a_server_gets_no_sigterm_and_its_children_do(tmp_path: Path) -> None:
    processes.prepare([])
    child, before = held(tmp_path / "pid"), server()
    os.kill(before, signal.SIGTERM)
    child.terminate()
    child.join(10)
    assert child.code == -signal.SIGTERM
    other = processes.Child(leave, (0,))
    other.join(10)
    assert other.code == 0 and server() == before


def test_a_server_killed_before_its_first_child_costs_nothing() -> None:
    processes.prepare([])
    os.kill(server(), signal.SIGKILL)
    child = processes.Child(leave, (3,))
    child.join(10)
    assert child.code == 3


def test_the_signal_that_was_blocked_for_the_server_still_reaches_this_process() -> None:
    processes.prepare([])
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_a_process_that_has_ended_and_that_nobody_waits_for_runs_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.read() == b""
    end = time.monotonic() + 5
    while processes.started(process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert Path(f"/proc/{process.pid}").exists() and not processes.started(process.pid)
    assert processes.started(os.getpid())
    process.wait()


def test_a_signal_that_comes_twice_at_once_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    monkeypatch.setattr(signals, "_told", [-1e9])
    with pytest.raises(Preempted):
        signals.told_to_stop(signal.SIGTERM, None)
    signals.told_to_stop(signal.SIGTERM, None)
    now += 5
    with pytest.raises(Preempted):
        signals.told_to_stop(signal.SIGTERM, None)
