"""What ends `trainyard run` from outside: signals to all of its processes, a kill of the one that starts steps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from trainyard.process.child_process import start_time
from trainyard.report import local_runs
from trainyard_control.local.step_process import Stop, forked

TRAINYARD = str(Path(sys.executable).parent / "trainyard")
CHECKPOINT = "train/*.checkpoints/ckpt-[1-9]*"  # of a training that is past its first steps
OPTIONS = ["--set", "train.epochs=12", "--set", "train.early_stopping=null"]  # still seconds after that checkpoint
OPTIONS += ["--set", "export.formats=[saved_model]", "--set", "evaluate.bootstrap=20"]


def write_down() -> None:
    """Say what a step would find, and leave a temporary file as a step that ends at once does."""
    tempfile.mkstemp()
    print(os.environ["A_VARIABLE"], tempfile.gettempdir(), flush=True)
    os._exit(0)


def test_a_step_has_the_variables_of_now_and_its_temporary_files_go_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    for value in ("before the fork server", "in a later cell"):
        monkeypatch.setenv("A_VARIABLE", value)
        with forked(write_down, (), "step", Stop()) as running:
            variable, _, folder = running.child.lines.readline().strip().rpartition(" ")
            running.wait()
            assert variable == value and [*Path(folder).iterdir()]
        assert not [*tmp_path.glob("*/*")]


def wait() -> None:
    print("ready", flush=True)
    signal.pause()


RUN = """
import sys; sys.path[0] = sys.argv[1]
import test_run_signals as tests
from trainyard_control.local import step_process
step_process._IMPORTED_ONCE = []
with step_process.forked(getattr(tests, sys.argv[2]), (), "step", step_process.Stop()) as running:
    print(running.child.lines.readline(), end="", flush=True)
    running.wait()
"""


def test_the_next_run_removes_what_a_killed_one_left_in_the_folder_of_temporary_files() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        variables = {**os.environ, "TMPDIR": temporary, "A_VARIABLE": "-"}
        variables.pop("TRAINYARD_CACHE", None)
        command = [sys.executable, "-c", RUN, str(Path(__file__).parent)]
        killed = subprocess.Popen([*command, "wait"], env=variables, stdout=subprocess.PIPE, text=True)
        assert killed.stdout and killed.stdout.readline() == "ready\n"
        killed.kill()
        killed.wait()
        [cache] = Path(temporary).iterdir()
        assert cache.name == f"trainyard-cache-{os.geteuid()}" and [*cache.glob(".partial-*")]
        ended = subprocess.run([*command, "write_down"], env=variables, capture_output=True, text=True, check=True)
        assert not [*cache.iterdir()] and [*Path(temporary).iterdir()] == [cache] and not ended.stderr


def end_otherwise() -> None:
    """Take an interrupt for an error, as TensorFlow does while it traces."""
    try:
        print("ready", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        os._exit(1)


def test_a_step_that_an_interrupt_ended_is_interrupted_whatever_its_exit_code() -> None:
    stop = Stop()
    with forked(end_otherwise, (), "step", stop) as running:
        assert running.child.lines.readline() == "ready\n"
        stop.end()
        assert running.wait() == 1
    with pytest.raises(KeyboardInterrupt):
        running.require_undisturbed("step")


def end_without_its_program() -> None:
    """Be killed while a program of this process runs that writes to the same pipe, such as Beam's job server."""
    print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_step_had_started_ends_with_it() -> None:
    with forked(end_without_its_program, (), "step", Stop()) as running:
        program = int(running.child.lines.read())
    latest = time.monotonic() + 60
    while start_time(program) and time.monotonic() < latest:
        time.sleep(0.01)
    assert not start_time(program)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    file = tmp_path / "here.yaml"
    file.write_text(yaml.safe_dump({"target": "local", "storage": str(tmp_path / "storage")}))
    return file


