"""The rendezvous of a gang's supervisors, run by worker 0: all start together, and learn when one is lost.

    worker ── ready ──▶ gathering ── _start: all are ready, or enough of them for long enough ──▶ training
                          ▲   │                                                                   │   │
                          └───│─── _gather: a worker is lost, broke, or more are ready ───────────┘   │
                              ▼                                                                       ▼
                            ended: the deadline, an error that no lost worker explains, too many starts, or done

A client must first prove that it knows the gang's token (`handshake`). Messages are JSON lines over one TCP connection
for each supervisor. A supervisor sends `ready` (with its node, and the address for its TensorFlow), `beat`, `workers`,
`began`, `straggler`, `broke`, `recovered` and `done`; it receives `start`, `stop`, `beat` and `end`. A client that
sends anything else is cut off, and the others notice only a lost worker.

A generation is one start of the training, by a team of workers that does not change. Only its team is heard. Without a
range the team is the whole gang. An elastic gang starts without a worker that is missing for too long, and stops at its
next step, saved, once a larger team is there.
"""

from __future__ import annotations

import resource
import selectors
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, Literal

from trainyard import events
from trainyard.contract.artifacts.train import Restart, Straggler, WorkerCount
from trainyard.errors import CommandFailed, ExitCode, InfrastructureError, PeerLost, TransientError, failure_fields
from trainyard.steps.train.gang.kept_history import LOST, KeptHistory
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.peers import channel
from trainyard.steps.train.peers.channel import HEARTBEAT_SECONDS, SILENCE_SECONDS, Message, MessageStream, StallGuard

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
    """A worker whose supervisor is connected. address: of its TensorFlow, None while its training process ends."""

    stream: MessageStream
    address: str | None
    node: str


