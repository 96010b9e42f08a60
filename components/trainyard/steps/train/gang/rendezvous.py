"""The rendezvous of a gang's supervisors, run by worker 0: all start together, and learn when one is lost.

A client must first prove that it knows the gang's token (`handshake`). Messages are JSON lines over one TCP connection
for each supervisor. A supervisor sends `ready` (with its node, and the address for its TensorFlow), `beat`, `workers`,
`began`, `straggler`, `broke`, `recovered` and `done`; it receives `start`, `stop`, `beat` and `end`. A client that
sends anything else is cut off, and the others notice only a lost worker.

A generation is one start of the training, by a team of workers that does not change. Only its team is heard. Without a
range the team is the whole gang. An elastic gang starts without a worker that is missing for too long, and stops at its
next step, saved, once a larger team is there.
"""

from __future__ import annotations

import json
import resource
import selectors
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, Literal

from trainyard import events
from trainyard.contract.artifacts.train import Restart, Straggler, WorkerCount
from trainyard.errors import CommandFailed, ExitCode, InfrastructureError, PeerLost, TransientError, failure_fields
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.peers import channel
from trainyard.steps.train.peers.channel import HEARTBEAT_SECONDS, SILENCE_SECONDS, Message, MessageStream, StallGuard
from trainyard.storage import storage

_LOST = "worker 0 was lost, and started again"


def _read_history(uri: str, token: str) -> GangHistory:
    """Return the gang's history with the loss of worker 0 as its last break, or a new one.

    It lies beside the checkpoints, so that it survives the loss of worker 0's node. The time in between compares the
    clocks of two machines; no decision depends on it.
    """
    try:
        kept = storage.read_json(uri) if uri else None
        if not kept or kept["token"] != token:
            return GangHistory()
        past = GangHistory.model_validate(kept["past"])
        away = max(0.0, time.time() - kept["time"])
        past.started = time.monotonic() - kept["elapsed"] - away
        if past.began_at is not None:
            past.last_break = (_LOST, kept["step"], time.monotonic())
        return past
    except Exception as error:  # noqa: BLE001 - evidence alone: the gang trains without it
        events.emit("warning", message=f"{uri}: the restarts before this pod are not known ({error}).")
        return GangHistory()


def _write_past(uri: str, text: str) -> None:
    try:
        storage.write_text(uri, text)
    except Exception as error:  # noqa: BLE001 - as above
        events.emit("warning", message=f"{uri}: the gang's restarts were not noted ({error}).")


_MAX_STARTS_WITHOUT_STEP = 3  # chosen: starts in a row without one new step before the gang gives up
_MAX_OOM_KILLS = 2  # chosen: an unchanged gang would be killed again
_FINAL_CODES = {int(code) for code in ExitCode} - {0, ExitCode.TRANSIENT, ExitCode.PEER_LOST, ExitCode.PREEMPTED}
_GATHER_SECONDS = 5.0  # chosen: workers that return together are taken in together
_SAVE_SECONDS = 60.0  # chosen: an evaluation and a checkpoint, before a team that grows is stopped
_FILES = 256  # chosen: descriptors of all but the workers' streams, which have two each; 1,024 are usual
_MAX_NUMBER = 1 << 53  # limit of whole numbers in a message


def rendezvous_key(token: str) -> bytes:
    """Return the handshake key of the supervisors of the gang with `token`."""
    return channel.derive_key(token, b"rendezvous")


@dataclass
class _Member:
    stream: MessageStream
    address: str | None = None
    node: str = ""


