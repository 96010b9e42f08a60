"""Events of a step: a JSON object per line on stderr, for each decision a person would ask about.

The screen, the supervisors and `explain` read these lines, and they stay in the log for people.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from trainyard import escape
from trainyard.process import memory

_START = '{"event": "'
_ALIVE = "alive"


def emit(event: str, **fields: object) -> None:
    """Write one line that `event` happened, with its fields."""
    write(escape.lines(json.dumps(fields_of(event, **fields), default=str, ensure_ascii=False)))


def warn(message: str) -> None:
    """Write a warning, which the screen shows."""
    emit("warning", message=message)


@contextmanager
def warned(fault: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Write the warning `fault` with the reason if the block fails with an error of `kind`, and continue after it."""
    try:
        yield
    except kind as error:
        warn(f"{fault} ({error}).")


def fields_of(event: str, **fields: object) -> dict[str, Any]:
    """Return `event` with its fields as `parse` does."""
    return {"event": event, **fields}


def emit_alive() -> None:
    """Write, in one piece that never cuts a line of another thread in two, that this process is not frozen."""
    os.write(sys.stderr.fileno(), f"{json.dumps(fields_of(_ALIVE))}\n".encode())


def is_alive(event: dict[str, Any]) -> bool:
    """Return True if the parsed line `event` is from `emit_alive`."""
    return event.get("event") == _ALIVE


def write(line: str) -> None:
    """Write `line` to stderr whole: print writes its end apart, and then lines of two threads may become one."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def stderr_hidden() -> Iterator[None]:
    """Drop what is written to stderr while the block runs: lines of TensorFlow's C++ when it is imported."""
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def progress(done: int, total: int, unit: str, **fields: object) -> None:
    """Say how much of a long work is done, `done` of `total` `unit`s, and the most memory that it took, in MiB.

    Call it at most a few times a second.
    """
    emit("progress", done=done, total=total, unit=unit, **fields, peak_mib=memory.peak_mib(os.getpid()))


def parse(line: str) -> dict[str, Any]:
    """Return the fields of a line that `emit` wrote, the event's name under `event`; none of any other line."""
    try:
        fields = json.loads(line) if line.startswith(_START) else {}
    except (ValueError, RecursionError):  # it is cut off, or was printed by a recipe's module
        return {}
    return fields if isinstance(fields, dict) else {}


def last(log: str, event: str, *required: str) -> dict[str, Any] | None:
    """Return the fields of the last line of `log` in which `event` happened, whatever precedes it in the line.

    A line that is cut off, or has not the `required` fields, is passed over; None if there is no other.
    """
    for fields in newest_first(log):
        if fields.pop("event", "") == event and all(fields.get(name) not in (None, "") for name in required):
            return fields
    return None


def newest_first(log: str) -> Iterator[dict[str, Any]]:
    """Yield the events of `log` as `parse` returns them, the last one first, whatever precedes each in its line."""
    for line in reversed(log.split("\n")):  # splitlines would cut at characters of a sentence, such as U+2028
        if fields := parse(line[max(0, line.find(_START)) :]):
            yield fields


class Failure(NamedTuple):
    """A failure that a process wrote down: exit code, sentence and the name of the error's class."""

    code: int
    message: str
    error: str = ""


def failure(log: str) -> Failure | None:
    """Return the last failure that a step wrote into `log`, None if it wrote none."""
    fields = last(log, "failed", "code", "message")
    if fields is None or not str(fields["code"]).isdigit():
        return None
    return Failure(int(fields["code"]), str(fields["message"]), str(fields.get("error") or ""))
