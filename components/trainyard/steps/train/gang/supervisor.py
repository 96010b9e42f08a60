"""Keeps one worker of a gang training: `python -m trainyard.steps.train.gang.supervisor` in each pod or local worker.

Starts the training process together with all other workers. If any worker is lost, it stops its own process at once,
waits for the others and restarts from the last committed checkpoint. It does not load TensorFlow; a fork server beside
it imports TensorFlow or JAX once, which makes restarts fast.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection
from types import FrameType
from typing import Any, NoReturn

from trainyard import events
from trainyard.errors import ConfigurationError, ExitCode, PeerLost, TrainyardError, TransientError, failure_fields
from trainyard.process import child_process, ports
from trainyard.spec import recipe as recipes
from trainyard.steps.train.engines import engine
from trainyard.steps.train.gang import rendezvous
from trainyard.steps.train.gang.rendezvous import Rendezvous
from trainyard.steps.train.gang.training_process import TrainingProcess
from trainyard.steps.train.loop.watchdog import call_seconds
from trainyard.steps.train.peers import channel, launcher_heartbeat, settings
from trainyard.steps.train.peers.channel import HEARTBEAT_SECONDS, Message, MessageStream, StallGuard
from trainyard.steps.train.peers.launcher_heartbeat import LauncherMonitor
from trainyard.storage import storage

_GRACE_SECONDS = 10.0  # chosen: time for a checkpoint after SIGTERM; a Spot node gives 15
_CALL_SECONDS = 2.0  # chosen: for one attempt to reach worker 0's supervisor
HEAP_VARIABLES = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""One heap that keeps its memory; otherwise the kernel clears the gradients in each step, 0.2 of ResNet-50's."""


@dataclass(frozen=True)
class Membership:
    """The index of this worker and the addresses (host:port) of all supervisors.

    token: the secret by which the gang's supervisors authenticate.
    """

    worker: int
    addresses: list[str]
    token: str

    @classmethod
    def from_environment(cls) -> Membership:
        """Read TRAINYARD_WORKERS and its companions. Raises `ConfigurationError` if they are inconsistent."""
        addresses = settings.addresses(settings.WORKERS)
        index = os.environ.get(settings.WORKER_INDEX, "")
        if not index.isdigit() or int(index) >= len(addresses) or not all(":" in address for address in addresses):
            raise ConfigurationError(
                f"TRAINYARD_WORKERS, TRAINYARD_WORKER_INDEX: {','.join(addresses)!r} has no worker {index!r}. "
                "Give host:port for each worker, with commas between, and the index of this one, from 0."
            )
        token = os.environ.get(settings.GANG_TOKEN, "")
        if not token:
            raise ConfigurationError(
                "TRAINYARD_GANG_TOKEN: is not set. Give all workers of the gang the same random text: "
                "they know each other by it."
            )
        return cls(int(index), addresses, token)

    @property
    def rendezvous(self) -> tuple[str, int]:
        """Host and port of worker 0's supervisor."""
        host, _, port = self.addresses[0].rpartition(":")
        return host, int(port)


