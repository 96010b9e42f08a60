"""Keeps one worker of a gang training: `python -m trainyard.steps.train.gang.supervisor`, one in each pod or local process.

It starts the training process together with all the others, and when any of them is lost it stops its own at once, meets
the others again and starts it from the last committed checkpoint. It needs no TensorFlow itself; a fork server beside it
imports TensorFlow, or JAX, once, so that a restart does not pay for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from types import FrameType
from typing import Any, NoReturn

from trainyard import events, memory, processes
from trainyard.errors import ConfigurationError, ExitCode, TrainyardError
from trainyard.steps.train.engines import engine
from trainyard.steps.train.gang import peers, rendezvous
from trainyard.steps.train.gang.launcher_sign import Lookout
from trainyard.steps.train.gang.rendezvous import BEAT_SECONDS, Line, Listening, Message, Rendezvous
from trainyard.steps.train.gang.worker import ALIVE, Start
from trainyard.steps.train.gang.worker import main as train
from trainyard.steps.train.loop.watchdog import call_seconds
from trainyard.storage import storage

_GRACE_SECONDS = 10.0  # chosen: what a checkpoint may take after SIGTERM; a Spot node gives 15
_CALL_SECONDS = 2.0  # chosen: for one call of worker 0's supervisor, which is tried again
_PORTS = 8  # chosen: TensorFlow takes the first free port of so many behind the rendezvous port
HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""One heap that gives nothing back: else a step's gradients take memory that the kernel clears anew, 0.2 of a ResNet-50's step."""


@dataclass(frozen=True)
class Membership:
    """Which worker this is, where all supervisors are (host:port by worker), and how long to wait.

    token: what the gang's own supervisors know each other by.
    """

    worker: int
    addresses: list[str]
    token: str
    deadline_seconds: float
    stall_seconds: float

    @classmethod
    def from_environment(cls) -> Membership:
        """Read TRAINYARD_WORKERS and its companions. Raises `ConfigurationError` where they do not fit together."""
        addresses = [each for each in os.environ.get("TRAINYARD_WORKERS", "").split(",") if each]
        index = os.environ.get("TRAINYARD_WORKER_INDEX", "")
        if not index.isdigit() or int(index) >= len(addresses) or not all(":" in each for each in addresses):
            raise ConfigurationError(
                f"TRAINYARD_WORKERS, TRAINYARD_WORKER_INDEX: {','.join(addresses)!r} has no worker {index!r}. "
                "Give host:port for each worker, with commas between, and the index of this one, from 0."
            )
        deadline = float(os.environ.get("TRAINYARD_START_DEADLINE_SECONDS", "300"))
        token = os.environ.get("TRAINYARD_GANG_TOKEN", "")
        if not token:
            raise ConfigurationError(
                "TRAINYARD_GANG_TOKEN: is not set. Give all workers of the gang the same random text: they know each other by it."
            )
        return cls(int(index), addresses, token, deadline, call_seconds())

    @property
    def meeting(self) -> tuple[str, int]:
        """Host and port of worker 0's supervisor."""
        host, _, port = self.addresses[0].rpartition(":")
        return host, int(port)


