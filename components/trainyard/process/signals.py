"""Handling of SIGTERM and Ctrl-C; with few imports, so that it works from a process's start."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import NoReturn

from trainyard.errors import ExitCode, Preempted, TrainyardError

_AGAIN_SECONDS = 1.0  # chosen: `timeout` sends SIGTERM twice, at once; a person who sends it again means it
_received_at: list[float] = [-math.inf]
_raised: list[BaseException] = []  # by the handlers of this module, the last one alone


class Terminated(SystemExit):
    """SIGTERM came. It may come anywhere, so no `except Exception` on the way may catch it.

    Nor a bare `except`: Beam has one about an import, which lets a SystemExit pass (`is_in_ipython`). It is made of a
    sentence alone, because Beam recreates errors to add the transform's name.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = ExitCode.PREEMPTED


def handle_sigterm(_signal: int, _frame: FrameType | None) -> None:
    """Raise `Terminated` in the main thread, once for a signal that comes twice at once."""
    before, _received_at[0] = _received_at[0], time.monotonic()
    if _received_at[0] - before > _AGAIN_SECONDS:
        _raise(Terminated(Preempted.SENTENCE))


def handle_sigint(_signal: int, _frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, as Python's own handler does."""
    _raise(KeyboardInterrupt())


@contextmanager
def map_signals() -> Iterator[None]:
    """Raise again what a handler of this module raised, if the block ends with an error of another kind after it.

    TensorFlow makes a `SystemError` of an interrupt that meets some of its calls, and the clean-up after one may fail.
    """
    _raised.clear()
    try:
        yield
    except TrainyardError:
        raise
    except Exception as error:
        if _raised:
            raise _raised[0] from error
        raise


def _raise(error: BaseException) -> NoReturn:
    _raised[:] = [error]
    raise error


def on_sigterm(handler: Callable[[], None], restore: bool = True) -> AbstractContextManager[None]:
    """Call `handler` for each SIGTERM while the block runs; see `on_signals`."""
    return on_signals(handler, [signal.SIGTERM], restore)


@contextmanager
def on_signals(handler: Callable[[], None], numbers: Iterable[int], restore: bool = True) -> Iterator[None]:
    """Call `handler` for each of these signals while the block runs, in the main thread alone: no other may handle any.

    restore: the signals mean after the block what they did before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: handler()) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items() if restore else ():
            signal.signal(number, earlier)


@contextmanager
def on_arrival(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` in a thread as soon as SIGTERM arrives, while the handlers of `on_signals` run or wait to run.

    A handler of Python waits until a call into TensorFlow or NumPy returns.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()

    def wait() -> None:
        with reading:
            while number := reading.recv(1):
                if number[0] == signal.SIGTERM:
                    return call()

    with writing:
        writing.setblocking(False)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=wait, daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