def start(here: Path) -> subprocess.Popen[str]:
    with (here.parent / "output.log").open("a") as log:
        command = [TRAINYARD, "run", "digits", "-e", str(here), *OPTIONS]
        return subprocess.Popen(command, stderr=log, stdout=log, text=True, start_new_session=True)


def watch(here: Path) -> subprocess.Popen[str]:
    """Watch the newest run from another process."""
    command = [TRAINYARD, "runs", "watch", "digits", "-e", str(here)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for(run: subprocess.Popen[str], here: Path, pattern: str) -> None:
    """Return once something new below the storage matches `pattern`."""
    known, latest = set(here.parent.glob(f"storage/digits/{pattern}")), time.monotonic() + 240
    while not set(here.parent.glob(f"storage/digits/{pattern}")) - known:
        assert run.poll() is None and time.monotonic() < latest, (here.parent / "output.log").read_text()
        time.sleep(0.01)


def end(run: subprocess.Popen[str], here: Path, seconds: float) -> tuple[int, str]:
    """Return the exit code of `run`, which ends in time, and all that the runs have written."""
    with suppress(subprocess.TimeoutExpired):
        run.wait(seconds)
    output = (here.parent / "output.log").read_text()
    assert run.poll() is not None, f"It runs on, of {[*_commands(run.pid)]}:\n{output}"
    return run.returncode, output


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def forkserver(run: subprocess.Popen[str]) -> int:
    latest = time.monotonic() + 60
    while time.monotonic() < latest:
        for pid, command in _commands(run.pid):
            if "run_fork_server" in command and pid in children(run.pid):
                return pid
        time.sleep(0.01)
    raise AssertionError("no fork server")


def _commands(leader: int) -> Iterator[tuple[int, str]]:
    for pid in _group(leader):
        with suppress(OSError):
            yield pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def _group(leader: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == leader:
                yield int(entry.name)
        except OSError:
            continue


def test_the_keeper_of_a_step_killed_is_exit_code_30_and_the_fork_server_killed_costs_nothing(here: Path) -> None:
    run = start(here)
    wait_for(run, here, "runs/*/preprocess.log")
    os.kill(forkserver(run), signal.SIGKILL)  # while it imports: the first step has another one
    wait_for(run, here, CHECKPOINT)
    server = forkserver(run)
    [keeper] = children(server)
    [training] = children(keeper)
    os.kill(keeper, signal.SIGKILL)
    code, output = end(run, here, 240)
    assert code == 30 and not start_time(training), output
    assert "train: was killed, or the process that waited for it." in " ".join(output.split())
    run = start(here)
    wait_for(run, here, "runs/*/journal.jsonl")
    watched = watch(here)
    wait_for(run, here, CHECKPOINT)
    os.kill(forkserver(run), signal.SIGKILL)
    code, output = end(run, here, 240)
    assert code == 0, output
    _, shown = watched.communicate(timeout=240)
    assert watched.returncode == 0, shown
    output = r"preprocess +reused\n(.*\n)*✓ train .*\n(.*\n)*✓ push .*\n✓ pushed, accuracy 0\.\d{4} \("
    assert re.search(output, shown), shown


def test_who_watches_a_run_is_told_that_it_was_killed_and_by_a_watcher_that_ends_nothing(here: Path) -> None:
    run = start(here)
    wait_for(run, here, "runs/*/preprocess.log")
    os.killpg(run.pid, signal.SIGSTOP)  # so that it is still in its first step when it is killed
    first, second = watch(here), watch(here)
    first.send_signal(signal.SIGKILL)
    assert first.wait(120) and run.poll() is None
    assert state(here) == "running"
    os.killpg(run.pid, signal.SIGKILL)
    _, shown = second.communicate(timeout=240)
    assert second.returncode == 30 and "· preprocess\n" in shown, shown
    assert "was killed. Run the same command again" in shown, shown
    assert state(here) == "unfinished"


def state(here: Path) -> str:
    """What `trainyard runs list` says of the newest run."""
    return local_runs.newest(str(here.parent / "storage"), 1)[0].state
