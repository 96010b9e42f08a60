"""Starts a step as a process of its own out of one that has TensorFlow imported already.

Importing TensorFlow takes 3 to 6 seconds, and four of the five steps need it. Python's fork server imports it once a
run, before any of its threads exist, and every step is forked from there: measured, 0.05 s instead of 5.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from trainyard.child_process import ChildProcess, prepare_fork_server
from trainyard.events import stderr_hidden
from trainyard.signals import on_sigterm

_GRACE_SECONDS = 15  # chosen: what a Spot node on GKE gives
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras"]


@dataclass(frozen=True)
class Running:
    """A step at work. stop_requested: set once this process got SIGTERM, which it passes on."""

    child: ChildProcess
    stop_requested: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> int:
        """Return the exit status once the step has ended; as `ChildProcess.code`."""
        self.child.join()
        return self.child.code or 0


@contextmanager
def step_process(step: str, options: dict[str, str], cores: frozenset[int] | None = None) -> Iterator[Running]:
    """Run `step` with `options` while the block reads from it, on those `cores` if some are named.

    It ends as `process` says.
    """
    command_line = [f"--{name}={value}" for name, value in options.items()]
    with process(_step, (step, command_line, cores), step) as running:
        yield running


@contextmanager
def process(target: Callable[..., None], args: tuple[Any, ...], name: str) -> Iterator[Running]:
    """Run `target(*args)` in a process that has TensorFlow imported, while the block reads from it.

    Ctrl-C and SIGTERM of this process go on to it, and nothing of it runs on when the block ends.
    """
    children: list[ChildProcess] = []
    stop_requested = threading.Event()

    def pass_on() -> None:
        if not stop_requested.is_set():  # `timeout` sends it twice
            stop_requested.set()
            for child in children:
                child.terminate()

    # Around the start of the process: else a signal in between would leave it running.
    with on_sigterm(pass_on):
        try:
            with stderr_hidden():
                prepare_fork_server(_IMPORTED_ONCE)
            with _main_hidden():
                children.append(ChildProcess(target, args, name, signal.SIGTERM))
            if stop_requested.is_set():
                children[0].terminate()
            with children[0].lines:
                yield Running(children[0], stop_requested)
        except BaseException:
            for child in children:
                child.interrupt()
            raise
        finally:
            for child in children:
                child.kill(_GRACE_SECONDS)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Have multiprocessing find no main module while a process is started, which it would run again in the process.

    A person's script that calls `trainyard.run` would train once more there, and a step needs nothing of it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _step(step: str, command_line: list[str], cores: frozenset[int] | None) -> None:
    """Run the step in the new process as `python -m trainyard.steps.<step>` would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    module = importlib.import_module(f"trainyard.steps.{step}.run")
    importlib.import_module("trainyard.runtime.step").main(module.run, command_line)
