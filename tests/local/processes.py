"""The processes that a process has started."""

from contextlib import suppress
from pathlib import Path

_TEMPLATE = str(Path(__file__).parents[1] / "warm.py")


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, as they are now, but for templates of a test's processes."""
    pids: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children = [int(child) for child in path.read_text().split()]
            pids += [below for child in children if not _is_template(child) for below in (child, *descendants(child))]
    return pids


def _is_template(pid: int) -> bool:
    with suppress(OSError):
        return _TEMPLATE in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return False
