"""Who takes whom for dead: the launcher's heartbeat, the watchdog over a training's calls, and a pod's node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest
from ports import free_port

from trainyard.heartbeat import Heartbeat
from trainyard.steps.train.gang.pods import pod
from trainyard.steps.train.input.service import worker
from trainyard.steps.train.loop.watchdog import Watchdog
from trainyard.steps.train.peers import launcher_heartbeat, liveness
from trainyard.steps.train.peers.launcher_heartbeat import LauncherMonitor
from trainyard.storage import storage


def test_a_heartbeat_goes_on_after_a_fault_that_nobody_thought_of(capfd: pytest.CaptureFixture[str]) -> None:
    faults = iter([RuntimeError("no more threads"), KeyError("x"), RecursionError()])
    again = threading.Event()

    def beat() -> None:
        if fault := next(faults, None):
            raise fault
        again.set()

    heartbeat = Heartbeat("the sign", 0.001, beat)
    heartbeat.start()
    assert again.wait(60)
    heartbeat.stop()
    heartbeat.join(60)
    output = capfd.readouterr().err
    assert "the sign: no more threads" in output and "the sign: RecursionError" in output


def test_the_launchers_heartbeat_goes_on_after_such_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_heartbeat, "_BEAT_SECONDS", 0.005)
    uri, write, count = str(tmp_path / "launcher"), storage.write_text, iter(range(99))
    renewed = threading.Event()

    def flaky(uri: str, text: str) -> None:
        match next(count):
            case 1:
                raise RuntimeError("cannot schedule new futures")
            case 3:
                renewed.set()
        write(uri, text)

    monkeypatch.setattr(storage, "write_text", flaky)
    with launcher_heartbeat.beating(uri):
        assert renewed.wait(60)


@pytest.mark.parametrize("fault", [OSError("gone"), RuntimeError("a fault of a client")])
def test_a_storage_that_cannot_be_read_says_nothing_of_the_launcher_and_costs_it_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    file = tmp_path / "launcher"
    file.write_text("1")
    monkeypatch.setenv("TRAINYARD_LAUNCHER_SIGN", str(file))
    monkeypatch.setenv("TRAINYARD_LAUNCHER_PATIENCE_SECONDS", "90")
    now = 0.0
    monkeypatch.setattr(launcher_heartbeat.time, "monotonic", lambda: now)
    monitor, read = LauncherMonitor(), storage.read_text

    def poll(seconds: float) -> bool:
        nonlocal now
        for _ in range(int(seconds / 30)):
            now += 30
            monitor.read()
        return monitor.is_lost

    def unreachable(uri: str) -> str:
        raise fault

    assert not poll(60)
    monkeypatch.setattr(storage, "read_text", unreachable)
    assert not poll(3600)
    monkeypatch.setattr(storage, "read_text", read)
    assert not poll(30)
    file.write_text("2")
    assert not poll(90) and poll(60)


def test_a_storage_that_does_not_answer_keeps_nobody_waiting_who_asks_for_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def read_text(_: str) -> str | None:
        asked.set()
        answered.wait(60)
        return None

    monkeypatch.setattr(storage, "read_text", read_text)
    monkeypatch.setenv("TRAINYARD_LAUNCHER_SIGN", str(tmp_path / "launcher"))
    monkeypatch.setenv("TRAINYARD_LAUNCHER_PATIENCE_SECONDS", "0.03")
    monitor = LauncherMonitor()
    monitor.start()
    assert asked.wait(60) and not monitor.is_lost
    answered.set()
    latest = time.monotonic() + 60
    while not monitor.is_lost and time.monotonic() < latest:
        time.sleep(0.01)
    assert monitor.is_lost


def test_the_first_call_of_a_kind_traces_and_compiles_and_only_the_later_ones_are_held_to_the_limit() -> None:
    stalled: list[float] = []
    ended = threading.Event()

    def on_stall(seconds: float) -> None:
        stalled.append(seconds)
        ended.set()

    dog = Watchdog(0.1, 60.0, on_stall)
    with dog.watching():
        for kind in ("train", "evaluate"):
            with dog.call(kind):
                time.sleep(0.25)
        time.sleep(0.25)  # a checkpoint, an export
        assert not stalled
        with dog.call("train"):
            assert ended.wait(60)
    assert stalled == [0.1]


def test_what_never_ends_outside_of_a_call_is_found_by_the_longer_limit() -> None:
    ended = threading.Event()
    dog = Watchdog(0.05, 0.2, lambda seconds: ended.set())
    with dog.watching():
        assert ended.wait(60)


def test_a_pod_answers_its_node_whoever_else_calls_and_not_while_it_stands_still() -> None:
    port = free_port()
    program = f"from trainyard.steps.train.peers import liveness; liveness.answer({port}); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline()
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for host in ("127.0.0.1", "[::1]") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            with urllib.request.urlopen(f"http://{host}:{port}/", timeout=60) as answer:
                assert answer.status == 200
        liveness.answer(port)  # another process of this machine that stands for a pod
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=0.5)
        process.kill()
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("program", [pod, worker])
def test_a_pod_answers_before_it_does_anything_else(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "answer", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        program.main()
