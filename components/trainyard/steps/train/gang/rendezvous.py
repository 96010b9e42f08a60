"""The rendezvous of a gang's supervisors, run by worker 0: all start together, and learn when one is lost.

A client must first prove that it knows the gang's token (`handshake`). Messages are JSON lines over one TCP connection
for each supervisor. A supervisor sends `ready` (with the address for its TensorFlow), `beat`, `began`, `broke`,
`recovered` and `done`; it receives `start`, `stop`, `beat` and `end`. A client that sends anything else is cut off, and
the others notice only a lost worker.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection

from trainyard import events
from trainyard.contract.artifacts.train import Restart
from trainyard.errors import CommandFailed, ExitCode, InfrastructureError, TransientError, failure_fields
from trainyard.steps.train.loop.goodput import Past
from trainyard.steps.train.peers import handshake, settings
from trainyard.steps.train.peers.messages import HEARTBEAT_SECONDS, SILENCE_SECONDS, Message, MessageStream, StallGuard
from trainyard.storage import storage

_LOST = "worker 0 was lost, and its pod was started again"


def _read_past(token: str) -> Past:
    """Return the gang's history with the loss of worker 0 as its last break, or a new one.

    It lies beside the launcher's heartbeat, so that it survives the loss of worker 0's node. The time in between
    compares the clocks of two machines; no decision depends on it.
    """
    uri = _past_uri()
    try:
        kept = storage.read_json(uri) if uri else None
        if not kept or kept["token"] != token:
            return Past()
        past = Past.model_validate(kept["past"])
        away = max(0.0, time.time() - kept["time"])
        past.started = time.monotonic() - kept["elapsed"] - away
        if past.began_at is not None:
            past.last_break = (_LOST, kept["step"], time.monotonic())
        return past
    except Exception as error:  # noqa: BLE001 - evidence alone: the gang trains without it
        events.emit("warning", message=f"{uri}: the restarts before this pod are not known ({error}).")
        return Past()


def _keep_past(token: str, past: Past, step: int) -> None:
    """Write `past` and the newest `step` in a new thread, because the caller must answer the workers."""
    if uri := _past_uri():
        elapsed = time.monotonic() - past.started
        kept = {"token": token, "past": past.model_dump(), "step": step, "elapsed": elapsed, "time": time.time()}
        threading.Thread(target=_write_past, args=(uri, json.dumps(kept)), daemon=True).start()


def _write_past(uri: str, text: str) -> None:
    try:
        storage.write_text(uri, text)
    except Exception as error:  # noqa: BLE001 - as above
        events.emit("warning", message=f"{uri}: the gang's restarts were not noted ({error}).")


def _past_uri() -> str:
    heartbeat = os.environ.get(settings.LAUNCHER_HEARTBEAT, "")
    return f"{heartbeat}.past" if heartbeat else ""


_MAX_STARTS_WITHOUT_STEP = 3  # chosen: starts in a row without one new step before the gang gives up
_MAX_OOM_KILLS = 2  # chosen: an unchanged gang would be killed again
_FINAL_CODES = {int(code) for code in ExitCode} - {0, ExitCode.TRANSIENT, ExitCode.PEER_LOST, ExitCode.PREEMPTED}
_MAX_NUMBER = 1 << 53  # limit of whole numbers in a message


def rendezvous_key(token: str) -> bytes:
    """Return the handshake key of the supervisors of the gang with `token`."""
    return handshake.derive_key(token, b"rendezvous")


@dataclass
class _Member:
    stream: MessageStream
    address: str | None = None


@dataclass
class Rendezvous:
    """The rendezvous of `workers` supervisors at host:port, in its own thread until the gang has ended.

    on_failure: called in that thread if it ends because of a bug.
    """

    host: str
    port: int
    workers: int
    deadline_seconds: float
    token: str
    on_failure: Callable[[], None]
    _members: dict[int, _Member] = field(default_factory=dict)
    _unidentified: list[MessageStream] = field(default_factory=list)
    _generation: int = 0
    _running: bool = False
    _waiting_since: float = field(default_factory=time.monotonic)
    _past: Past = field(default_factory=Past)
    _beat_at: float = 0.0
    _step: int = 0
    _step_at_start: int = 0
    _starts_without_step: int = 0
    _oom_kills: int = 0
    _symptom_of: int = 0  # the generation whose break reason may be only a symptom, 0 for none
    _failed: tuple[float, Message] | None = None
    _end: Message | None = None

    def open(self) -> threading.Thread:
        """Listen on the port and return the started thread, which ends with the gang."""
        acceptor = handshake.Acceptor(handshake.listen(self.host, self.port), rendezvous_key(self.token))
        thread = threading.Thread(target=self._run, args=(acceptor,), daemon=True, name="rendezvous")
        thread.start()
        return thread

    def _run(self, acceptor: handshake.Acceptor) -> None:
        try:
            self._serve(acceptor)
        except Exception:  # noqa: BLE001 - whatever it is: without the rendezvous the gang would wait for nothing
            traceback.print_exc()
            self.on_failure()
        finally:
            acceptor.close()

    def _serve(self, acceptor: handshake.Acceptor) -> None:
        self._past = _read_past(self.token)
        stall_guard = StallGuard()
        while self._end is None:
            streams = {stream.socket: stream for stream in self._streams()}
            readable = connection.wait([*acceptor.sockets(), *streams], timeout=0.2)
            stall_guard.excuse([*streams.values()])
            self._unidentified += [MessageStream(client) for client in acceptor.accept(readable)]
            for client, stream in streams.items():
                if client in readable:
                    self._receive(stream)
            self._check_members()
        for stream in self._streams():
            stream.send(**{"kind": "end", **self._end})

    def _streams(self) -> list[MessageStream]:
        return [*self._unidentified, *(member.stream for member in self._members.values())]

    def _receive(self, stream: MessageStream) -> None:
        messages = stream.receive()
        if messages is None:
            self._drop(stream, "the connection to it is closed")
            return
        try:
            for message in messages:
                self._handle(stream, message)
        except Exception:  # noqa: BLE001 - whatever a connection sends costs that connection alone
            self._drop(stream, "it said what no supervisor says")

    def _handle(self, stream: MessageStream, message: Message) -> None:
        kind = message["type"]
        if kind == "ready":
            self._handle_ready(stream, message)
            return
        if stream in self._unidentified:
            raise ValueError(kind)
        self._step = max(self._step, _natural_number(message.get("step", 0)))
        is_cause = kind == "broke" and bool(message.get("cause"))
        if message.get("generation") != self._generation or not (self._running or is_cause):
            return
        if kind == "done":
            self._end = {"code": 0, "error": "", "message": ""}
        elif kind == "began":
            self._past.began_at = _natural_number(message["began_at"])
            _keep_past(self.token, self._past, self._step)
        elif kind == "recovered":
            self._past.restarts.append(Restart.model_validate(message["restart"]))
            self._past.last_break = None
            _keep_past(self.token, self._past, self._step)
        elif kind == "broke":
            self._handle_break(message)

    def _handle_ready(self, stream: MessageStream, message: Message) -> None:
        worker, generation = _natural_number(message["worker"]), _natural_number(message["generation"])
        address = str(message["address"])
        if worker >= self.workers or any(m.stream is stream for w, m in self._members.items() if w != worker):
            raise ValueError(worker)
        if stream in self._unidentified:
            self._unidentified.remove(stream)
        previous = self._members.get(worker)
        if previous is not None and previous.stream is not stream:
            self._drop(previous.stream, "it was started again")
        self._members[worker] = _Member(stream, address)
        self._generation = max(self._generation, generation)

    def _drop(self, stream: MessageStream, reason: str) -> None:
        stream.close()
        if stream in self._unidentified:
            self._unidentified.remove(stream)
        for worker in [worker for worker, member in self._members.items() if member.stream is stream]:
            del self._members[worker]
            self._stop(f"worker {worker} is lost: {reason}")

    def _handle_break(self, message: Message) -> None:
        code, text = _natural_number(message["code"]), str(message["message"])
        failure: Message = {"code": code, "error": str(message["error"]), "message": text}
        grace_seconds, cause = float(message.get("grace_seconds", 0.0)), bool(message.get("cause"))
        if failure["error"] == CommandFailed.__name__ and self.workers > 1:
            # It may have failed because another worker is lost, which shows within SILENCE_SECONDS.
            self._failed = self._failed or (time.monotonic(), failure)
            return
        if code in _FINAL_CODES:
            self._end = failure
            return
        if self._running:
            self._starts_without_step = self._starts_without_step + 1 if self._step <= self._step_at_start else 0
        self._oom_kills += bool(message.get("out_of_memory"))
        if self._oom_kills >= _MAX_OOM_KILLS:
            text = f"train: gave up after {self._oom_kills} out-of-memory kills. {text}"
            self._end = failure_fields(InfrastructureError(text))
        elif self._starts_without_step >= _MAX_STARTS_WITHOUT_STEP:
            text = f"train: gave up after {self._starts_without_step} starts without a new step. {text}"
            self._end = failure_fields(TransientError(text))
        else:
            self._stop(text, grace_seconds, cause)

    def _stop(self, reason: str, grace_seconds: float = 0.0, cause: bool = True) -> None:
        """Stop every worker's training process and wait for all workers again.

        cause: False if `reason` may be a consequence of another lost worker; a cause reported later replaces it.
        """
        if not self._running:
            if self._symptom_of == self._generation and cause and self._past.last_break is not None:
                self._past.last_break, self._symptom_of = (reason, *self._past.last_break[1:]), 0
            return
        self._running, self._waiting_since, self._failed = False, time.monotonic(), None
        if self._past.last_break is None:
            self._past.last_break = (reason, self._step, time.monotonic())
            self._symptom_of = 0 if cause else self._generation
        events.emit("restarting", generation=self._generation + 1, step=self._step, reason=reason)
        for member in self._members.values():
            member.address = None
            member.stream.send("stop", grace_seconds=grace_seconds)

    def _check_members(self) -> None:
        for stream in self._streams():
            if stream.is_silent():
                self._drop(stream, f"no message from it for {SILENCE_SECONDS:g} s")
            elif time.monotonic() - self._beat_at > HEARTBEAT_SECONDS:
                stream.send("beat")
        if time.monotonic() - self._beat_at > HEARTBEAT_SECONDS:
            self._beat_at = time.monotonic()
        if self._failed and time.monotonic() - self._failed[0] > SILENCE_SECONDS + HEARTBEAT_SECONDS:
            self._end = self._failed[1]
        if self._running or self._end:
            return
        missing = [w for w in range(self.workers) if w not in self._members or self._members[w].address is None]
        waited = time.monotonic() - self._waiting_since
        if not missing:
            self._start()
        elif waited > self.deadline_seconds:
            text = (
                f"train: waiting for worker {', '.join(map(str, missing))} of {self.workers} for {waited:.0f} s, the "
                "deadline. Look why it does not start, or run the same command again."
            )
            self._end = failure_fields(TransientError(text))

    def _start(self) -> None:
        self._generation += 1
        self._running, self._step_at_start = True, self._step
        self._past.spent = self._past.spent or {"meet": time.monotonic() - self._past.started}
        addresses = [self._members[worker].address for worker in range(self.workers)]
        events.emit("started_together", workers=self.workers, generation=self._generation)
        for member in self._members.values():
            member.stream.send("start", generation=self._generation, addresses=addresses, past=self._past.model_dump())


def _natural_number(value: object) -> int:
    """Return `value` if it is a whole number of at least 0. Raises ValueError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_NUMBER:
        raise ValueError(value)
    return value
