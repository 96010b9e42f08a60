"""Has tasks done that do not depend on each other: by an engine's workers, or on every core of this machine.

Beam on one machine works on one core, or starts workers whose port the whole network can reach. So where the data are
large, helpers forked out of a fork server work beside this process, each in a pipeline of its own, and each takes the
next task that nobody has taken. A helper reports nothing: a task is done if its result is there. What a helper did not
finish this process does at the end, and so meets itself what is wrong with it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from trainyard import child_process, events, memory
from trainyard.beam.library import beam  # before the other modules that import it
from trainyard.beam.runner import is_in_process, pipeline
from trainyard.child_process import ChildProcess
from trainyard.errors import TransientError

_BYTES = 128 << 20  # chosen: a helper begins with seconds of imports, and so many bytes are half a minute's work
_PROCESS_MIB = 1024  # chosen: one needs about 500 on tables and pictures alike (docs/benchmarks.md)
_POLL_SECONDS = 0.2  # chosen: short beside a task
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_Task = TypeVar("_Task")


def do_tasks(
    do: Callable[[_Task], None], todo: Callable[[], Sequence[_Task]], beam_options: str, data_bytes: int, module: str
) -> None:
    """Call `do` for each task that is `todo`, in any order and wherever the workers are; doing one twice is no harm.

    `do` and the tasks are pickled. data_bytes: what the tasks read in all, by which the helpers are counted. module:
    what is imported once for all of them. Raises what `do` raises, as `pipeline` does.
    """
    tasks = todo()
    count = _helpers(len(tasks), data_bytes) if is_in_process(beam_options) else 0
    if count:
        with tempfile.TemporaryDirectory() as claims, _helping(do, todo, tasks, claims, count, module):
            _run(do, tasks, beam_options, claims)
        tasks = todo()
    if tasks:
        _run(do, tasks, beam_options)


def _run(do: Callable[[_Task], None], tasks: Sequence[_Task], beam_options: str, claims: str = "") -> None:
    with pipeline(beam_options) as root:
        # Spreads the tasks over the workers as Reshuffle does, but in the same order each time.
        spread = root | "Tasks" >> beam.Create(list(enumerate(tasks))) | "Spread" >> beam.GroupByKey()
        _ = spread | "Do" >> beam.ParDo(_Do(do, claims))


class _Do(beam.DoFn, Generic[_Task]):
    def __init__(self, do: Callable[[_Task], None], claims: str) -> None:
        self._do, self._claims = do, claims

    def process(self, numbered: tuple[int, Iterable[_Task]]) -> Iterator[None]:
        """Do a task that no other process has taken."""
        number, [task] = numbered
        try:
            if self._claims:
                Path(self._claims, str(number)).touch(exist_ok=False)
        except FileExistsError:
            return
        self._do(task)
        yield from ()


@contextmanager
def _helping(
    do: Callable[[_Task], None],
    todo: Callable[[], Sequence[_Task]],
    tasks: Sequence[_Task],
    claims: str,
    count: int,
    module: str,
) -> Iterator[None]:
    """Have `count` helpers work while the block does, and wait for the tasks that they took and that are `todo`."""
    events.emit("helpers", count=count)
    helpers: list[ChildProcess] = []

    def start() -> None:
        child_process.prepare_fork_server([module])
        for _ in range(count):
            with suppress(TransientError):  # it was killed at once, again and again: the others do its work
                helpers.append(ChildProcess(_help, (do, tasks, claims), "helper"))
                threading.Thread(target=_pass_on, args=(helpers[-1],), daemon=True).start()

    starter = threading.Thread(target=start, daemon=True)  # the fork server answers once it has imported all
    starter.start()
    try:
        yield
        starter.join()
        for helper in helpers:
            while helper.is_alive() and todo():
                helper.join(_POLL_SECONDS)
            if helper.code:
                ended = child_process.describe_exit(helper.code)
                events.emit("warning", message=f"a helper {ended}: this process does what it left")
    finally:
        starter.join()
        for helper in helpers:
            helper.kill()


def _help(do: Callable[[_Task], None], tasks: Sequence[_Task], claims: str) -> None:
    code = 1
    with suppress(Exception):  # the step's own process meets it again
        _run(do, tasks, "", claims)
        code = 0
    os._exit(code)  # as a step does: libraries that were mixed may crash while the interpreter ends


def _pass_on(helper: ChildProcess) -> None:
    with helper.lines as lines:
        for line in lines:
            events.write(line.rstrip("\n"))


def _helpers(tasks: int, data_bytes: int) -> int:
    """Return how many processes beside this one are worth their start, and have a core and memory."""
    room = memory.usable_bytes() // (_PROCESS_MIB << 20)
    return max(0, min(_cores() - 1, room - 1, tasks - 1, data_bytes // _BYTES))


def _cores() -> int:
    """Return the cores that this process may use: those it is bound to, and its control group's quota.

    Source: Linux, admin-guide/cgroup-v2.rst (cpu.max).
    """
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = map(int, _CPU_QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores
