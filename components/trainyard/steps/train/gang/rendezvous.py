"""Where the supervisors of a gang meet: worker 0's keeps the list, all start together, and all hear when one is lost.

Who calls proves first that it knows the gang's token (`peers`); nothing of anybody else is read. Messages are JSON objects,
a line each, over one TCP connection a supervisor. A supervisor says `ready` (with the address that its TensorFlow will
listen on), `beat`, `began`, `broke`, `recovered` and `done`; it hears `start`, `stop`, `beat` and `end`. Who says anything
else, whatever it is, is cut off, and nobody else notices more than that one worker is lost.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

from trainyard import events
from trainyard.errors import ExitCode
from trainyard.steps.train.gang import peers

BEAT_SECONDS = 1.0
"""Chosen: how often each side says that it is there."""
SILENCE_SECONDS = 10.0
"""Chosen: a side that says nothing for so long is taken for dead, frozen or cut off."""
_FRUITLESS = 3  # chosen: starts in a row without one new step before the gang gives up
_STARVED = 2  # chosen: the second kill for want of memory ends the gang: started unchanged, it would be killed again
_FOR_GOOD = {int(code) for code in ExitCode} - {0, ExitCode.TRANSIENT, ExitCode.PEER_LOST, ExitCode.PREEMPTED}
_MAX_LINE = 1 << 20
_LARGEST = 1 << 53  # of the whole numbers in a message
_STALL_SECONDS = 1.0  # chosen: a turn of this side's own loop that took longer is this side's fault

Message = dict[str, Any]


class Line:
    """One side of a connection: whole messages in, whole messages out."""

    def __init__(self, connection: socket.socket) -> None:
        # The same connection twice, because to send may take a moment and to receive may not.
        self._out = connection.dup()
        self._out.settimeout(2)
        connection.setblocking(False)
        self.socket = connection
        self._sending = threading.Lock()
        self.heard = time.monotonic()
        self._rest = b""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.socket.fileno()

    def send(self, kind: str, **fields: Any) -> bool:
        """Send a message; return False where the other side is gone or no longer reads."""
        try:
            with self._sending:
                self._out.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Return what has come since the last call, or None where the other side has closed or talks nonsense."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or len(self._rest) > _MAX_LINE:
            return None
        self.heard = time.monotonic()
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) and "type" in message for message in messages) else None

    def silent(self) -> bool:
        """Whether the other side has said nothing for too long."""
        return time.monotonic() - self.heard > SILENCE_SECONDS

    def excuse(self, seconds: float) -> None:
        """Take `seconds` in which this side did not listen (a paused machine, a stalled process) off the silence."""
        self.heard += seconds

    def close(self) -> None:
        """Close the connection."""
        self._out.close()
        self.socket.close()


class Listening:
    """Knows when this side itself stood still: silence is held against the others only while somebody listened."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def excuse(self, lines: list[Line]) -> None:
        """Excuse `lines` from the time since the last call, where that was a stall; call it once a turn."""
        now = time.monotonic()
        if now - self._last > _STALL_SECONDS:
            for line in lines:
                line.excuse(now - self._last)
        self._last = now


def key(token: str) -> bytes:
    """Return what the supervisors of the gang with `token` know each other by."""
    return peers.key(token, b"rendezvous")


@dataclass
class _Member:
    line: Line
    address: str | None = None


@dataclass
class _Break:
    """What ended the last generation: why, after which step, at which time.monotonic()."""

    reason: str
    step: int
    at: float