@dataclass
class _Generation:
    """A start of the training by the workers `team`, and what is known of it until the next one.

    step: the gang's newest step when it started. reached: its own newest step, which may repeat steps of one before.
    """

    number: int = 0
    team: list[int] = field(default_factory=list)
    step: int = 0
    reached: int = 0
    is_running: bool = False  # until its workers are told to stop
    has_stepped: bool = False  # it took a new step, and the chief has told what its start cost
    loss: Literal["", "crashed", "lost"] = ""  # of one of its workers
    failure: Message | None = None  # how a worker failed, if no lost worker explains it
    failed_at: float = 0.0
    is_symptom: bool = False  # the reason of its break may be a consequence of one that is told later


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
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _streams: dict[MessageStream, int | None] = field(default_factory=dict)  # the worker that each has said to be
    _members: dict[int, _Member] = field(default_factory=dict)
    _generation: _Generation = field(default_factory=_Generation)
    _newest: int = 0  # generation that any worker has seen
    _step: int = 0  # the newest of any generation
    _waiting_since: float = field(default_factory=time.monotonic)
    _joined_at: float = 0.0  # when the newest member came
    _away: float = 0.0  # how long others had waited for this worker 0
    _beat_at: float = 0.0
    _starts_without_step: int = 0
    _oom_kills: int = 0
    _bugs: set[tuple[str, int]] = field(default_factory=set)  # by message and step
    _past: GangHistory = field(default_factory=GangHistory)
    _end: Message | None = None

    def __post_init__(self) -> None:
        self._kept = KeptHistory(self.past_uri, self.token)

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
        self._past = self._kept.read()
        self._past.max_workers = self.workers if len(self.counts) > 1 else 0
        stall_guard = StallGuard()
        while self._end is None:
            # Waits on a selector, because registering 1,024 streams in each turn is half of its work.
            readable = {*connection.wait([*acceptor.sockets(), self._selector.fileno()], timeout=0.2)}
            stall_guard.excuse([*self._streams])
            selected = [key.data for key, _ in self._selector.select(0)]
            for client in acceptor.accept(readable):
                stream = MessageStream(client)
                self._streams[stream] = None
                self._selector.register(stream, selectors.EVENT_READ, stream)
            for stream in selected:
                if stream in self._streams:
                    self._receive(stream)
            self._check_members()
        self._send(self._streams, "end", **self._end)

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

    def _drop(self, stream: MessageStream, reason: str) -> None:
        worker = self._streams.pop(stream)
        self._selector.unregister(stream)
        stream.close()
        if worker is not None:
            del self._members[worker]
            if worker in self._generation.team:
                self._gather(f"worker {worker} is lost: {reason}")

    def _send(self, streams: Iterable[MessageStream], kind: str, **fields: Any) -> None:
        line = channel.encode(kind, **fields)
        for stream in streams:
            stream.send_line(line)

    def _handle(self, stream: MessageStream, message: Message) -> None:
        kind, worker = message["type"], self._streams[stream]
        step = _natural_number(message.get("step", 0))
        if kind == "ready":
            self._handle_ready(stream, message, step)
            return
        if worker is None:
            raise ValueError(kind)
        self._step = max(self._step, step)
        generation, past = self._generation, self._past
        if message.get("generation") != generation.number or worker not in generation.team:
            return
        generation.reached = max(generation.reached, step)
        # A team that was told to stop may have finished, and the cause of its end may be told late.
        if not generation.is_running and kind not in ("done", "broke"):
            return
        match kind:
            case "done":
                self._end = {"code": 0, "error": "", "message": ""}
            case "broke":
                self._handle_break(message)
            case "workers":
                past.worker_counts.append(WorkerCount.model_validate(message["count"]))
                self._kept.write(past, generation.reached)
            case "straggler":
                past.keep_straggler(Straggler.model_validate(message["straggler"]))
                self._kept.write(past, generation.reached)
            case "began" if past.began_at is None:  # every start of a worker other than the chief says that it began
                past.began_at = _natural_number(message["began_at"])
                self._kept.write(past, generation.reached)
            case "recovered":
                past.restarts.append(Restart.model_validate(message["restart"]))
                past.last_break = None
                self._kept.write(past, generation.reached)
        if kind in ("began", "recovered") and worker == 0:
            generation.has_stepped = True

    def _handle_ready(self, stream: MessageStream, message: Message, step: int) -> None:
        worker, generation = _natural_number(message["worker"]), _natural_number(message["generation"])
        member = _Member(stream, str(message["address"]), str(message.get("node", "")))
        away = float(message.get("away", 0.0))
        if worker >= self.workers or self._streams[stream] not in (None, worker):
            raise ValueError(worker)
        self._streams[stream] = worker
        previous = self._members.get(worker)
        if previous is None:
            self._joined_at = time.monotonic()
        elif previous.stream is not stream:
            self._drop(previous.stream, "it was started again")
        self._members[worker] = member
        self._newest = max(self._newest, generation)
        self._step = max(self._step, step)
        self._away = max(self._away, away)
        if away and self._past.last_break and self._past.last_break[0] == LOST:
            # The others have trained since the history was kept, and know when worker 0 was lost.
            _, kept, at = self._past.last_break
            self._past.last_break = (LOST, max(kept, step), min(at, time.monotonic() - away))

    def _handle_break(self, message: Message) -> None:
        code, text, error = _natural_number(message["code"]), str(message["message"]), str(message["error"])
        generation, failure = self._generation, {"code": code, "error": error, "message": text}
        grace_seconds, cause = float(message.get("grace_seconds", 0.0)), bool(message.get("cause"))
        if self.workers > 1 and (code == ExitCode.BUG or error == CommandFailed.__name__):
            self._handle_failure(failure)
            return
        if code in _FINAL_CODES:
            self._end = failure
            return
        if cause or error != PeerLost.__name__:
            generation.loss, generation.failure = "lost", None
        elif generation.failure and generation.failure["code"] == ExitCode.BUG:
            return  # this worker lost the one that failed
        elif message.get("crashed"):
            generation.loss = generation.loss or "crashed"
        if generation.is_running:
            self._starts_without_step = self._starts_without_step + 1 if self._step <= generation.step else 0
        if message.get("out_of_memory"):
            self._oom_kills += 1
        if self._oom_kills >= _MAX_OOM_KILLS:
            text = f"train: gave up after {self._oom_kills} out-of-memory kills. {text}"
            self._end = failure_fields(InfrastructureError(text))
        elif self._starts_without_step >= _MAX_STARTS_WITHOUT_STEP:
            text = f"train: gave up after {self._starts_without_step} starts without a new step. {text}"
            self._end = failure_fields(TransientError(text))
        else:
            self._gather(text, grace_seconds, cause)

    def _handle_failure(self, failure: Message) -> None:
        """Let `failure` end the gang unless a lost worker explains it, which shows within SILENCE_SECONDS.

        A worker that crashed explains a bug once: the same bug at the same step ends the gang.
        """
        generation, bug = self._generation, (str(failure["message"]), self._step)
        is_explained = generation.loss == "lost" or (generation.loss == "crashed" and bug not in self._bugs)
        if failure["code"] == ExitCode.BUG:
            self._bugs.add(bug)
        elif not generation.is_running:
            return
        if not is_explained and generation.failure is None:
            generation.failure, generation.failed_at = failure, time.monotonic()

    def _check_members(self) -> None:
        """Drop silent members, and make the transitions that time or a new member causes."""
        now = time.monotonic()
        for stream in [stream for stream in self._streams if stream.is_silent()]:
            self._drop(stream, f"no message from it for {SILENCE_SECONDS:g} s")
        if now - self._beat_at > HEARTBEAT_SECONDS:
            self._beat_at = now
            self._send(self._streams, "beat")
        failure = self._generation.failure
        if failure and now - self._generation.failed_at > SILENCE_SECONDS + HEARTBEAT_SECONDS:
            self._end = failure
        if self._end or failure:
            return
        ready = sorted(worker for worker, member in self._members.items() if member.address is not None)
        if self._generation.is_running:
            self._check_growth(ready)
        else:
            self._check_start(ready, now - self._waiting_since)

    def _check_start(self, ready: list[int], waited: float) -> None:
        """Start with the workers `ready`, or end the gang if it has waited for too long."""
        missing = sorted({*range(self.workers)} - {*ready})
        if self._is_complete(ready, waited):
            self._start(ready[: self._team_size(ready)], missing)
        elif waited > max(self.deadline_seconds, self.replace_seconds):
            text = (
                f"train: waiting for worker {', '.join(map(str, missing))} of {self.workers} for {waited:.0f} s, the "
                "deadline. Look why it does not start, or run the same command again."
            )
            self._end = failure_fields(TransientError(text))

    def _team_size(self, ready: list[int]) -> int:
        """Return the largest number of the workers `ready` that can train, 0 without worker 0, which is the chief."""
        return max((count for count in self.counts if count <= len(ready) and 0 in ready), default=0)

    def _is_complete(self, ready: list[int], waited: float) -> bool:
        """Return True if the workers `ready` need not wait for others: nobody is missing, for too long, or needed."""
        size, before = self._team_size(ready), len(self._generation.team)
        if size in (0, self.workers):
            return size > 0
        is_stopping = len(ready) < len(self._members)  # some are about to be ready
        if before and size >= before and not is_stopping:
            return True  # a spare replaces a lost worker at once
        has_gathered = time.monotonic() - self._joined_at > min(_GATHER_SECONDS, self.replace_seconds)
        patience = self.replace_seconds + (_SAVE_SECONDS if is_stopping else 0.0)
        return has_gathered and waited + self._away > patience

    def _check_growth(self, ready: list[int]) -> None:
        """Stop a team that trains, at a step that it saves, if the workers `ready` make a larger one."""
        size, team = self._team_size(ready), self._generation.team
        if not self._generation.has_stepped or size <= len(team):
            return
        if size == self.workers or time.monotonic() - self._joined_at > _GATHER_SECONDS:
            added = _names([worker for worker in ready if worker not in team])
            text = f"{added} there again: training continues with {size} of {self.workers} workers"
            self._gather(text, _SAVE_SECONDS, save=True)

    def _start(self, team: list[int], missing: list[int]) -> None:
        """Begin a generation: have the workers `team` train."""
        past, members = self._past, [self._members[worker] for worker in team]
        past.end_stragglers(self._generation.reached)
        past.spent = past.spent or {"meet": time.monotonic() - past.started}
        past.team = [(worker, member.node) for worker, member in zip(team, members, strict=True)]
        number = max(self._generation.number, self._newest) + 1
        self._generation, self._away = _Generation(number, team, self._step, is_running=True), 0.0
        smaller: dict[str, Any] = {}
        if len(team) < self.workers:
            why = f"{_names(missing)} not there"
            if spares := self.workers - len(missing) - len(team):
                why += f", and {spares} more would not divide the batch evenly"
            smaller = {"of": self.workers, "why": why}
            text = f"training runs with {len(team)} of {self.workers} workers: {why}"
            events.warn(text)
        events.emit("started_together", workers=len(team), generation=number, **smaller)
        addresses = [member.address for member in members]
        fields = {"generation": number, "addresses": addresses, "past": past.model_dump()}
        self._send([member.stream for member in members], "start", **fields)

    def _gather(self, reason: str, grace_seconds: float = 0.0, cause: bool = True, save: bool = False) -> None:
        """Stop every worker's training process and wait for all workers again.

        cause: False if `reason` may be a consequence of another lost worker; a cause reported later replaces it. save:
        every process gets SIGTERM first, so that all stop after the same step and the chief saves it.
        """
        generation, past = self._generation, self._past
        if cause:
            generation.loss, generation.failure = "lost", None
        if not generation.is_running:
            if generation.is_symptom and cause and past.last_break is not None:
                past.last_break, generation.is_symptom = (reason, *past.last_break[1:]), False
            return
        generation.is_running, generation.failure = False, None
        self._waiting_since = time.monotonic()
        if past.last_break is None:
            past.last_break, generation.is_symptom = (reason, generation.reached, time.monotonic()), not cause
        events.emit("restarting", generation=generation.number + 1, step=generation.reached, reason=reason)
        for member in self._members.values():
            member.address = None
        streams = [member.stream for member in self._members.values()]
        self._send(streams, "stop", grace_seconds=grace_seconds, save=save)


def _names(workers: list[int]) -> str:
    """Return, for instance, `workers 2, 3 are`."""
    return f"workers {', '.join(map(str, workers))} are" if len(workers) > 1 else f"worker {workers[0]} is"


def _natural_number(value: object) -> int:
    """Return `value` if it is a whole number of at least 0. Raises ValueError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_NUMBER:
        raise ValueError(value)
    return value
