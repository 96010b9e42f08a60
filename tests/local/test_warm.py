"""What a template forks is like what is executed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

PROBE = """
import json, os, resource, signal, sys
from pathlib import Path
print(json.dumps({
    "arguments": [sys.argv, sys.path, __name__],
    "variables": dict(os.environ),
    "folder": os.getcwd(),
    "files": [number for number in range(64) if os.path.exists(f"/proc/self/fd/{number}")],
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpid(),
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "limits": [resource.getrlimit(number) for number in range(16)],
    "cores": sorted(os.sched_getaffinity(0)),
    "streams": [
        [stream.encoding, stream.errors, stream.line_buffering, stream.fileno(), str(type(stream))]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "status": [
        line for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(("Umask", "Groups", "SigPnd", "SigBlk", "SigIgn", "Cap", "Seccomp"))
    ],
    "line": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"),
    "tensorflow": "tensorflow" in sys.modules,
    "control_group": Path("/proc/self/cgroup").read_text(),
}), flush=True)
{"0": lambda: None, "3": lambda: sys.exit(3), "why": lambda: sys.exit("why"), "raise": lambda: 1 / 0,
 "kill": lambda: os.kill(os.getpid(), signal.SIGTERM), "interrupt": lambda: signal.raise_signal(signal.SIGINT)}[
    sys.argv[-1]]()
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "session": {"start_new_session": True, "stdin": subprocess.DEVNULL},
    "group": {"process_group": 0},
    "interrupts-ignored": {},
    "variables": {"env": {"PYTHONIOENCODING": "utf-8:backslashreplace", "HOME": "/elsewhere", "TF_CONFIG": "{}"}},
}
HOWS = {"-c": ["-c", PROBE], "-m": ["-m", "probe"], "script": ["probe.py"]}
ENDS = ["0", "3", "why", "raise", "kill", "interrupt"]


def _ended(how: list[str], end: str, options: dict[str, Any]) -> tuple[int, dict[str, Any], str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *how, end], **pipes, **options) as process:
        output, errors = process.communicate(timeout=300)
    assert json.loads(output)["parent"] == os.getpid()
    return process.returncode, json.loads(output), errors.strip().rpartition("\n")[2]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_forked_process_is_like_an_executed_one(how: str, option: str, tmp_path: Path, template: None) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    options = {"cwd": tmp_path, **OPTIONS[option]}
    if "env" in options:
        options["env"] = os.environ | options["env"]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    before = signal.getsignal(signal.SIGINT)
    if option == "interrupts-ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        executed = _ended(HOWS[how], "0", options)
        warm.use()
        forked = _ended(HOWS[how], "0", options)
    finally:
        warm.use(warm.execute)
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert forked[1].pop("tensorflow") and not executed[1].pop("tensorflow")
    set_by_imports = set[str]().union(*(each.optional for each in warm.templates))
    for name in set_by_imports - executed[1]["variables"].keys():
        forked[1]["variables"].pop(name, None)
    for process in (executed, forked):
        for name in ("LINES", "COLUMNS"):  # which readline sets behind the back of os.environ
            process[1]["variables"].pop(name, None)
    assert executed[1].pop("variables").items() ^ forked[1].pop("variables").items() == set()
    assert [name for name in executed[1] if executed[1][name] != forked[1][name]] == []
    assert forked == executed


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_process_ends_like_an_executed_one(end: str, template: None) -> None:
    code, _, error = _ended(HOWS["-c"], end, {})
    warm.use()
    try:
        forked, _, forked_error = _ended(HOWS["-c"], end, {})
    finally:
        warm.use(warm.execute)
    assert (forked, forked_error) == (code, error)


def test_a_template_that_was_killed_is_started_again(template: None) -> None:
    killed = next(each for each in warm.templates if each.fits(dict(os.environ)))
    assert killed.process
    killed.process.kill()
    warm.use()
    try:
        assert _ended(HOWS["-c"], "0", {})[1]["tensorflow"]
    finally:
        warm.use(warm.execute)
