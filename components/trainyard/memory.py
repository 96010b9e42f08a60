"""What the kernel tells of memory: how much a process has taken, and whether one was killed for want of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def peak_mib(process: int) -> int:
    """Return the most memory that the running `process` has held, in MiB; 0 where that cannot be read."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{process}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024
    return 0


def kills() -> int:
    """Return how often the kernel has killed a process of this control group for want of memory; 0 where unknown.

    Source: Linux, admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst (memory.oom_control).
    """
    for name in ("memory.events", "memory.oom_control"):
        for folder in _folders():
            with suppress(OSError, ValueError):
                lines = (folder / name).read_text().splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def limit_mib() -> int | None:
    """Return the memory that this control group may take, in MiB, or None where nothing limits it."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory.limit_in_bytes"):
        for folder in _folders():
            with suppress(OSError, ValueError):
                limit = int((folder / name).read_text())
                return limit >> 20 if limit < installed else None
    return None


def told(peak: int, step: str) -> str:
    """Return the end of the sentence about a process of `step` that was killed after it had held `peak` MiB: why, and what to do."""
    limit = limit_mib()
    allowed = f"; the limit is {limit} MiB" if limit else ""
    return (
        f"for want of memory, having held {peak} MiB{allowed}. "
        f"Give it more (resources.limits.memory of the pool){or_less(step)}"
    )


def or_less(step: str) -> str:
    """Return the end of a sentence that says how else than by more memory `step` can be helped, '' where it cannot."""
    if step == "train":
        return ", or lower train.batch_size"
    return ", or have a Beam runner with workers of its own preprocess (beam.runner)" if step == "preprocess" else ""


def _folders() -> list[Path]:
    """Return where this process's control group may show its files; in a container its own is the root of them."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                found.append(_CGROUPS / controllers / path.lstrip("/"))
    return [*found, _CGROUPS, _CGROUPS / "memory"]
