"""The processes that a process has started."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, as they are now."""
    pids: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            pids += [child, *descendants(child)]
    return pids
