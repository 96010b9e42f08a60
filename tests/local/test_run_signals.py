"""What ends `trainyard run` from outside: signals to all of its processes, a kill of the one that starts steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

TRAINYARD = str(Path(sys.executable).parent / "trainyard")
CHECKPOINT = "train/*.checkpoints/ckpt-[1-9]*"  # of a training that is past its first steps
OPTIONS = ["--set", "train.epochs=100", "--set", "train.early_stopping=null"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    file = tmp_path / "here.yaml"
    file.write_text(yaml.safe_dump({"target": "local", "storage": str(tmp_path / "storage")}))
    return file


def start(here: Path) -> subprocess.Popen[str]:
    with (here.parent / "said").open("a") as said:
        command = [TRAINYARD, "run", "digits", "-e", str(here), *OPTIONS]
        return subprocess.Popen(command, stderr=said, stdout=said, text=True, start_new_session=True)


def wait_for(run: subprocess.Popen[str], here: Path, what: str) -> None:
    """Return once something new below the storage matches `what`."""
    known, end = set(here.parent.glob(f"storage/digits/{what}")), time.monotonic() + 240
    while not set(here.parent.glob(f"storage/digits/{what}")) - known:
        assert run.poll() is None and time.monotonic() < end, (here.parent / "said").read_text()
        time.sleep(0.01)


def forkserver(run: subprocess.Popen[str]) -> int:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for pid in _group(run.pid):
            with suppress(OSError):
                if "multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_text():
                    return pid
        time.sleep(0.01)
    raise AssertionError("no fork server")


def _group(leader: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == leader:
                yield int(entry.name)
        except OSError:
            continue


def test_sigterm_to_every_process_of_a_run_is_exit_code_143_whenever_it_comes(here: Path) -> None:
    """As `timeout` sends it, which sends it twice to the first process."""
    for what in ("runs/*/preprocess.log", CHECKPOINT, "runs/*/evaluate.log"):
        run = start(here)
        wait_for(run, here, what)
        run.send_signal(signal.SIGTERM)
        os.killpg(run.pid, signal.SIGTERM)
        assert run.wait(60) == 143, (what, (here.parent / "said").read_text())
        assert "told to stop (SIGTERM)" in (here.parent / "said").read_text()
        end = time.monotonic() + 10
        while list(_group(run.pid)):
            assert time.monotonic() < end, list(_group(run.pid))
            time.sleep(0.05)


def test_a_killed_fork_server_is_exit_code_30_and_the_next_start_has_a_fresh_one(here: Path) -> None:
    run = start(here)
    wait_for(run, here, "runs/*/preprocess.log")
    os.kill(forkserver(run), signal.SIGKILL)  # while it imports: the first step has another one
    wait_for(run, here, CHECKPOINT)
    os.kill(forkserver(run), signal.SIGKILL)
    assert run.wait(60) == 30, (here.parent / "said").read_text()
    said = " ".join((here.parent / "said").read_text().split())
    assert "train: was killed, or the fork server that had started it." in said
    again = start(here)
    assert again.wait(180) == 0, (here.parent / "said").read_text()