class Supervisor:
    """The supervisor of one worker; `run` returns the exit code."""

    def __init__(self, membership: Membership, options: dict[str, str]) -> None:
        self.membership = membership
        self.options = options
        self._training: TrainingProcess | None = None
        self._deadline_seconds, self._stall_seconds = settings.start_deadline_seconds(), call_seconds()
        self._launcher = LauncherMonitor()
        self._stop_requested_at = 0.0
        self._generation = 0
        self._step = 0
        self._alone_since = 0.0  # when worker 0's supervisor was lost

    def run(self) -> int:
        """Keep the worker training until the whole gang has ended."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=_preload, args=(self.options["recipe"],), daemon=True).start()
        meeting = None
        if self.membership.worker == 0:
            self._launcher.start()
            meeting = Rendezvous(
                *self.membership.rendezvous,
                settings.worker_counts(len(self.membership.addresses)),
                self._deadline_seconds,
                self.membership.token,
                _exit_after_failed_rendezvous,
                settings.replace_seconds(),
                f"{launcher_heartbeat.heartbeat_uri(self.options['checkpoints'])}.past",
            ).open()
        try:
            code = self._work()
        finally:
            self._stop_training()
        if meeting is not None and code != ExitCode.PREEMPTED:
            meeting.join(timeout=5)
        return code

    def _work(self) -> int:
        """Follow the rendezvous, reconnecting to worker 0 if needed; return the exit code."""
        while True:
            stream = self._connect()
            if isinstance(stream, int):
                return stream
            try:
                code = self._follow_rendezvous(stream)
            finally:
                stream.close()
            if code is not None:
                return code
            self._alone_since = self._alone_since or time.monotonic()
            events.warn(f"worker {self.membership.worker}: lost worker 0's supervisor.")
            self._stop_training()

    def _connect(self) -> MessageStream | int:
        """Return the connection to worker 0's supervisor, or the exit code if there will be none."""
        key, problem = rendezvous.rendezvous_key(self.membership.token), ""
        start = time.monotonic()
        # A little longer than the deadline of the rendezvous, which knows the missing worker.
        while time.monotonic() - start < self._deadline_seconds + 2:
            if self._stop_requested_at:
                return ExitCode.PREEMPTED
            if storage.committed(self.options["output"]) is not None:
                return ExitCode.DONE
            try:
                stream = MessageStream(channel.connect(*self.membership.rendezvous, key, _CALL_SECONDS))
            except OSError as error:
                problem = str(error)
                time.sleep(0.2)
                continue
            self._send_ready(stream)
            return stream
        text = (
            f"train: worker {self.membership.worker} is waiting for worker 0 of {len(self.membership.addresses)} "
            f"({self.membership.addresses[0]}: {problem}) for {self._deadline_seconds:g} s, the deadline. "
            "Look why it does not start, or run the same command again."
        )
        return _emit_failure(**failure_fields(TransientError(text)))

    def _send_ready(self, stream: MessageStream) -> None:
        host, _, port = self.membership.addresses[self.membership.worker].rpartition(":")
        address = f"{host}:{_free_port(int(port) + 1)}"
        own = {"worker": self.membership.worker, "node": settings.node(), "address": address}
        away = time.monotonic() - self._alone_since if self._alone_since else 0.0
        self._send(stream, "ready", **own, away=away)

    def _follow_rendezvous(self, stream: MessageStream) -> int | None:
        """Follow the rendezvous; return the exit code, None if the connection is lost."""
        threading.Thread(target=self._send_heartbeats, args=(stream,), daemon=True).start()
        stall_guard = StallGuard()
        while True:
            sources: list[Any] = [stream]
            if self._training:
                sources.append(self._training.child.sentinel)
            connection.wait(sources, timeout=0.2)
            stall_guard.excuse([stream])
            messages = stream.receive()
            if messages is None or stream.is_silent():
                return None
            for message in messages:
                code = self._handle(message, stream)
                if code is not None:
                    return code
            if self._stop_requested_at and self._may_exit():
                # The chief may still be saving the step at which all of them have stopped.
                text = f"worker {self.membership.worker} got SIGTERM"
                self._send_break(stream, text, grace_seconds=_GRACE_SECONDS)
                return ExitCode.PREEMPTED
            if self._launcher.is_lost:
                text = "train: the gang's launcher is gone: it has sent no heartbeat"
                self._send(stream, "broke", code=int(ExitCode.INTERRUPTED), error="Interrupted", message=text)
            self._check_training(stream)

    def _handle(self, message: Message, stream: MessageStream) -> int | None:
        kind = message["type"]
        if kind == "start" and not self._stop_requested_at:
            self._step, self._alone_since = 0, 0.0  # before the generation, with which the heartbeats send it
            self._generation = int(message["generation"])
            past = message["past"]
            rank = [worker for worker, _ in past["team"]].index(self.membership.worker)
            self._training = TrainingProcess(rank, message["addresses"], self.options, json.dumps(past))
        elif kind == "stop":
            self._check_training(stream)  # this worker's own failure may have caused the stop
            if self._training is not None and message["save"]:
                self._training.child.terminate()
            self._stop_training(message["grace_seconds"])
            if self.membership.worker == 0 and storage.committed(self.options["output"]) is not None:
                self._send(stream, "done")
            elif not self._stop_requested_at:
                self._send_ready(stream)
        elif kind == "end":
            self._stop_training()
            return _emit_failure(message["code"], message["error"], message["message"]) if message["code"] else 0
        return None

    def _check_training(self, stream: MessageStream) -> None:
        """Report that the training process has ended or stalled."""
        training = self._training
        if training is None:
            return
        for kind, fields in training.take_messages():
            self._send(stream, kind, **fields)
        self._step = max(self._step, training.step)
        if not training.child.is_alive():
            self._training = None
            training.end()
            if not training.child.code or storage.committed(self.options["output"]) is not None:
                self._send(stream, "done")
            else:
                self._send(stream, "broke", **training.break_message(self.membership.worker))
        elif training.silent_seconds() > self._stall_seconds:
            self._training = None
            training.dump()
            training.end()
            text = f"worker {self.membership.worker} made no progress for {self._stall_seconds:g} s"
            self._send_break(stream, text)

    def _send_heartbeats(self, stream: MessageStream) -> None:
        """Send `beat` until the connection is closed; runs in a thread because a first start waits for TensorFlow."""
        while stream.send("beat", generation=self._generation, step=self._step):
            time.sleep(HEARTBEAT_SECONDS)

    def _send(self, stream: MessageStream, kind: str, **fields: Any) -> None:
        stream.send(kind, generation=self._generation, step=self._step, **fields)

    def _send_break(self, stream: MessageStream, reason: str, **fields: Any) -> None:
        self._send(stream, "broke", **failure_fields(PeerLost(reason)), cause=True, **fields)

    def _may_exit(self) -> bool:
        """Return True if the training process has saved and ended after SIGTERM, or its grace period is over."""
        training = self._training
        if training is None or not training.child.is_alive():
            return True
        return time.monotonic() - self._stop_requested_at > _GRACE_SECONDS

    def _stop_training(self, grace_seconds: float = 0.0) -> None:
        if self._training is not None:
            training, self._training = self._training, None
            training.end(grace_seconds)
            self._step = max(self._step, training.step)  # told since the last check

    def _on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        self._stop_requested_at = self._stop_requested_at or time.monotonic()
        if self._training is not None:
            self._training.child.terminate()


