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
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection
from pathlib import Path
from types import FrameType
from typing import IO

from trainyard import processes

_GRACE_SECONDS = 15  # chosen: what a Spot node on GKE gives
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras"]


@dataclass(frozen=True)
class Running:
    """A step at work: what it writes to stdout and stderr, line by line, and its exit status.

    told_to_stop: set once this process got SIGTERM, which it passes on.
    """

    lines: IO[str]
    child: processes.Child
    told_to_stop: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> int:
        """Return the exit status once the step has ended; as `processes.Child.code`."""
        self.child.join()
        return self.child.code or 0


@contextmanager
def step_process(step: str, options: dict[str, str]) -> Iterator[Running]:
    """Run `step` with `options` while the block reads from it.

    Ctrl-C and SIGTERM of this process go on to the step, and nothing of it runs on when the block ends.
    """
    children: list[processes.Child] = []
    told_to_stop = threading.Event()

    def pass_on(_signal: int, _frame: FrameType | None) -> None:
        if not told_to_stop.is_set():  # `timeout` sends it twice
            told_to_stop.set()
            for child in children:
                child.terminate()

    main_thread = threading.current_thread() is threading.main_thread()
    # Before the step starts: else a signal in between would leave it running.
    previous = signal.signal(signal.SIGTERM, pass_on) if main_thread else None
    try:
        reader, writer = Pipe(duplex=False)
        _start_server()
        command_line = [f"--{name}={value}" for name, value in options.items()]
        children.append(processes.Child(_step, (step, command_line, writer), step))
        if told_to_stop.is_set():
            children[0].terminate()
        writer.close()
        with os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace") as lines:
            yield Running(lines, children[0], told_to_stop)
    except BaseException:
        for child in children:
            child.interrupt()
        raise
    finally:
        for child in children:
            child.join(_GRACE_SECONDS)
            child.kill()
        reader.close()
        if main_thread:
            signal.signal(signal.SIGTERM, previous)


def _start_server() -> None:
    """Have the fork server running, without the lines that TensorFlow writes to stderr when it is imported."""
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        processes.prepare(_IMPORTED_ONCE)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _step(step: str, command_line: list[str], writer: connection.Connection) -> None:
    """In the new process: run the step as `python -m trainyard.<step>` would, its output going into the pipe."""
    os.dup2(writer.fileno(), sys.stdout.fileno())
    os.dup2(writer.fileno(), sys.stderr.fileno())
    writer.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TRAINYARD_EVENTS"] = "json"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module = importlib.import_module(f"trainyard.steps.{step}.run")
    importlib.import_module("trainyard.runtime.step").main(module.run, command_line)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
