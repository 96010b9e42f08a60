"""Measures the CPU seconds and memory of a command and all processes below it."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SECONDS_BETWEEN_SAMPLES = 0.1
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans below this process become its children, so it can ask what they cost


@dataclass(frozen=True)
class Cost:
    """The cost of a command: CPU seconds of all its processes, and their peak memory without the page cache."""

    cpu_seconds: float
    peak_mib: float


def cost(command: list[str]) -> Cost:
    """Run `command` to its end and return what it and its children cost."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        sampler = _Sampler(process.pid)
        sampler.start()
        _, errors = process.communicate()
        sampler.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{errors[-2000:]}")
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, sampler.peak_mib)


class _Sampler(threading.Thread):
    """Keeps the most anonymous memory that a process and all below it had at one time, in MiB, shared pages once."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = root
        self.peak_mib = 0.0

    def run(self) -> None:
        while (mib := sum(map(_anonymous_mib, _tree(self._root)))) > 0:
            self.peak_mib = max(self.peak_mib, mib)
            time.sleep(_SECONDS_BETWEEN_SAMPLES)


def _tree(root: int) -> list[int]:
    found = [root]
    for process in found:
        with suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _anonymous_mib(process: int) -> float:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/smaps_rollup").read_text().split("Pss_Anon:")[1].split()[0]) / 1024
    return 0.0