class Supervisor:
    """One worker's supervisor; `run` returns the exit code."""

    def __init__(self, membership: Membership, options: dict[str, str]) -> None:
        self.membership = membership
        self.options = options
        self._training: _Training | None = None
        self._lookout = Lookout()
        self._told_to_stop = 0.0
        self._generation = 0
        self._step = 0

    def run(self) -> int:
        """Keep the worker training until the whole gang has ended."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=_warm_up, daemon=True).start()
        meeting = None
        if self.membership.worker == 0:
            workers, deadline = len(self.membership.addresses), self.membership.deadline_seconds
            meeting = Rendezvous(
                *self.membership.meeting, workers, deadline, self.membership.token, _end_without_meeting
            ).open()
        try:
            code = self._work()
        finally:
            self._stop_training()
        if meeting is not None and code != ExitCode.PREEMPTED:
            meeting.join(timeout=5)
        return code

    def _work(self) -> int:
        """Go on over lost connections to worker 0; return the exit code."""
        while True:
            line = self._connect()
            if isinstance(line, int):
                return line
            try:
                code = self._converse(line)
            finally:
                line.close()
            if code is not None:
                return code
            events.emit("warning", message=f"worker {self.membership.worker}: lost worker 0's supervisor.")
            self._stop_training()

    def _connect(self) -> Line | int:
        """Return the line to worker 0's supervisor, or the exit code where there is none in time or no need of one."""
        key, problem = rendezvous.key(self.membership.token), ""
        start = time.monotonic()
        # Its own deadline is a little longer than the rendezvous', which knows better who is missing.
        while time.monotonic() - start < self.membership.deadline_seconds + 2:
            if self._told_to_stop:
                return ExitCode.PREEMPTED
            if storage.committed(self.options["output"]) is not None:
                return ExitCode.DONE
            try:
                line = Line(peers.call(*self.membership.meeting, key, _CALL_SECONDS))
            except OSError as error:
                problem = str(error)
                time.sleep(0.2)
                continue
            self._say_ready(line)
            return line
        text = (
            f"train: worker {self.membership.worker} is waiting for worker 0 of {len(self.membership.addresses)} "
            f"({self.membership.addresses[0]}: {problem}) for {self.membership.deadline_seconds:g} s, the deadline. "
            "Look why it does not start, or run the same command again."
        )
        return _failed(ExitCode.TRANSIENT, "TransientError", text)

    def _say_ready(self, line: Line) -> None:
        host, _, port = self.membership.addresses[self.membership.worker].rpartition(":")
        address = f"{host}:{_free_port(int(port) + 1)}"
        line.send("ready", worker=self.membership.worker, address=address, generation=self._generation)

    def _converse(self, line: Line) -> int | None:
        """Do what worker 0's supervisor says; return the exit code, or None where it is lost."""
        threading.Thread(target=self._beat, args=(line,), daemon=True).start()
        listening = Listening()
        while True:
            waited_for: list[Any] = [line]
            if self._training:
                waited_for.append(self._training.child.sentinel)
            connection.wait(waited_for, timeout=0.2)
            listening.excuse([line])
            messages = line.receive()
            if messages is None or line.silent():
                return None
            for message in messages:
                code = self._obey(message, line)
                if code is not None:
                    return code
            if self._told_to_stop and self._may_leave():
                # The chief may still be saving the step at which all of them have stopped.
                text = f"worker {self.membership.worker} was told to stop"
                self._say(
                    line,
                    "broke",
                    code=int(ExitCode.PEER_LOST),
                    error="PeerLost",
                    message=text,
                    grace_seconds=_GRACE_SECONDS,
                )
                return ExitCode.PREEMPTED
            if self.membership.worker == 0 and self._lookout.gone():
                text = "train: nobody waits for this gang any more: its launcher has given no sign of life"
                self._say(line, "broke", code=int(ExitCode.INTERRUPTED), error="Interrupted", message=text)
            self._watch(line)

    def _obey(self, message: Message, line: Line) -> int | None:
        kind = message["type"]
        if kind == "start" and not self._told_to_stop:
            self._generation = int(message["generation"])
            start = Start(self.membership.worker, message["addresses"], self.options, json.dumps(message["past"]))
            self._training = _Training(start)
        elif kind == "stop":
            self._stop_training(message["grace_seconds"])
            if not self._told_to_stop:
                self._say_ready(line)
        elif kind == "end":
            self._stop_training()
            return _failed(message["code"], message["error"], message["message"]) if message["code"] else 0
        return None

    def _watch(self, line: Line) -> None:
        """Tell the others where the training process has ended or stands still."""
        training = self._training
        if training is None:
            return
        for kind, news in training.news():
            self._say(line, kind, **news)
        self._step = max(self._step, training.step)
        if not training.child.is_alive():
            self._training = None
            training.end()
            code = training.child.code or 0
            if code == 0 or storage.committed(self.options["output"]) is not None:
                self._say(line, "done")
            else:
                self._say(line, "broke", **_broken(self.membership.worker, code, training))
        elif training.quiet_seconds() > self.membership.stall_seconds:
            self._training = None
            training.dump()
            training.end()
            text = f"worker {self.membership.worker} made no progress for {self.membership.stall_seconds:g} s"
            self._say(line, "broke", code=int(ExitCode.PEER_LOST), error="PeerLost", message=text)

    def _beat(self, line: Line) -> None:
        """Say that this worker is there until the line is closed, in a thread: a first start waits for TensorFlow."""
        while line.send("beat", generation=self._generation, step=self._step):
            time.sleep(BEAT_SECONDS)

    def _say(self, line: Line, kind: str, **fields: Any) -> None:
        line.send(kind, generation=self._generation, step=self._step, **fields)

    def _may_leave(self) -> bool:
        """Whether the training process has saved and ended after SIGTERM, or has had its time."""
        training = self._training
        if training is None or not training.child.is_alive():
            return True
        return time.monotonic() - self._told_to_stop > _GRACE_SECONDS

    def _stop_training(self, grace_seconds: float = 0.0) -> None:
        if self._training is not None:
            training, self._training = self._training, None
            training.child.join(grace_seconds)
            training.end()

    def _on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        self._told_to_stop = self._told_to_stop or time.monotonic()
        if self._training is not None:
            self._training.child.terminate()


