"""Runs independent tasks on a Beam runner's workers or on all local cores.

On one machine Beam uses one core, or starts workers whose port the whole network can reach. For large data, worker
processes forked from a fork server run beside this process, each with its own pipeline, and each claims the next free
task. A worker process reports nothing: a task is done if its result exists. This process finishes what a worker process
left, and so meets its errors itself.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from trainyard import events
from trainyard.beam.library import beam  # before the other modules that import it
from trainyard.beam.runner import is_in_process, pipeline
from trainyard.errors import TransientError
from trainyard.process import child_process, memory
from trainyard.process.child_process import LAST_LINES_SECONDS, ChildProcess
from trainyard.storage.buckets.objects import KMS_VARIABLE

_BYTES = 128 << 20  # chosen: a worker process starts with seconds of imports; this is half a minute of work
_PROCESS_MIB = 1024  # chosen: one needs about 500 for tables and for images (docs/benchmarks.md)
_POLL_SECONDS = 0.2  # chosen: short beside a task
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_Task = TypeVar("_Task")


def run_tasks(
    task_fn: Callable[[_Task], None],
    pending: Callable[[], Sequence[_Task]],
    beam_options: str,
    data_bytes: int,
    module: str,
) -> None:
    """Call `task_fn` for each `pending` task, in any order, on whatever workers there are; a task may run twice.

    `task_fn` and the tasks are pickled. data_bytes: the size of all task inputs, which sets the number of worker
    processes. module: imported once for all of them. Raises what `task_fn` raises, as `pipeline` does.
    """
    tasks = pending()
    count = _worker_processes(len(tasks), data_bytes) if is_in_process(beam_options) else 0
    if count:
        with tempfile.TemporaryDirectory() as claims, _worker_pool(task_fn, pending, tasks, claims, count, module):
            _run_pipeline(task_fn, tasks, beam_options, claims)
        tasks = pending()
    if tasks:
        _run_pipeline(task_fn, tasks, beam_options)


def _run_pipeline(
    task_fn: Callable[[_Task], None], tasks: Sequence[_Task], beam_options: str, claims: str = ""
) -> None:
    with pipeline(beam_options) as root:
        # Spreads the tasks over the workers as Reshuffle does, but in the same order each time.
        spread = root | "Tasks" >> beam.Create(list(enumerate(tasks))) | "Spread" >> beam.GroupByKey()
        _ = spread | "Run" >> beam.ParDo(_TaskDoFn(task_fn, claims))


class _TaskDoFn(beam.DoFn, Generic[_Task]):
    def __init__(self, task_fn: Callable[[_Task], None], claims: str) -> None:
        self._task_fn, self._claims = task_fn, claims
        self._kms_key = os.environ.get(KMS_VARIABLE, "")

    def process(self, numbered: tuple[int, Iterable[_Task]]) -> Iterator[None]:
        """Run a task that no other process has claimed."""
        number, [task] = numbered
        try:
            if self._claims:
                Path(self._claims, str(number)).touch(exist_ok=False)
        except FileExistsError:
            return
        os.environ[KMS_VARIABLE] = self._kms_key  # a worker of another machine serves several environments
        self._task_fn(task)
        yield from ()


@contextmanager
def _worker_pool(
    task_fn: Callable[[_Task], None],
    pending: Callable[[], Sequence[_Task]],
    tasks: Sequence[_Task],
    claims: str,
    count: int,
    module: str,
) -> Iterator[None]:
    """Run `count` worker processes beside the block, then wait for the `pending` tasks that they claimed."""
    events.emit("worker_processes", count=count)
    workers: list[ChildProcess] = []
    readers: list[threading.Thread] = []

    def start() -> None:
        child_process.prepare_fork_server([module])
        for _ in range(count):
            with suppress(TransientError):  # killed at every start: the others run its tasks
                workers.append(ChildProcess(_run_worker, (task_fn, tasks, claims), "worker"))
                readers.append(threading.Thread(target=_pass_on, args=(workers[-1],), daemon=True))
                readers[-1].start()

    starter = threading.Thread(target=start, daemon=True)  # the fork server answers after its imports
    starter.start()
    try:
        yield
        starter.join()
        for worker in workers:
            while worker.is_alive() and pending():
                worker.join(_POLL_SECONDS)
            if worker.code:
                ended = child_process.describe_exit(worker.code)
                events.warn(f"a worker process {ended}; this process does its remaining tasks")
    finally:
        starter.join()
        for worker in workers:
            worker.kill()
        for reader in readers:
            reader.join(LAST_LINES_SECONDS)


def _run_worker(task_fn: Callable[[_Task], None], tasks: Sequence[_Task], claims: str) -> None:
    code = 1
    with suppress(Exception):  # the step's own process meets it again
        _run_pipeline(task_fn, tasks, "", claims)
        code = 0
    os._exit(code)  # as in a step: mixed libraries may crash while the interpreter exits


def _pass_on(worker: ChildProcess) -> None:
    with worker.lines as lines:
        for line in lines:
            events.write(line.rstrip("\n"))


def _worker_processes(tasks: int, data_bytes: int) -> int:
    """Return the number of worker processes that are worth their start and have a core and memory."""
    room = memory.usable_bytes() // (_PROCESS_MIB << 20)
    return max(0, min(_cores() - 1, room - 1, tasks - 1, data_bytes // _BYTES))


def _cores() -> int:
    """Return the cores that this process may use, by its affinity and its control group's quota.

    Source: Linux, admin-guide/cgroup-v2.rst (cpu.max).
    """
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = map(int, _CPU_QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores
