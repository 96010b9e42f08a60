"""Memory as the kernel reports it: the peak of a process, the limit, and kills for lack of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def peak_mib(process: int) -> int:
    """Return the peak resident memory of the running `process` in MiB; 0 if it cannot be read."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{process}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024
    return 0


def oom_kills() -> int:
    """Return the number of processes of this control group that the kernel killed for lack of memory; 0 if unknown.

    Source: Linux, admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst (memory.oom_control).
    """
    for name in ("memory.events", "memory.oom_control"):
        for folder in _folders():
            with suppress(OSError, ValueError):
                lines = (folder / name).read_text().splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def limit_mib() -> int | None:
    """Return the memory limit of this control group in MiB, or None if it has none."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory.limit_in_bytes"):
        for folder in _folders():
            with suppress(OSError, ValueError):
                limit = int((folder / name).read_text())
                return limit >> 20 if limit < installed else None
    return None


def usable_bytes() -> int:
    """Return the memory that this process may use: the control group's limit, or else what is installed."""
    limit = limit_mib()
    return limit << 20 if limit else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def oom_message(peak: int, step: str) -> str:
    """Explain that a process of `step` was killed at `peak` MiB and what to do, as the end of a sentence."""
    limit = limit_mib()
    allowed = f"; the limit is {limit:,} MiB" if limit else ""
    return (
        f", out of memory at {peak:,} MiB{allowed}. "
        f"Give it more (resources.limits.memory of the pool){less_memory_advice(step)}"
    )


def less_memory_advice(step: str) -> str:
    """Return advice on reducing the memory of `step`, as the end of a sentence; '' if there is none."""
    if step == "train":
        return ", or lower train.batch_size"
    return ", or preprocess on a Beam runner with its own workers (beam.runner)" if step == "preprocess" else ""


def _folders() -> list[Path]:
    """Return the folders that may hold this control group's files; in a container its own is their root."""
    folders = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                folders.append(_CGROUPS / controllers / path.lstrip("/"))
    return [*folders, _CGROUPS, _CGROUPS / "memory"]
