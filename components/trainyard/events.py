"""What a step says while it works: one structured line for each decision a person would ask about, on stderr.

With TRAINYARD_EVENTS=json in the environment each line is a JSON object, which `trainyard run` turns into progress.
"""

from __future__ import annotations

import json
import os
import sys

from trainyard import memory


def emit(event: str, **fields: object) -> None:
    """Write one line that `event` happened, with its facts."""
    if os.environ.get("TRAINYARD_EVENTS") == "json":
        line = json.dumps({"event": event, **fields}, default=str)
    else:
        line = " ".join([event, *(f"{name}={value}" for name, value in fields.items())])
    write(line)


def write(line: str) -> None:
    """Write `line` to stderr whole: print writes its end apart, and then lines of two threads may become one."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


def progress(done: int, total: int, unit: str, **fields: object) -> None:
    """Say how much of a long work is done, `done` of `total` `unit`s, and the most memory that it took, in MiB.

    Call it at most a few times a second.
    """
    emit("progress", done=done, total=total, unit=unit, **fields, peak_mib=memory.peak_mib(os.getpid()))