@dataclass
class Rendezvous:
    """The rendezvous of supervisors at host:port, in its own thread until the gang has ended.

    counts: the numbers of workers that may train, ascending; the last is that of the gang. replace_seconds: how long a
    smaller team waits for the others. on_failure: called in that thread if it ends because of a bug. past_uri: where
    the gang's history is kept for the next worker 0, '' for nowhere.
    """

    host: str
    port: int
    counts: list[int]
    deadline_seconds: float
    token: str
    on_failure: Callable[[], None]
    replace_seconds: float = 0.0
    past_uri: str = ""
    _members: dict[int, _Member] = field(default_factory=dict)
    _streams: dict[MessageStream, int | None] = field(default_factory=dict)  # the worker that each has said to be
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _generation: int = 0
    _newest: int = 0  # generation that any worker has seen
    _team: list[int] = field(default_factory=list)
    _running: bool = False
    _trains: bool = False  # the generation has taken a new step, and the chief has told what its start cost
    _joined_at: float = 0.0
    _away: float = 0.0  # how long others had waited for this worker 0
    _waiting_since: float = field(default_factory=time.monotonic)
    _past: GangHistory = field(default_factory=GangHistory)
    _writer: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "past")
    )  # one, so that the last is the newest
    _beat_at: float = 0.0
    _step: int = 0
    _reached: int = 0  # the newest step of this generation, which may repeat steps of one before
    _step_at_start: int = 0
    _starts_without_step: int = 0
    _oom_kills: int = 0
    _symptom_of: int = 0  # the generation whose break reason may be only a symptom, 0 for none
    _failed: tuple[float, Message] | None = None  # since when, and how a worker failed, if no lost worker explains it
    _lost: Literal["", "crashed", "lost"] = ""  # what is known of a worker that this generation has lost
    _bugs: set[tuple[str, int]] = field(default_factory=set)  # by message and step
    _end: Message | None = None

    @property
    def workers(self) -> int:
        """The number of workers that the gang asks for."""
        return self.counts[-1]

    def open(self) -> threading.Thread:
        """Listen on the port and return the started thread, which ends with the gang.

        Raises `TransientError` if the port is taken.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES + 2 * self.workers)), hard))
        try:
            listener = channel.listen(self.host, self.port)
        except OSError as error:
            raise TransientError(
                f"train: worker 0 cannot listen on port {self.port} ({error.strerror}). Run the same command again."
            ) from error
        acceptor = channel.Acceptor(listener, rendezvous_key(self.token))
        thread = threading.Thread(target=self._run, args=(acceptor,), daemon=True, name="rendezvous")
        thread.start()
        return thread

    def _run(self, acceptor: channel.Acceptor) -> None:
        try:
            self._serve(acceptor)
        except Exception:  # noqa: BLE001 - whatever it is: without the rendezvous the gang would wait for nothing
            traceback.print_exc()
            self.on_failure()
        finally:
            acceptor.close()

    def _serve(self, acceptor: channel.Acceptor) -> None:
        self._past = _read_history(self.past_uri, self.token)
        self._past.max_workers = self.workers if len(self.counts) > 1 else 0
        stall_guard = StallGuard()
        while self._end is None:
            # Waits on a selector, because registering 1,024 streams in each turn is half of its work.
            readable = {*connection.wait([*acceptor.sockets(), self._selector.fileno()], timeout=0.2)}
            stall_guard.excuse([*self._streams])
            said = [key.data for key, _ in self._selector.select(0)]
            for client in acceptor.accept(readable):
                stream = MessageStream(client)
                self._streams[stream] = None
                self._selector.register(stream, selectors.EVENT_READ, stream)
            for stream in said:
                if stream in self._streams:
                    self._receive(stream)
            self._check_members()
        self._send_all(self._streams, "end", **self._end)

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
        if (worker := self._streams[stream]) is None:
            raise ValueError(kind)
        step = _natural_number(message.get("step", 0))
        self._step = max(self._step, step)
        if message.get("generation") != self._generation or worker not in self._team:
            return
        self._reached = max(self._reached, step)
        # A team that was told to stop may have finished, and the cause of its end may be told late.
        if not self._running and kind not in ("done", "broke"):
            return
        if kind == "done":
            self._end = {"code": 0, "error": "", "message": ""}
        elif kind == "workers":
            self._past.worker_counts.append(WorkerCount.model_validate(message["count"]))
            self._keep_past()
        elif kind == "straggler":
            self._past.keep_straggler(Straggler.model_validate(message["straggler"]))
            self._keep_past()
        elif kind == "began":
            if self._past.began_at is None:  # every start of a worker other than the chief says that it began
                self._past.began_at = _natural_number(message["began_at"])
                self._keep_past()
        elif kind == "recovered":
            self._past.restarts.append(Restart.model_validate(message["restart"]))
            self._past.last_break = None
            self._keep_past()
        elif kind == "broke":
            self._handle_break(message)
        if kind in ("began", "recovered") and worker == 0:
            self._trains = True

    def _handle_ready(self, stream: MessageStream, message: Message) -> None:
        worker, generation = _natural_number(message["worker"]), _natural_number(message["generation"])
        address, node = str(message["address"]), str(message.get("node", ""))
        away = float(message.get("away", 0.0))
        if worker >= self.workers or self._streams[stream] not in (None, worker):
            raise ValueError(worker)
        self._streams[stream] = worker
        previous = self._members.get(worker)
        if previous is not None and previous.stream is not stream:
            self._drop(previous.stream, "it was started again")
        if previous is None:
            self._joined_at = time.monotonic()
        self._members[worker] = _Member(stream, address, node)
        self._newest = max(self._newest, generation)
        step = _natural_number(message.get("step", 0))
        self._step = max(self._step, step)
        self._away = max(self._away, away)
        if away and self._past.last_break and self._past.last_break[0] == _LOST:
            # The others have trained since the history was kept, and know when worker 0 was lost.
            _, kept, at = self._past.last_break
            self._past.last_break = (_LOST, max(kept, step), min(at, time.monotonic() - away))

    def _keep_past(self) -> None:
        """Write the history and the step in a thread, because the workers wait for answers."""
        if self.past_uri:
            past, now = self._past, {"elapsed": time.monotonic() - self._past.started, "time": time.time()}
            kept = {"token": self.token, "past": past.model_dump(), "step": self._reached, **now}
            self._writer.submit(_write_past, self.past_uri, json.dumps(kept))

    def _drop(self, stream: MessageStream, reason: str) -> None:
        worker = self._streams.pop(stream)
        self._selector.unregister(stream)
        stream.close()
        if worker is not None:
            del self._members[worker]
            if worker in self._team:
                self._stop(f"worker {worker} is lost: {reason}")

    def _handle_break(self, message: Message) -> None:
        code, text = _natural_number(message["code"]), str(message["message"])
        failure: Message = {"code": code, "error": str(message["error"]), "message": text}
        grace_seconds, cause = float(message.get("grace_seconds", 0.0)), bool(message.get("cause"))
        if self.workers > 1 and (code == ExitCode.BUG or failure["error"] == CommandFailed.__name__):
            self._note_failure(failure)
            return
        if code in _FINAL_CODES:
            self._end = failure
            return
        if cause or failure["error"] != PeerLost.__name__:
            self._lost, self._failed = "lost", None
        elif self._failed and self._failed[1]["code"] == ExitCode.BUG:
            return  # this worker lost the one that failed
        elif message.get("crashed"):
            self._lost = self._lost or "crashed"
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

    def _note_failure(self, failure: Message) -> None:
        """Let `failure` end the gang unless a lost worker explains it, which shows within SILENCE_SECONDS.

        A worker that crashed explains a bug once: the same bug at the same step ends the gang.
        """
        known = (str(failure["message"]), self._step)
        is_repeated = self._lost == "crashed" and known in self._bugs
        if failure["code"] == ExitCode.BUG:
            self._bugs.add(known)
        elif not self._running:
            return
        if not self._lost or is_repeated:
            self._failed = self._failed or (time.monotonic(), failure)

    def _stop(self, reason: str, grace_seconds: float = 0.0, cause: bool = True, save: bool = False) -> None:
        """Stop every worker's training process and wait for all workers again.

        cause: False if `reason` may be a consequence of another lost worker; a cause reported later replaces it. save:
        every process gets SIGTERM first, so that all stop after the same step and the chief saves it.
        """
        if cause:
            self._lost, self._failed = "lost", None
        if not self._running:
            if self._symptom_of == self._generation and cause and self._past.last_break is not None:
                self._past.last_break, self._symptom_of = (reason, *self._past.last_break[1:]), 0
            return
        self._running, self._waiting_since, self._failed = False, time.monotonic(), None
        if self._past.last_break is None:
            self._past.last_break = (reason, self._reached, time.monotonic())
            self._symptom_of = 0 if cause else self._generation
        events.emit("restarting", generation=self._generation + 1, step=self._reached, reason=reason)
        for member in self._members.values():
            member.address = None
        self._send_all(self._streams_of(self._members), "stop", grace_seconds=grace_seconds, save=save)

    def _check_members(self) -> None:
        for stream in [stream for stream in self._streams if stream.is_silent()]:
            self._drop(stream, f"no message from it for {SILENCE_SECONDS:g} s")
        if time.monotonic() - self._beat_at > HEARTBEAT_SECONDS:
            self._beat_at = time.monotonic()
            self._send_all(self._streams, "beat")
        if self._failed and time.monotonic() - self._failed[0] > SILENCE_SECONDS + HEARTBEAT_SECONDS:
            self._end = self._failed[1]
        if self._end or self._failed:
            return
        ready = sorted(worker for worker, member in self._members.items() if member.address is not None)
        if self._running:
            self._grow(ready)
            return
        missing = sorted({*range(self.workers)} - {*ready})
        waited = time.monotonic() - self._waiting_since
        if self._is_complete(ready, waited):
            self._start(ready[: self._count(ready)], missing)
        elif waited > max(self.deadline_seconds, self.replace_seconds):
            text = (
                f"train: waiting for worker {', '.join(map(str, missing))} of {self.workers} for {waited:.0f} s, the "
                "deadline. Look why it does not start, or run the same command again."
            )
            self._end = failure_fields(TransientError(text))

    def _count(self, ready: list[int]) -> int:
        """Return the largest number of the workers `ready` that can train, 0 without worker 0, which is the chief."""
        possible = [count for count in self.counts if count <= len(ready)]
        return possible[-1] if possible and 0 in ready else 0

    def _is_complete(self, ready: list[int], waited: float) -> bool:
        """Return True if the workers `ready` need not wait for others: nobody is missing, for too long, or needed."""
        count = self._count(ready)
        if not count or count == self.workers:
            return bool(count)
        stopping = len(ready) < len(self._members)  # some are about to be ready
        as_before = self._team and count >= len(self._team) and not stopping  # a spare replaces a lost worker at once
        gathered = time.monotonic() - self._joined_at > min(_GATHER_SECONDS, self.replace_seconds)
        patience = self.replace_seconds + (_SAVE_SECONDS if stopping else 0.0)
        return bool(as_before) or (gathered and waited + self._away > patience)

    def _grow(self, ready: list[int]) -> None:
        """Stop a team that trains, at a step that it saves, if the workers `ready` make a larger one."""
        count = self._count(ready)
        if not self._trains or count <= len(self._team):
            return
        if count == self.workers or time.monotonic() - self._joined_at > _GATHER_SECONDS:
            new = [worker for worker in ready if worker not in self._team]
            text = f"{_names(new)} there again: training continues with {count} of {self.workers} workers"
            self._stop(text, _SAVE_SECONDS, save=True)

    def _start(self, team: list[int], missing: list[int]) -> None:
        self._generation = max(self._generation, self._newest) + 1
        self._team, self._trains, self._away, self._lost = team, False, 0.0, ""
        self._past.end_stragglers(self._reached)
        self._running, self._step_at_start, self._reached = True, self._step, 0
        self._past.spent = self._past.spent or {"meet": time.monotonic() - self._past.started}
        addresses = [self._members[worker].address for worker in team]
        self._past.team = [(worker, self._members[worker].node) for worker in team]
        smaller: dict[str, Any] = {}
        if len(team) < self.workers:
            why = f"{_names(missing)} not there"
            if spares := self.workers - len(missing) - len(team):
                why += f", and {spares} more would not divide the batch evenly"
            smaller = {"of": self.workers, "why": why}
            text = f"training runs with {len(team)} of {self.workers} workers: {why}"
            events.emit("warning", message=text)
        events.emit("started_together", workers=len(team), generation=self._generation, **smaller)
        fields = {"generation": self._generation, "addresses": addresses, "past": self._past.model_dump()}
        self._send_all(self._streams_of(team), "start", **fields)

    def _streams_of(self, workers: Iterable[int]) -> list[MessageStream]:
        return [self._members[worker].stream for worker in workers]

    def _send_all(self, streams: Iterable[MessageStream], kind: str, **fields: Any) -> None:
        line = channel.encode(kind, **fields)
        for stream in streams:
            stream.send_line(line)


def _names(workers: list[int]) -> str:
    """Return, for instance, `workers 2, 3 are`."""
    return f"workers {', '.join(map(str, workers))} are" if len(workers) > 1 else f"worker {workers[0]} is"


def _natural_number(value: object) -> int:
    """Return `value` if it is a whole number of at least 0. Raises ValueError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_NUMBER:
        raise ValueError(value)
    return value
