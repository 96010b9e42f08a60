"""Processes forked out of Python's fork server, which has imported what is slow, and what is known of any process.

The server gets no SIGTERM: `timeout`, systemd and others send it to every process of a group, and a server that went with it
would take its children's exit codes along. One that is killed all the same is replaced by the next start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from trainyard.errors import TransientError

LOST = 255
"""The exit code of a child that was lost together with the server, as multiprocessing gives it: nobody knows how it ended."""

_PAUSES = (0.1, 0.5, 2.0)  # chosen: a server that is killed takes a moment to be known as dead
_ORPHAN_SECONDS = 5.0  # chosen: what the kernel may take to end a process that was killed


def prepare(modules: list[str]) -> None:
    """Leave a fork server running that imports `modules` before its first child; it may be imported by now or not."""
    forkserver.set_forkserver_preload(modules)
    _ensure_server()


class Child:
    """A process that runs `target(*args)`, in a session of its own. Unlike multiprocessing's it does not outlive the server
    unnoticed: where its exit code is lost, it is ended.
    """

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str | None = None) -> None:
        """Start it. Raises `TransientError` where a fresh server is killed as well."""
        self._process = _started_process(target, args, name)
        self.pid = self._process.pid or 0
        self._started = started(self.pid)
        self._orphan_ended = False

    @property
    def sentinel(self) -> int:
        """What to wait on until it has ended."""
        return int(self._process.sentinel)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, LOST where it and the server were killed."""
        code: int | None = self._process.exitcode
        if code == LOST and not self._orphan_ended:
            self._end_orphan()
        return code

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.code is None

    def join(self, seconds: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds."""
        self._process.join(seconds)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Send it SIGINT."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Leave nothing of it running."""
        if self.is_alive():
            self._process.kill()
            self._process.join()
        _ = self.code  # an orphan goes too

    def _end_orphan(self) -> None:
        """Kill what may live on without the server, and take its place as its parent where this is process 1."""
        self._orphan_ended = True
        end = time.monotonic() + _ORPHAN_SECONDS
        while started(self.pid) == self._started and time.monotonic() < end:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if not self._started:  # this system does not tell
                return
            time.sleep(0.01)


def started(process: int) -> str:
    """Return when `process` started, in the kernel's ticks, or '' where none runs: its number may be given again.

    One that has ended, but whose parent has not asked how, runs no more.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _started_process(target: Callable[..., None], args: tuple[Any, ...], name: str | None) -> Any:
    for pause in (*_PAUSES, None):
        _ensure_server()
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_begin, args=(target, args), name=name)
        try:
            process.start()
        except (EOFError, ConnectionError) as error:
            if pause is None:
                raise TransientError(
                    f"{name or 'a process'}: could not be started, the fork server was killed again and again. "
                    "Run the same command again; if it happens again, give it more memory."
                ) from error
            time.sleep(pause)
        else:
            return process
    raise AssertionError("unreachable")


def _ensure_server() -> None:
    resource_tracker.ensure_running()  # it would let SIGTERM through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.setsid()  # Ctrl-C reaches the parent alone, which passes it on once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    target(*args)