class _Training:
    """The training process at work. What it writes goes to stderr; its events say how far it is."""

    def __init__(self, start: Start) -> None:
        reader, writer = Pipe(duplex=False)
        self.child = processes.Child(train, (start, writer), "training")
        writer.close()
        self.step = 0
        self.failure: Message = {}
        self.peak_mib = 0
        self._out_of_memory = memory.kills()
        self._heard = time.monotonic()
        self._news: list[tuple[str, Message]] = []
        self._reader = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reader.start()

    def news(self) -> list[tuple[str, Message]]:
        """Return what it has told of its beginning and its recovery since the last call, as messages by kind."""
        told, self._news = self._news, []
        return told

    def quiet_seconds(self) -> float:
        """Seconds since it said anything; takes note of its memory as well."""
        self.peak_mib = max(self.peak_mib, memory.peak_mib(self.child.pid))
        return time.monotonic() - self._heard

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed something of this container for want of memory since the start."""
        return memory.kills() > self._out_of_memory

    def dump(self) -> None:
        """Have it write every thread's stack."""
        if self.child.is_alive():
            os.kill(self.child.pid, signal.SIGUSR1)
            time.sleep(1)

    def end(self) -> None:
        """Leave no process behind and nothing of its last words unread."""
        self.child.kill()
        self._reader.join(timeout=2)

    def _read(self, reader: connection.Connection) -> None:
        with os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace") as lines:
            reader.close()
            for line in lines:
                self._heard = time.monotonic()
                if line.startswith(ALIVE):
                    continue
                sys.stderr.write(line)
                sys.stderr.flush()
                # A line that only looks like an event of ours was printed by a recipe's module.
                with contextlib.suppress(Exception):
                    self._note(json.loads(line) if line.startswith('{"event"') else {})

    def _note(self, event: Message) -> None:
        kind = event.pop("event", "")
        if kind == "progress":
            self.step = max(self.step, int(event["done"]))
        elif kind == "recovered":
            self._news.append((kind, {"restart": event}))
        elif kind == "began":
            self._news.append((kind, {"began_at": int(event["began_at"])}))
        elif kind == "failed":
            self.failure = {"error": str(event["error"]), "message": str(event["message"])}


def main() -> None:
    """Run the supervisor of this process's worker; ends with the gang's exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.gang.supervisor", description=__doc__)
    for name in ("recipe", "examples", "checkpoints", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--start", default="")
    supervise(vars(parser.parse_args()))


def supervise(options: dict[str, str]) -> NoReturn:
    """Supervise this process's worker; `options` are those of `train.run.join`. Ends with the gang's exit code."""
    # The supervisor follows its training process by its events.
    os.environ["TRAINYARD_EVENTS"] = "json"
    try:
        membership = Membership.from_environment()
        engine.chosen()
    except ConfigurationError as error:
        sys.exit(_failed(ExitCode.CONFIGURATION, "ConfigurationError", str(error)))
    try:
        code = Supervisor(membership, options).run()
    except TrainyardError as error:
        code = _failed(error.exit_code, type(error).__name__, str(error))
    sys.stderr.flush()
    os._exit(int(code))


def _broken(worker: int, code: int, training: _Training) -> Message:
    """Return the message about a training process that ended with `code`."""
    known = code in {int(each) for each in ExitCode}
    if training.failure:
        return {"code": code if known else int(ExitCode.PEER_LOST), **training.failure}
    if code == -signal.SIGKILL:
        starved = training.out_of_memory()
        text = f"worker {worker}'s training process was killed by SIGKILL. Its peak memory was {training.peak_mib} MiB"
        if starved:
            text = f"worker {worker}'s training process was killed {memory.told(training.peak_mib, 'train')}"
        return {"code": int(ExitCode.PEER_LOST), "error": "PeerLost", "message": text, "out_of_memory": starved}
    how = f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    if code == processes.LOST:
        how = "was killed, or the fork server that had started it"
    text = f"worker {worker}'s training process {how}"
    return {"code": code if known else int(ExitCode.PEER_LOST), "error": "PeerLost", "message": text}


def _failed(code: int, error: str, message: str) -> int:
    events.emit("failed", step="train", code=int(code), error=error, message=message)
    return int(code)


def _end_without_meeting() -> None:
    """End this process at once: started again, it opens another meeting, to which the others come."""
    _failed(ExitCode.PEER_LOST, "PeerLost", "train: the meeting of the gang broke off, its traceback is in the log")
    os._exit(ExitCode.PEER_LOST)


def _free_port(first: int) -> int:
    """Return the first port from `first` on that nobody listens on."""
    for port in range(first, first + _PORTS):
        if peers.is_free(port):
            return port
    raise ConfigurationError(f"TRAINYARD_WORKERS: ports {first} to {first + _PORTS - 1} are all taken. Name others.")


def _warm_up() -> None:
    """Have the fork server import what trains while the others are waited for."""
    for name, value in HEAP.items():
        os.environ.setdefault(name, value)
    processes.prepare(engine.prepare())


if __name__ == "__main__":
    main()