@dataclass
class Rendezvous:
    """The meeting point of `workers` supervisors at host:port, in a thread of its own until the gang has ended.

    on_failure: called in that thread where it ends for any other reason, which is a fault of Trainyard.
    """

    host: str
    port: int
    workers: int
    deadline_seconds: float
    token: str
    on_failure: Callable[[], None]
    _members: dict[int, _Member] = field(default_factory=dict)
    _arrivals: list[Line] = field(default_factory=list)
    _generation: int = 0
    _running: bool = False
    _waiting_since: float = field(default_factory=time.monotonic)
    _started: float = field(default_factory=time.monotonic)
    _met: float = 0.0
    _began_at: int | None = None
    _told: float = 0.0
    _step: int = 0
    _step_at_start: int = 0
    _fruitless: int = 0
    _starved: int = 0
    _break: _Break | None = None
    _restarts: list[Message] = field(default_factory=list)
    _end: Message | None = None

    def open(self) -> threading.Thread:
        """Listen on the port and return the thread, already started, that ends with the gang."""
        door = peers.Door(peers.listen(self.host, self.port), key(self.token))
        thread = threading.Thread(target=self._run, args=(door,), daemon=True, name="rendezvous")
        thread.start()
        return thread

    def _run(self, door: peers.Door) -> None:
        try:
            self._serve(door)
        except Exception:  # noqa: BLE001 - whatever it is: without the meeting the gang would wait for nothing
            traceback.print_exc()
            self.on_failure()
        finally:
            door.close()

    def _serve(self, door: peers.Door) -> None:
        listening = Listening()
        while self._end is None:
            lines = {line.socket: line for line in self._lines()}
            readable = connection.wait([*door.sockets(), *lines], timeout=0.2)
            listening.excuse([*lines.values()])
            self._arrivals += [Line(arrived) for arrived in door.let_in(readable)]
            for each, line in lines.items():
                if each in readable:
                    self._hear(line)
            self._look_round()
        for line in self._lines():
            line.send(**{"kind": "end", **self._end})

    def _lines(self) -> list[Line]:
        return [*self._arrivals, *(member.line for member in self._members.values())]

    def _hear(self, line: Line) -> None:
        messages = line.receive()
        if messages is None:
            self._lose(line, "the connection to it is closed")
            return
        try:
            for message in messages:
                self._take(line, message)
        except Exception:  # noqa: BLE001 - whatever a connection says costs that connection alone
            self._lose(line, "it said what no supervisor says")

    def _take(self, line: Line, message: Message) -> None:
        kind = message["type"]
        if kind == "ready":
            self._join(line, message)
            return
        if line in self._arrivals:
            raise ValueError(kind)
        self._step = max(self._step, _whole(message.get("step", 0)))
        if message.get("generation") != self._generation or not self._running:
            return
        if kind == "done":
            self._end = {"code": 0, "error": "", "message": ""}
        elif kind == "began":
            self._began_at = _whole(message["began_at"])
        elif kind == "recovered":
            self._restarts.append(dict(message["restart"]))
            self._break = None
        elif kind == "broke":
            self._broke(message)

    def _join(self, line: Line, message: Message) -> None:
        worker, generation = _whole(message["worker"]), _whole(message["generation"])
        address = str(message["address"])
        if worker >= self.workers or any(m.line is line for w, m in self._members.items() if w != worker):
            raise ValueError(worker)
        if line in self._arrivals:
            self._arrivals.remove(line)
        before = self._members.get(worker)
        if before is not None and before.line is not line:
            self._lose(before.line, "it was started again")
        self._members[worker] = _Member(line, address)
        self._generation = max(self._generation, generation)

    def _lose(self, line: Line, why: str) -> None:
        line.close()
        if line in self._arrivals:
            self._arrivals.remove(line)
        for worker in [worker for worker, member in self._members.items() if member.line is line]:
            del self._members[worker]
            self._stop(f"worker {worker} is lost: {why}")

    def _broke(self, message: Message) -> None:
        code, error, text = _whole(message["code"]), str(message["error"]), str(message["message"])
        grace_seconds = float(message.get("grace_seconds", 0.0))
        if code in _FOR_GOOD:
            self._end = {"code": code, "error": error, "message": text}
            return
        self._fruitless = self._fruitless + 1 if self._step <= self._step_at_start else 0
        self._starved += bool(message.get("out_of_memory"))
        if self._starved >= _STARVED:
            text = f"train: gave up after {self._starved} kills for want of memory. {text}"
            self._end = {"code": int(ExitCode.INFRASTRUCTURE), "error": "InfrastructureError", "message": text}
        elif self._fruitless >= _FRUITLESS:
            text = f"train: gave up after {self._fruitless} starts without a new step. {text}"
            self._end = {"code": int(ExitCode.TRANSIENT), "error": "TransientError", "message": text}
        else:
            self._stop(text, grace_seconds)

    def _stop(self, reason: str, grace_seconds: float = 0.0) -> None:
        """Have every worker's training process stopped, and wait for all of them again."""
        if not self._running:
            return
        self._running, self._waiting_since = False, time.monotonic()
        if self._break is None:
            self._break = _Break(reason, self._step, time.monotonic())
        events.emit("restarting", generation=self._generation + 1, step=self._step, reason=reason)
        for member in self._members.values():
            member.address = None
            member.line.send("stop", grace_seconds=grace_seconds)

    def _look_round(self) -> None:
        for line in self._lines():
            if line.silent():
                self._lose(line, f"no word from it for {SILENCE_SECONDS:g} s")
            elif time.monotonic() - self._told > BEAT_SECONDS:
                line.send("beat")
        if time.monotonic() - self._told > BEAT_SECONDS:
            self._told = time.monotonic()
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
            self._end = {"code": int(ExitCode.TRANSIENT), "error": "TransientError", "message": text}

    def _start(self) -> None:
        self._generation += 1
        self._running, self._step_at_start = True, self._step
        self._met = self._met or time.monotonic()
        past: Message = {"started": self._started, "meet": self._met - self._started, "began_at": self._began_at}
        past |= {"restarts": self._restarts, "break": None}
        if self._break is not None:
            past["break"] = {"reason": self._break.reason, "step": self._break.step, "at": self._break.at}
        addresses = [self._members[worker].address for worker in range(self.workers)]
        events.emit("started_together", workers=self.workers, generation=self._generation)
        for member in self._members.values():
            member.line.send("start", generation=self._generation, addresses=addresses, past=past)


def _whole(value: object) -> int:
    """Return the whole number `value`, 0 or more. Raises ValueError where it is anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise ValueError(value)
    return value
