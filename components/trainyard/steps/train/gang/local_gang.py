"""Trains with several workers on this machine, each with a supervisor as on a cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trainyard import events
from trainyard.contract.gang import ElasticGang
from trainyard.errors import ExitCode, Preempted, TrainyardError, TransientError, failure_fields, from_code
from trainyard.graph import remedy
from trainyard.process.child_process import LAST_LINES_SECONDS, end_programs, end_with_parent, start_program
from trainyard.process.ports import free_ports
from trainyard.process.signals import on_sigterm
from trainyard.spec import plain_yaml
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.input.service.worker import InputProcess
from trainyard.steps.train.peers import settings
from trainyard.storage import storage

_GRACE_SECONDS = 15  # chosen: more than a supervisor needs to save and exit
_STARTS = 3  # chosen: starts of a killed supervisor, or input worker, before the run fails
_AGAIN_SECONDS = 1.0  # chosen: pause before a worker that could not be started is tried again
_LAST_SECONDS = 20.0  # chosen: the others notice a failed supervisor much sooner


def run(
    recipe: Recipe,
    examples: str,
    checkpoints: str,
    output: Path,
    start: str = "",
    input_workers: int = 0,
    elastic: ElasticGang | None = None,
) -> None:
    """Train with `recipe.train.workers` processes, or those of `elastic`, and `input_workers`; write to `output`.

    The gang commits its own output below `checkpoints`, so a run killed here finds it done the next time. Raises the
    error of the worker that failed.
    """
    trained = storage.join(checkpoints, "gang", "trained")
    if storage.committed(trained) is None:
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            path = Path(folder) / "recipe.yaml"
            path.write_text(plain_yaml.dump(recipe.model_dump(mode="json")), encoding="utf-8")
            uris = {"examples": examples, "checkpoints": checkpoints, "start": start}
            options = {"recipe": str(path), **uris, "output": trained}
            workers = elastic.counts[-1] if elastic else recipe.train.workers
            _LocalGang(workers, options, input_workers, elastic).train()
    committed = storage.local(trained, remedy("train"))
    shutil.copytree(committed, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns(storage.MANIFEST))


@dataclass
class _LocalGang:
    """The supervisors and input workers of one gang, and the first failure that one of them reported.

    An elastic gang trains without a worker that cannot be started, and tries to start it again. If that is worker 0,
    which the others need, or if worker 0 is killed again and again, it gets the place of the last worker. Each worker
    gives its place to a killed worker 0 once.
    """

    workers: int
    options: dict[str, str]
    input_workers: int = 0
    elastic: ElasticGang | None = None
    failure: events.Failure | None = None
    stopping: bool = False
    _processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    _absent: dict[int, float] = field(default_factory=dict)  # time of the next attempt to start each worker
    _chief_absent_since: float = 0.0
    _readers: dict[int, threading.Thread] = field(default_factory=dict)
    _input_processes: dict[int, InputProcess] = field(default_factory=dict)
    _starts: Counter[str] = field(default_factory=Counter)
    _gave_place: set[int] = field(default_factory=set)

    def train(self) -> None:
        environment = self._environment()
        with ExitStack() as stack:
            inputs = self._input_processes  # evaluated at the end
            stack.callback(lambda: end_programs([process.program for process in inputs.values()], _GRACE_SECONDS))
            stack.callback(lambda: end_programs(self._processes.values(), _GRACE_SECONDS))
            stack.enter_context(on_sigterm(self._stop))
            for number in range(self.input_workers):
                self._start_input(number, environment)
            for worker in range(self.workers):
                self._start(worker, environment)
            codes = self._wait(environment)
        for reader in self._readers.values():
            reader.join(LAST_LINES_SECONDS)  # a failure is the last line
        if self.stopping:
            raise Preempted()
        if (codes.get(0) if self.elastic else any(codes.values())) or storage.committed(self.options["output"]) is None:
            raise self._error(codes)

    def _environment(self) -> dict[str, str]:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.workers + self.input_workers, following=2)]
        # Without this each worker would start a thread for every core.
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.workers))
        token = secrets.token_hex(16)
        ours = {settings.WORKERS: ",".join(addresses[: self.workers]), settings.GANG_TOKEN: token}
        if self.input_workers:
            ours[settings.INPUT_WORKERS] = ",".join(addresses[self.workers :])
        if self.elastic:
            ours |= settings.elastic_variables(self.elastic.counts, self.elastic.replace_seconds)
            ours[settings.START_DEADLINE_SECONDS] = str(self.elastic.start_deadline_seconds)
        return {"TF_NUM_INTRAOP_THREADS": threads, **os.environ, **ours}

    def _start(self, worker: int, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "trainyard.steps.train.gang.supervisor"]
        command += [f"--{name}={value}" for name, value in self.options.items()]
        own = {**environment, settings.WORKER_INDEX: str(worker)}
        try:
            process = start_program(command, own, first=end_with_parent())
        except OSError as error:
            text = f"worker {worker}: could not be started ({error})"
            if not self.elastic or (worker == 0 and self._last_spare() is None):
                raise TransientError(f"train: {text}. Free what it needs, and run the same command again.") from error
            if worker not in self._absent:
                events.warn(f"{text}; it is tried every {_AGAIN_SECONDS:g} s.")
                if worker == 0:
                    self._chief_absent_since = time.monotonic()
            self._absent[worker] = time.monotonic() + _AGAIN_SECONDS
            return
        self._absent.pop(worker, None)
        self._processes[worker] = process
        self._starts[f"worker {worker}"] += 1
        events.emit("supervisor", worker=worker, process=process.pid)
        self._readers[worker] = threading.Thread(target=self._read, args=(worker, process), daemon=True)
        self._readers[worker].start()

    @property
    def _patience(self) -> float:
        """The seconds that an elastic gang waits for a worker."""
        return self.elastic.replace_seconds if self.elastic else 0

    def _last_spare(self) -> int | None:
        """Return the last worker if worker 0 and the workers before it can train, otherwise None."""
        running = [worker for worker, process in self._processes.items() if worker and process.poll() is None]
        return max(running) if self.elastic and len(running) >= self.elastic.counts[0] else None

    def _start_absent(self, environment: dict[str, str]) -> None:
        """Try to start the workers that could not be started; nobody takes the place of worker 0."""
        if self.stopping:
            return
        spare = self._last_spare()
        if 0 in self._absent and spare and time.monotonic() - self._chief_absent_since > self._patience:
            self._give_place(spare)
            self._absent |= {0: 0.0, spare: 0.0}
            self._chief_absent_since = time.monotonic()
        for worker in [0] if 0 in self._absent else [*self._absent]:
            if self._absent[worker] < time.monotonic():
                self._start(worker, environment)

    def _give_place(self, worker: int) -> None:
        """End `worker`, so that worker 0 can be started in its place."""
        events.warn(f"worker {worker}: gives its place to worker 0, without which no other trains.")
        end_programs([self._processes.pop(worker)], _GRACE_SECONDS)
        self._readers.pop(worker).join()

    def _start_input(self, number: int, environment: dict[str, str]) -> None:
        own = {**environment, settings.WORKER_INDEX: str(number)}
        process = InputProcess(self.options, own, partial(self._read_input, number))
        self._input_processes[number] = process
        self._starts[f"input worker {number}"] += 1
        events.emit("input_process", number=number, process=process.program.pid)

    def _wait(self, environment: dict[str, str]) -> dict[int, int]:
        """Wait for all supervisors and restart killed ones, as a cluster would; return their exit codes."""
        codes: dict[int, int] = {}
        failed = 0.0
        while self._processes.keys() - codes.keys() and not (failed and time.monotonic() - failed > _LAST_SECONDS):
            self._keep_input(environment)
            self._start_absent(environment)
            for worker, process in list(self._processes.items()):
                code = process.poll()
                if code is None or worker in codes or worker not in self._processes:
                    continue
                crashed = code < 0 or code in (ExitCode.PEER_LOST, ExitCode.PREEMPTED)
                again = crashed and not self.stopping
                spare = self._last_spare() if again and not worker and self._starts["worker 0"] >= _STARTS else None
                if spare and spare not in self._gave_place:
                    self._give_place(spare)
                    self._gave_place.add(spare)
                    self._absent[spare] = time.monotonic() + self._patience
                    self._starts["worker 0"] = 0
                if again and self._starts[f"worker {worker}"] < _STARTS:
                    del self._processes[worker]
                    self._readers[worker].join(_AGAIN_SECONDS)  # it holds a descriptor
                    events.warn(f"worker {worker}: its supervisor was killed or stopped; it is started again.")
                    self._start(worker, environment)
                else:
                    codes[worker] = code
                    ends = code and not (self.elastic and crashed and worker)
                    failed = failed or (time.monotonic() if ends else 0.0)
            time.sleep(0.05)
        return codes

    def _keep_input(self, environment: dict[str, str]) -> None:
        """Restart killed or frozen input workers; end the training if one fails for good."""
        for number, process in list(self._input_processes.items()):
            code = process.poll()
            if code is None or code == ExitCode.DONE or self.stopping:
                continue
            if code < 0 and self._starts[f"input worker {number}"] < _STARTS:
                text = f"input worker {number} {process.describe_end()}; it is started again."
                events.warn(text)
                self._start_input(number, environment)
                continue
            del self._input_processes[number]
            process.join()
            lost = TransientError(f"train: input worker {number} {process.describe_end()}. Run the same command again.")
            self.failure = self.failure or events.Failure(**failure_fields(lost))
            for supervisor in self._processes.values():
                supervisor.terminate()

    def _read_input(self, number: int, line: str) -> None:
        if failure := events.failure(line):
            self.failure = self.failure or failure
        elif not events.parse(line):
            print(f"input worker {number}: {line}", end="", file=sys.stderr, flush=True)

    def _read(self, worker: int, process: subprocess.Popen[str]) -> None:
        """Pass on a worker's output: the chief's events, all warnings, and other lines with the worker's number."""
        with process.stdout or nullcontext(()) as lines:
            for line in lines:
                event = events.parse(line)
                kind = str(event.pop("event", ""))
                if failure := events.failure(line):
                    if failure.code != ExitCode.PEER_LOST:
                        self.failure = self.failure or failure
                elif not kind:
                    print(f"worker {worker}: {line}", end="", file=sys.stderr, flush=True)
                elif worker == 0 and kind not in ("started", "done"):
                    events.emit(kind, **event)
                elif kind == "warning":
                    events.emit(kind, worker=worker, **event)

    def _stop(self) -> None:
        self.stopping = True
        for process in self._processes.values():
            process.terminate()

    def _error(self, codes: dict[int, int]) -> TrainyardError:
        if self.failure:
            return from_code(*self.failure)
        exits = ", ".join(f"worker {worker} with {code}" for worker, code in sorted(codes.items()))
        return TransientError(f"train: the supervisors ended without a model ({exits}). Run the same command again.")
