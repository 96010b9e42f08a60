"""Starts a step as a process of its own out of one that has TensorFlow imported already.

Importing TensorFlow takes 3 to 6 seconds, and four of the five steps need it. Python's fork server imports it once a run,
before any of its threads exist, and every step is forked from there: measured, 0.05 s instead of 5.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_GRACE_SECONDS = 15  # chosen: what a Spot node on GKE gives
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras"]


@dataclass(frozen=True)
class Running:
    """A step at work: what it writes to stdout and stderr, line by line, and its exit status."""

    lines: IO[str]
    process: ForkServerProcess

    def wait(self) -> int:
        """Return the exit status once the step has ended; negative for the signal that killed it."""
        self.process.join()
        return self.process.exitcode or 0


@contextmanager
def step_process(step: str, options: dict[str, str]) -> Iterator[Running]:
    """Run `step` with `options` while the block reads from it.

    Ctrl-C and SIGTERM of this process go on to the step, and nothing of it runs on when the block ends.
    """
    context = multiprocessing.get_context("forkserver")
    _start_server()
    reader, writer = context.Pipe(duplex=False)
    command_line = [f"--{name}={value}" for name, value in options.items()]
    process = context.Process(target=_step, args=(step, command_line, writer), name=step)
    process.start()
    writer.close()
    main_thread = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate()) if main_thread else None
    try:
        with os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace") as lines:
            yield Running(lines, process)
    except BaseException:
        if process.pid and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        raise
    finally:
        process.join(_GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        reader.close()
        if main_thread:
            signal.signal(signal.SIGTERM, previous)


def _start_server() -> None:
    """Have the fork server running, without the lines that TensorFlow writes to stderr when it is imported."""
    forkserver.set_forkserver_preload(_IMPORTED_ONCE)
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        forkserver.ensure_running()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _step(step: str, command_line: list[str], writer: connection.Connection) -> None:
    """In the new process: run the step as `python -m trainyard.<step>` would, its output going into the pipe."""
    os.setsid()  # Ctrl-C reaches the parent alone, which passes it on once
    os.dup2(writer.fileno(), sys.stdout.fileno())
    os.dup2(writer.fileno(), sys.stderr.fileno())
    writer.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TRAINYARD_EVENTS"] = "json"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module = importlib.import_module(f"trainyard.{step}.run")
    importlib.import_module("trainyard.core.step").main(module.run, command_line)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
