"""Parallel runs on this machine: a thread for each, on its own share of the cores."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.errors import ConfigurationError, Preempted
from trainyard.signals import on_sigterm
from trainyard_control.local.step_process import Stop


@dataclass(frozen=True)
class Slot:
    """A slot for one run at a time. cores: those it uses, None for all. stop: ends its run."""

    cores: frozenset[int] | None
    stop: Stop


def shares(count: int) -> list[frozenset[int] | None]:
    """Return an equal share of this machine's cores for each of `count` slots; None for a single one.

    Raises `ConfigurationError` if there are too few cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(cores):
        raise ConfigurationError(
            f"max_parallel {count}: each trial needs a core of its own, and there are {len(cores)}. "
            f"Give {f'1 to {len(cores)}' if len(cores) > 1 else '1'}."
        )
    if count == 1:
        return [None]
    share = len(cores) // count
    return [frozenset(cores[share * number : share * (number + 1)]) for number in range(count)]


def work(cores: Sequence[frozenset[int] | None], task: Callable[[Slot], None]) -> None:
    """Call `task` in a thread for each of `cores`, and return when all have ended.

    The first error ends the other slots and is raised. Ctrl-C ends all of them; SIGTERM is passed to their steps.
    """
    stop, ended = Stop(), queue.SimpleQueue[BaseException | None]()

    def work_on(own: frozenset[int] | None) -> None:
        try:
            task(Slot(own, stop))
        except BaseException as error:  # noqa: BLE001 - it is raised in the main thread
            ended.put(error)
        else:
            ended.put(None)

    threads = [threading.Thread(target=work_on, args=(own,), daemon=True) for own in cores]
    with on_sigterm(stop.terminate):
        for thread in threads:
            thread.start()
        try:
            for _ in threads:
                if error := ended.get():
                    raise error
            if stop.preempted.is_set():
                raise Preempted
        finally:
            stop.end()  # nothing if all are done
            for thread in threads:
                thread.join()