def main() -> None:
    """Run the supervisor of this process's worker; exits with the gang's exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.gang.supervisor", description=__doc__)
    for name in ("recipe", "examples", "checkpoints", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--start", default="")
    supervise(vars(parser.parse_args()))


def supervise(options: dict[str, str]) -> NoReturn:
    """Supervise this process's worker with the `options` of `train_in_process`; exit with the gang's exit code."""
    try:
        membership = Membership.from_environment()
        engine.engine_name()
        code = Supervisor(membership, options).run()
    except TrainyardError as error:
        code = _emit_failure(**failure_fields(error))
    sys.stderr.flush()
    os._exit(int(code))


def _emit_failure(code: int, error: str, message: str) -> int:
    events.emit("failed", step="train", code=code, error=error, message=message)
    return code


def _exit_after_failed_rendezvous() -> None:
    """Exit at once: the restarted process opens another rendezvous, which the other workers join."""
    lost = PeerLost("train: the gang's rendezvous failed, its traceback is in the log")
    os._exit(_emit_failure(**failure_fields(lost)))


def _free_port(first: int) -> int:
    """Return the first free port from `first` on."""
    for port in range(first, first + settings.PORT_RANGE):
        if ports.is_free(port):
            return port
    raise ConfigurationError(
        f"TRAINYARD_WORKERS: ports {first} to {first + settings.PORT_RANGE - 1} are all taken. Name others."
    )


def _preload(recipe: str) -> None:
    """Import the engine in the fork server while this process waits for the others."""
    if recipes.load(recipe).train.command is not None:
        return  # a separate process with its own imports
    for name, value in HEAP_VARIABLES.items():
        os.environ.setdefault(name, value)
    child_process.prepare_fork_server(engine.prepare())


if __name__ == "__main__":
    main()
