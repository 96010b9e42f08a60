"""Starts a step in a separate process, forked from one that has imported TensorFlow.

Importing TensorFlow takes 3 to 6 seconds, and four of the five steps need it. A fork server imports it once a run,
before any of its threads exist, and every step is forked from there: measured, 0.05 s instead of 5.
"""

from __future__ import annotations

import importlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.contract import provenance
from trainyard.errors import ExitCode, Preempted
from trainyard.events import stderr_hidden
from trainyard.graph import entry_point
from trainyard.process.child_process import ChildProcess, prepare_fork_server
from trainyard.process.signals import on_sigterm
from trainyard.storage import cache

_GRACE_SECONDS = 15  # chosen: what a Spot node on GKE gives
_STARTING = threading.Lock()  # two threads that hid stderr at once would mix it up
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras", "trainyard.runtime.step"]


class Stop:
    """Ends the steps at work in several threads together: Ctrl-C and SIGTERM reach the main thread alone.

    preempted: set once SIGTERM was passed on. interrupted: set once they were interrupted. No step starts from then on.
    """

    def __init__(self) -> None:
        self.preempted, self.interrupted = threading.Event(), threading.Event()
        self._children: set[ChildProcess] = set()

    @property
    def begun(self) -> bool:
        """True if they are to end: nothing new is started."""
        return self.preempted.is_set() or self.interrupted.is_set()

    def add(self, child: ChildProcess) -> None:
        """Have `child` end with the others, at once if they were to end before it was started."""
        self._children.add(child)
        if self.preempted.is_set():
            child.terminate()

    def remove(self, child: ChildProcess) -> None:
        """Know nothing of `child` any more: it has ended."""
        self._children.discard(child)

    def terminate(self) -> None:
        """Forward SIGTERM once, because `timeout` sends it twice."""
        if not self.preempted.is_set():
            self.preempted.set()
            for child in tuple(self._children):
                child.terminate()

    def end(self) -> None:
        """End all processes: interrupt them, except those that save their state on SIGTERM."""
        self.interrupted.set()
        children, deadline = tuple(self._children), time.monotonic() + _GRACE_SECONDS
        for child in children if not self.preempted.is_set() else ():
            child.interrupt()
        for child in children:
            child.kill(max(0.0, deadline - time.monotonic()))


@dataclass(frozen=True)
class Running:
    """A step at work. stop: what ends it together with others."""

    child: ChildProcess
    stop: Stop

    def wait(self) -> int:
        """Return the exit status once the step has ended; as `ChildProcess.code`."""
        self.child.join()
        return self.child.code or 0

    def require_undisturbed(self, name: str) -> None:
        """Raise `Preempted` if SIGTERM came, and `KeyboardInterrupt` if an interrupt has ended it.

        An interrupted one may end with any code: TensorFlow reports an interrupt that comes while it traces as an error
        of its own.
        """
        code = self.child.code
        if self.stop.preempted.is_set() or code in (ExitCode.PREEMPTED, -signal.SIGTERM):
            raise Preempted(f"{name}: {Preempted.SENTENCE}")
        if code in (ExitCode.INTERRUPTED, -signal.SIGINT) or (code and self.stop.interrupted.is_set()):
            raise KeyboardInterrupt


@contextmanager
def step_process(
    step: str, options: dict[str, str], cores: frozenset[int] | None = None, stop: Stop | None = None
) -> Iterator[Running]:
    """Run `step` with `options` while the block reads from it, on those `cores` if some are named.

    Ctrl-C and SIGTERM of this process are passed to the step, and nothing of it runs on when the block ends. stop: what
    passes them on to it if this is not the main thread.
    """
    command_line = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    arguments = (step, command_line, dict(provenance.parsed))
    with forked(_step, arguments, step, stop or Stop(), cores) as running:
        yield running


@contextmanager
def forked(
    target: Callable[..., None], arguments: tuple[Any, ...], name: str, stop: Stop, cores: frozenset[int] | None = None
) -> Iterator[Running]:
    """Run `target` as `step_process` runs a step, in a process that has TensorFlow imported.

    Its temporary files are gone when the block ends: the process ends without Python's clean-up, or is killed, and
    TensorFlow and Beam would leave theirs.
    """
    children: list[ChildProcess] = []
    # Around the start of the process: else a signal in between would leave it running.
    with cache.temporary_folder() as temporary, on_sigterm(stop.terminate):
        arguments = (target, arguments, temporary, cores)
        try:
            with _STARTING:
                if stop.interrupted.is_set():
                    raise KeyboardInterrupt
                with stderr_hidden():
                    prepare_fork_server(_IMPORTED_ONCE)
                children.append(ChildProcess(_run, arguments, name, signal.SIGTERM))
                stop.add(children[0])
            threading.Thread(target=_end_group, args=[children[0]], daemon=True).start()
            with children[0].lines:
                yield Running(children[0], stop)
        except BaseException:
            for child in children:
                child.interrupt()
            raise
        finally:
            for child in children:
                child.kill(_GRACE_SECONDS)
                child.kill_group()
                stop.remove(child)


def _end_group(child: ChildProcess) -> None:
    """End what `child` has left running once it has ended: it may hold the pipe of `lines`, which would not end."""
    child.join()
    child.kill_group()


def _run(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    temporary: Path,
    cores: frozenset[int] | None,
) -> None:
    """Call `target` on `cores`, with its temporary files in `temporary`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    os.environ[cache.CACHE] = str(temporary.parent)  # else it would be in `temporary`
    target(*arguments)


def _step(step: str, command_line: list[str], parsed: dict[bytes, Any]) -> None:
    """Run the step in the new process as `python -m trainyard.steps.<step>` would."""
    provenance.parsed.update(parsed)
    module = importlib.import_module(entry_point(step))
    importlib.import_module("trainyard.runtime.step").main(module.run, command_line)
