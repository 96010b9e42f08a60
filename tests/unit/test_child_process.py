"""Children of the fork server: what is known of them where it, or they, are killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import TransientError
from trainyard.process import child_process, signals
from trainyard.process.child_process import ChildProcess


def hold(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def leave(code: int) -> None:
    os._exit(code)


def tell(name: str, generations: int) -> None:
    """Print the variable `name` of this process and of its child."""
    print(os.environ.get(name, "unset"), flush=True)
    if generations > 1:
        print(told(name, generations - 1), end="", flush=True)
    os._exit(0)


def told(name: str, generations: int) -> str:
    child = ChildProcess(tell, (name, generations))
    with child.lines as lines:
        return lines.read()


def speak(text: str) -> None:
    print(text, flush=True)
    os._exit(3)


def start_without_the_server(server: int, codes: tuple[int, ...]) -> None:
    os.kill(server, signal.SIGKILL)
    children: list[ChildProcess] = []
    threads = [threading.Thread(target=lambda c=code: children.append(ChildProcess(leave, (c,)))) for code in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        child.join(60)
    print(sorted(child.code or 0 for child in children), flush=True)
    os._exit(0)


def hold_the_lock(path: str) -> None:
    """Hold the interpreter's lock, as TensorFlow does while it connects, with a program beside it."""
    program = subprocess.Popen(["sleep", "600"])
    Path(f"{path}.program").write_text(str(program.pid))
    Path(path).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


def leave_a_child(path: str, target: str) -> None:
    blocked(Path(path), globals()[target])
    os._exit(0)  # without the end of an interpreter, which would end it


def killed_parent(path: Path, target: str) -> int:
    """Return the process that ran `target` when its parent ended."""
    code = "import sys; sys.path[0] = sys.argv[1]; import test_child_process as t; t.leave_a_child(*sys.argv[2:])"
    subprocess.run([sys.executable, "-c", code, Path(__file__).parent, path, target], check=True)
    return int(path.read_text())


def has_ended(pid: int, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while child_process.start_time(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not child_process.start_time(pid)


def server() -> int:
    """Return the fork server of this process."""
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    [pid] = [pid for pid in children if b"run_fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(pid)


def keeper(child: ChildProcess) -> int:
    return int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])


def blocked(path: Path, target: Callable[[str], None] = hold) -> ChildProcess:
    path.unlink(missing_ok=True)
    child = ChildProcess(target, (str(path),), "held")
    while not path.exists() or path.read_text() != str(child.pid):
        time.sleep(0.01)
    return child


def test_a_child_outlives_a_killed_server_and_the_next_one_has_a_fresh_server(tmp_path: Path) -> None:
    child_process.prepare_fork_server([])
    child, before = blocked(tmp_path / "pid"), server()
    os.kill(before, signal.SIGKILL)
    other = ChildProcess(leave, (7,))
    other.join(60)
    assert other.code == 7 and server() != before and child.is_alive()
    child.terminate()
    child.join(60)
    assert child.code == -signal.SIGTERM


def test_a_child_does_not_outlive_its_killed_keeper(tmp_path: Path) -> None:
    child = blocked(tmp_path / "pid")
    os.kill(keeper(child), signal.SIGKILL)
    child.join(60)
    assert child.code == child_process.LOST and not child.is_alive()
    assert has_ended(child.pid)


def test_a_server_gets_no_sigterm_and_its_children_do(tmp_path: Path) -> None:
    child_process.prepare_fork_server([])
    child, before = blocked(tmp_path / "pid"), server()
    os.kill(before, signal.SIGTERM)
    child.terminate()
    child.join(60)
    assert child.code == -signal.SIGTERM
    other = ChildProcess(leave, (0,))
    other.join(60)
    assert other.code == 0 and server() == before


def test_a_server_killed_before_its_first_child_costs_nothing() -> None:
    child_process.prepare_fork_server([])
    os.kill(server(), signal.SIGKILL)
    child = ChildProcess(leave, (3,))
    child.join(60)
    assert child.code == 3


def test_a_child_whose_server_was_killed_starts_its_children_from_a_server_of_its_own() -> None:
    child_process.prepare_fork_server([])
    child = ChildProcess(start_without_the_server, (server(), (3, 4)))
    assert [*child.lines] == ["[3, 4]\n"]


def test_a_machine_that_stalls_for_long_is_no_server_that_is_killed_at_every_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, kills_left, popen = time.monotonic, [1], subprocess.Popen

    def start_and_kill(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **options)
        if kills_left[0]:
            kills_left[0] -= 1
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 60)
        return process

    monkeypatch.setattr(child_process, "_PAUSES", (0.01, 0.01, 0.01))
    ChildProcess(leave, (0,)).join(60)
    monkeypatch.setattr(subprocess, "Popen", start_and_kill)
    os.kill(server(), signal.SIGKILL)
    child = ChildProcess(leave, (3,))
    child.join(60)
    assert child.code == 3
    kills_left[0] = 2
    os.kill(server(), signal.SIGKILL)
    with pytest.raises(TransientError, match=r"^held: could not be started, the fork server was killed again"):
        ChildProcess(leave, (3,), "held")
    assert not kills_left[0]


def test_what_a_child_and_a_program_write_is_read_and_how_they_ended_is_described() -> None:
    child = ChildProcess(speak, ("out",))
    program = child_process.start_program([sys.executable, "-c", "import sys; sys.exit('out')"], dict(os.environ))
    assert [[*child.lines], [*(program.stdout or ())]] == [["out\n"], ["out\n"]]
    child.kill(10)
    child_process.end_programs([program], 10)
    assert [child_process.describe_exit(code or 0) for code in (child.code, program.returncode)] == [
        "ended with exit status 3",
        "ended with exit status 1",
    ]
    assert child_process.describe_exit(-signal.SIGSEGV) == "ended with SIGSEGV"
    failed = ChildProcess(int, ("one",))
    assert [*failed.lines][-1].startswith("ValueError: invalid literal")
    failed.join(60)
    assert failed.code == 1


def test_a_child_ends_with_its_parent_and_one_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    child = blocked(tmp_path / "pid")
    child.kill(0.1)
    assert child.code == -signal.SIGKILL
    assert has_ended(killed_parent(tmp_path / "orphan", "hold"))


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_child_that_holds_the_interpreters_lock_ends_with_its_parent_and_its_program_too(tmp_path: Path) -> None:
    orphan = killed_parent(tmp_path / "orphan", "hold_the_lock")
    try:
        assert has_ended(orphan) and has_ended(int((tmp_path / "orphan.program").read_text()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(orphan, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_program_whose_parent_is_gone_before_the_kernel_watches_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    first = child_process.end_with_parent()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    program = child_process.start_program([sys.executable, "-c", "pass"], dict(os.environ), first=first)
    assert program.wait(60) == -signal.SIGKILL


def test_a_program_s_output_is_returned_and_the_last_line_of_its_errors_raised() -> None:
    assert child_process.program_output([sys.executable, "-c", "print(1); print(2)"]) == "1\n2\n"
    with pytest.raises(child_process.ProgramFailed, match=r"^no such file$"):
        child_process.program_output([sys.executable, "-c", "import sys; print(1); sys.exit('first\\nno such file')"])


def test_a_program_ends_with_the_parent_that_waits_for_its_output(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(600)"
    code = "import sys; from trainyard.process.child_process import program_output as p; "
    code += f"p([sys.executable, '-c', {program!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 30
    while not (file.exists() and file.read_text().endswith(".")) and time.monotonic() < end:
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    assert has_ended(int(file.read_text().rstrip(".")))


def test_the_signal_that_was_blocked_for_the_server_still_reaches_this_process() -> None:
    child_process.prepare_fork_server([])
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_a_process_that_has_ended_and_that_nobody_waits_for_runs_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.read() == b""
    end = time.monotonic() + 60
    while child_process.start_time(process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert Path(f"/proc/{process.pid}").exists() and not child_process.start_time(process.pid)
    assert child_process.start_time(os.getpid())
    process.wait()


def test_a_signal_that_comes_twice_at_once_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    monkeypatch.setattr(signals, "_received_at", [-1e9])
    with pytest.raises(signals.Terminated):
        signals.handle_sigterm(signal.SIGTERM, None)
    signals.handle_sigterm(signal.SIGTERM, None)
    now += 5
    with pytest.raises(signals.Terminated):
        signals.handle_sigterm(signal.SIGTERM, None)


def test_threads_that_start_and_end_children_at_a_time_get_the_exit_code_of_their_own() -> None:
    codes: dict[int, set[int | None]] = {number: set() for number in (1, 2, 3, 4)}

    def work_on(number: int) -> None:
        for _ in range(8):
            child = ChildProcess(os._exit, (number,))  # without the imports of this module
            child.join()
            codes[number].add(child.code)

    threads = [threading.Thread(target=work_on, args=(number,)) for number in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == {number: {number} for number in codes}


def test_a_child_and_its_child_have_the_variables_of_now_and_none_that_was_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child_process.prepare_fork_server([])
    os.kill(server(), signal.SIGKILL)  # the next one starts with the variable
    monkeypatch.setenv("A_VARIABLE", "first")
    assert told("A_VARIABLE", 2) == "first\nfirst\n"
    monkeypatch.setenv("A_VARIABLE", "second")
    assert told("A_VARIABLE", 2) == "second\nsecond\n"
    monkeypatch.delenv("A_VARIABLE")
    assert told("A_VARIABLE", 2) == "unset\nunset\n"
