"""The meeting of a gang: who is let in, who is heard, and what ends it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ports import free_port

from trainyard import uris
from trainyard.errors import TransientError
from trainyard.process import ports
from trainyard.steps.train.gang import rendezvous, supervisor
from trainyard.steps.train.gang.rendezvous import Rendezvous, rendezvous_key
from trainyard.steps.train.peers import channel
from trainyard.steps.train.peers.channel import SILENCE_SECONDS, MessageStream, StallGuard

TOKEN = "of this gang"
LONG_SECONDS = 600.0  # what is not waited for
INFINITE = b'{"type": "ready", "worker": Infinity, "address": "a:1", "generation": 0, "token": ""}\n'
DEEP = b'{"type": ' + b"[" * 100_000 + b"\n"


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, ""),
        ({"no_proxy": "a.example,127.0.0.1"}, "a.example,127.0.0.1,localhost,"),
        ({"no_proxy": "a.example", "no_grpc_proxy": "b.example"}, "b.example,"),
    ],
)
def test_grpc_asks_no_proxy_for_the_gang_and_what_is_set_for_the_outside_stays(
    variables: dict[str, str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, rest = "no_grpc_proxy", "no_proxy"
    for name in (ours, rest):
        monkeypatch.setenv(name, variables.get(name, ""))
    uris.bypass_proxy(["127.0.0.1:2000", "digits-0.digits:2222", "[fd00::1]:2222"])
    uris.bypass_proxy(["127.0.0.1:2000"])
    hosts = os.environ[ours]
    assert hosts.startswith(kept) and sorted(hosts.removeprefix(kept).split(",")) == sorted(
        {"localhost", "127.0.0.1", "::1", "digits-0.digits", "fd00::1"} - set(kept.split(","))
    )
    assert os.environ[rest] == variables.get(rest, "")


class Caller:
    """The other end of one connection to the meeting, of somebody who knows the gang's token or does not."""

    def __init__(self, port: int, token: str | None = TOKEN) -> None:
        if token is None:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        else:
            self._socket = channel.connect("127.0.0.1", port, rendezvous_key(token), 60)
        self._lines = self._socket.makefile("rb")

    def send(self, **message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it may be cut off before it has said all
            self._socket.sendall(data)

    def says_no_more(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def ready(self, worker: int, **more: Any) -> Caller:
        self.send(type="ready", worker=worker, address=f"host:{worker}", node=f"node-{worker}", generation=0, **more)
        return self

    def hears(self, kind: str) -> dict[str, Any]:
        while line := self._lines.readline():
            message = json.loads(line)
            if message["type"] == kind:
                return message
        raise AssertionError(f"cut off before {kind}")

    def leave(self) -> None:
        self._lines.close()
        self._socket.close()

    def is_cut_off(self) -> bool:
        try:
            while self._lines.readline():
                pass
        except ConnectionResetError:
            pass
        self._lines.close()
        self._socket.close()
        return True


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A meeting of two that goes on to its end, whatever the tests of this file say to it."""
    free = free_port()
    failures: list[str] = []
    thread = Rendezvous("127.0.0.1", free, [2], LONG_SECONDS, TOKEN, lambda: failures.append("ended")).open()
    yield free
    assert ends_well(free) == 0
    thread.join(60)
    assert not thread.is_alive() and not failures


def ends_well(port: int) -> int:
    """Have two workers meet and end; return the exit code that both are told."""
    chief, other = Caller(port).ready(0), Caller(port).ready(1)
    assert chief.hears("start")["addresses"] == ["host:0", "host:1"]
    chief.send(type="done", generation=other.hears("start")["generation"], step=1)
    code = other.hears("end")["code"]
    assert chief.hears("end")["code"] == code
    return int(code)


def test_a_port_that_is_taken_is_a_sentence(port: int) -> None:
    with pytest.raises(TransientError, match=rf"listen on port {port} \(Address already in use.*\. Run the same"):
        Rendezvous("127.0.0.1", port, [2], LONG_SECONDS, TOKEN, lambda: None).open()


@pytest.mark.parametrize(
    "payload", [b"GET / HTTP/1.1\r\n\r\n" * 4, b'{"type": "ready"}\n' * 4, INFINITE, DEEP, bytes(64)]
)
def test_a_stranger_is_cut_off_and_the_meeting_goes_on(port: int, payload: bytes) -> None:
    stranger = Caller(port, token=None)
    stranger.write(payload)
    assert stranger.is_cut_off()


def test_a_pod_listens_on_ipv4_and_ipv6_and_a_port_taken_on_either_is_not_free() -> None:
    key = channel.derive_key(TOKEN, b"any")
    for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        with channel.listen("digits-0.digits", 0) as server, ThreadPoolExecutor(1) as threads:
            calling = threads.submit(channel.connect, host, server.getsockname()[1], key, 60.0)
            with contextlib.closing(channel.Acceptor(server, key)) as acceptor:
                while not (accepted := acceptor.accept(wait(acceptor.sockets(), timeout=60))):
                    pass
            accepted[0].close()
            calling.result().close()
        with channel.listen(host, 0) as local:
            assert local.getsockname()[0] == host and not ports.is_free(local.getsockname()[1])


def test_a_worker_follows_worker_0_to_the_address_that_its_name_has_after_its_pod_was_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DNS gives the old address once more, where nobody answers."""
    port, key, resolve = free_port(), rendezvous_key(TOKEN), socket.getaddrinfo
    old, new = (channel.Acceptor(channel.listen(f"127.0.0.{host}", port), key) for host in (1, 2))
    answers, looked_up = ["127.0.0.1", "127.0.0.1", "127.0.0.2"], []

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "digits-0.digits":
            looked_up.append(host := answers[min(len(looked_up), 2)])
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("TRAINYARD_START_DEADLINE_SECONDS", "60")
    membership = supervisor.Membership(1, [f"digits-0.digits:{port}", f"digits-1.digits:{port}"], TOKEN)
    worker = supervisor.Supervisor(membership, {"output": str(tmp_path / "output"), "checkpoints": str(tmp_path)})
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(worker._work)
        for acceptor in (old, new):
            clients: list[socket.socket] = []
            while not clients and not working.done():
                clients = acceptor.accept(wait(acceptor.sockets(), timeout=1))
            acceptor.close()
            stream = MessageStream(clients[0])
            if acceptor is new:
                stream.send("end", code=0)
                assert working.result(timeout=60) == 0
            stream.close()
    assert looked_up == answers


@pytest.mark.parametrize("token", ["", "of another gang"])
def test_a_caller_with_another_token_learns_nothing_and_is_cut_off(port: int, token: str) -> None:
    with pytest.raises(ConnectionError, match="not of this gang"):
        Caller(port, token)


def test_an_answer_that_was_overheard_opens_no_other_connection(port: int) -> None:
    """The exchange of a member and the meeting, passed on and written down, is said again to the meeting."""
    payload: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def pass_on() -> None:
            here, there = between.accept()[0], socket.create_connection(("127.0.0.1", port), timeout=60)
            here.sendall(there.recv(32))
            payload.append(here.recv(64))
            there.sendall(payload[0])
            here.sendall(there.recv(32))
            here.close()
            there.close()

        thread = threading.Thread(target=pass_on)
        thread.start()
        channel.connect("127.0.0.1", between.getsockname()[1], rendezvous_key(TOKEN), 60).close()
        thread.join()
    again = Caller(port, token=None)
    again.write(payload[0])
    assert again.is_cut_off()


def test_who_stands_in_for_the_meeting_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            connection.sendall(bytes(32))
            answer = connection.recv(64)
            connection.sendall(answer[32:])  # the caller's own proof

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ConnectionRefusedError, match="not of this gang"):
            channel.connect("127.0.0.1", server.getsockname()[1], rendezvous_key(TOKEN), 60)
        thread.join()


def test_a_crowd_of_idle_strangers_keeps_nobody_waiting(port: int) -> None:
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
    Caller(port).write(b"\n")  # one after the other, each would take seconds
    for connection in idle:
        # A reset, as of a process that is gone: the meeting may find it so at any moment.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("worker", "address", "generation", "step", "code", "error", "message", "began_at", "restart", "grace_seconds")
MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["ready", "beat", "began", "straggler", "broke", "recovered", "start", "stop"]) | JSON},
    optional={name: JSON | st.integers(0, 3) for name in FIELDS},
).map(lambda message: json.dumps(message).encode() + b"\n")
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(payload=st.binary(max_size=200))
def test_any_bytes_of_a_stranger_cost_that_connection_alone(port: int, payload: bytes) -> None:
    stranger = Caller(port, token=None)
    stranger.write(payload)
    stranger.says_no_more()
    assert stranger.is_cut_off()


@FUZZ
@example(payload=[INFINITE])
@example(payload=[DEEP])
@given(payload=st.lists(st.binary(max_size=50) | MESSAGES, max_size=4))
def test_any_bytes_of_a_member_cost_that_connection_alone(port: int, payload: list[bytes]) -> None:
    member = Caller(port)
    member.write(b"".join(payload))
    member.says_no_more()
    assert member.is_cut_off()


@pytest.fixture
def meeting() -> Iterator[int]:
    """A meeting of two of one test's own."""
    free = free_port()
    thread = Rendezvous("127.0.0.1", free, [2], LONG_SECONDS, TOKEN, lambda: None).open()
    yield free
    thread.join(60)
    assert not thread.is_alive()


def test_a_member_that_talks_nonsense_is_lost_and_comes_again(meeting: int) -> None:
    chief, other = Caller(meeting).ready(0), Caller(meeting).ready(1)
    chief.hears("start")
    other.send(type="broke", generation=1, code="none")
    assert other.is_cut_off()
    chief.hears("stop")
    assert ends_well(meeting) == 0


def test_the_second_out_of_memory_kill_ends_the_gang_however_far_each_start_came(meeting: int) -> None:
    chief, other = Caller(meeting), Caller(meeting)
    for step in (1, 2):
        if step > 1:
            chief.hears("stop"), other.hears("stop")
        chief.ready(0)
        other.ready(1)
        generation = chief.hears("start")["generation"]
        other.hears("start")
        killed = {"code": 75, "error": "PeerLost", "message": "was killed out of memory", "out_of_memory": True}
        other.send(type="broke", generation=generation, step=step, **killed)
    end = chief.hears("end")
    assert (end["code"], end["error"]) == (40, "InfrastructureError")
    assert "gave up after 2 out-of-memory kills" in end["message"]


def test_a_kill_is_the_reason_and_counts_although_the_worker_that_lost_the_killed_one_was_quicker(meeting: int) -> None:
    chief, other = Caller(meeting), Caller(meeting)
    peer_lost = {"code": 75, "error": "PeerLost"}
    for step in (1, 2):
        chief.ready(0)
        other.ready(1)
        start = chief.hears("start")
        other.hears("start")
        chief.send(type="broke", generation=start["generation"], step=step, message="lost another worker", **peer_lost)
        other.hears("stop"), chief.hears("stop")
        killed = {**peer_lost, "message": f"killed at {step}", "cause": True, "out_of_memory": True}
        other.send(type="broke", generation=start["generation"], step=step, **killed)
    assert start["past"]["last_break"][:2] == ["killed at 1", 1]
    end = chief.hears("end")
    assert (end["code"], "gave up after 2 out-of-memory kills. killed at 2" in end["message"]) == (40, True)


def test_other_breaks_end_the_gang_only_where_three_starts_came_no_step_further(meeting: int) -> None:
    chief, other = Caller(meeting), Caller(meeting)
    for start, step in enumerate((1, 2, 3, 3, 3, 3)):
        if start:
            chief.hears("stop"), other.hears("stop")
        chief.ready(0)
        other.ready(1)
        generation = chief.hears("start")["generation"]
        other.hears("start")
        other.send(type="broke", generation=generation, step=step, code=75, error="PeerLost", message="killed")
    assert chief.hears("end")["code"] == 30


BUG = {"code": 50, "error": "InternalError", "message": "train: InternalError: no kernel"}
LOST = {"code": 75, "error": "PeerLost", "message": "lost another worker"}
KILLED = {"code": 75, "error": "PeerLost", "message": "was killed by SIGKILL", "cause": True}
CRASHED = {"code": 75, "error": "PeerLost", "message": "ended with SIGSEGV", "crashed": True}


@pytest.mark.parametrize(
    ("breaks", "ends"),
    [
        ([(1, BUG)], True),
        ([(1, BUG), (0, LOST)], True),
        ([(0, LOST), (1, BUG)], True),
        ([(1, BUG), (0, CRASHED)], True),  # as JAX ends a process that has lost its coordinator
        ([(1, BUG), (0, KILLED)], False),
        ([(0, KILLED), (1, BUG)], False),
        ([(0, LOST), (1, BUG), (0, KILLED)], False),
        ([(0, CRASHED), (1, BUG)], False),
        ([(0, LOST)], False),
    ],
)
def test_an_error_of_the_framework_is_a_bug_unless_a_worker_is_in_fact_lost(
    breaks: list[tuple[int, dict[str, Any]]], ends: bool, meeting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", -0.7)
    callers = Caller(meeting).ready(0), Caller(meeting).ready(1)
    generation = callers[0].hears("start")["generation"]
    for worker, message in breaks:
        callers[worker].send(type="broke", generation=generation, step=3, **message)
        time.sleep(0.05)
    if ends:
        assert callers[0].hears("end")["message"] == BUG["message"]
        return
    for caller in callers:
        caller.hears("stop")
    callers[0].ready(0), callers[1].ready(1)
    callers[0].send(type="done", generation=callers[0].hears("start")["generation"], step=4)
    assert callers[1].hears("end")["code"] == 0


def test_a_bug_that_a_crash_explained_ends_the_gang_where_it_comes_again_at_the_same_step(
    meeting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", -0.7)
    chief, other = Caller(meeting), Caller(meeting)
    for step in (3, 4, 4):
        chief.ready(0), other.ready(1)
        generation = chief.hears("start")["generation"]
        chief.send(type="broke", generation=generation, step=step, **CRASHED)
        other.hears("stop"), chief.hears("stop")
        other.send(type="broke", generation=generation, step=step, **BUG)
    assert chief.hears("end")["code"] == 50


class Broken(Rendezvous):
    """A meeting with a fault that nobody thought of."""

    def _check_members(self) -> None:
        raise RuntimeError("a fault that nobody thought of")


def test_a_meeting_that_fails_says_so_at_once_and_closes_its_door() -> None:
    failed = threading.Event()
    free = free_port()

    thread = Broken("127.0.0.1", free, [2], 30, TOKEN, failed.set).open()
    assert failed.wait(60)
    thread.join(60)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", free), timeout=5)


def test_a_local_gang_listens_on_the_loopback_interface_alone(port: int) -> None:
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    stall_guard = [
        address for _, address, _, state, *_ in sockets if state == "0A" and address.endswith(f":{port:04X}")
    ]
    assert stall_guard == [f"0100007F:{port:04X}"]


def test_where_the_gang_began_is_told_to_each_later_start(meeting: int) -> None:
    chief, other = Caller(meeting).ready(0), Caller(meeting).ready(1)
    first = chief.hears("start")["past"]
    assert first["began_at"] is None and first["spent"]["meet"] >= 0
    chief.send(type="began", generation=1, step=200, began_at=200)
    for generation, step in ((1, 230), (2, 240)):
        chief.send(type="broke", generation=generation, step=step, code=75, error="PeerLost", message="killed")
        other.hears("stop")
        chief.ready(0)
        other.ready(1)
        past = chief.hears("start")["past"]
        assert (past["began_at"], past["last_break"][1], past["spent"]) == (200, 230, first["spent"])
        other.send(type="began", generation=generation + 1, step=220, began_at=220)  # as each of its starts does
    chief.send(type="done", generation=3, step=250)
    assert other.hears("end")["code"] == 0


def test_silence_counts_only_while_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    here, there = socket.socketpair()
    line, stall_guard = MessageStream(here), StallGuard()
    now += SILENCE_SECONDS + 30  # the machine stood still
    stall_guard.excuse([line])
    assert not line.is_silent()
    for _ in range(int(SILENCE_SECONDS * 2)):
        now += 0.6
        stall_guard.excuse([line])
    assert line.is_silent()
    line.close()
    there.close()


def test_a_worker_0_on_another_node_knows_the_restarts_before_it_and_counts_its_own_loss(tmp_path: Path) -> None:
    restart = {"reason": "worker 1 is lost", "step": 7, "resumed_at": 5, "lost_steps": 2, "seconds": 3.0}
    kept = tmp_path / "gang" / "launcher.past"

    def first_start(token: str, **more: Any) -> tuple[Caller, dict[str, Any]]:
        port = free_port()
        Rendezvous("127.0.0.1", port, [1], LONG_SECONDS, token, lambda: None, past_uri=str(kept)).open()
        chief = Caller(port, token).ready(0, **more)
        return chief, chief.hears("start")

    chief, start = first_start(TOKEN)
    assert start["past"]["restarts"] == [] and start["past"]["last_break"] is None
    chief.send(type="began", generation=1, step=6, began_at=0)
    chief.send(type="recovered", generation=1, step=8, restart=restart)
    deadline = time.monotonic() + 60
    while not kept.exists() or not json.loads(kept.read_text())["past"]["restarts"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    _, start = first_start(TOKEN)  # on another node; the first one is gone
    assert start["past"]["restarts"] == [restart] and start["past"]["began_at"] == 0
    assert start["past"]["last_break"][:2] == ["worker 0 was lost, and started again", 8]
    before = time.monotonic()
    _, start = first_start(TOKEN, step=13, away=LONG_SECONDS)  # as one says that has trained on since
    assert start["past"]["last_break"][1] == 13
    assert before - LONG_SECONDS <= start["past"]["last_break"][2] <= time.monotonic() - LONG_SECONDS
    _, start = first_start("of a later gang")
    assert start["past"]["restarts"] == []


class Elastic:
    """An elastic meeting of four, of whom two can train, and those who have come to it."""

    def __init__(self, replace_seconds: float, past_uri: str = "") -> None:
        self.port = free_port()
        rest = (LONG_SECONDS, TOKEN, lambda: None, replace_seconds, past_uri)
        self.rendezvous = Rendezvous("127.0.0.1", self.port, [2, 4], *rest)
        self.thread = self.rendezvous.open()
        self.callers: dict[int, Caller] = {}

    def come(self, *workers: int) -> None:
        self.callers |= {worker: Caller(self.port).ready(worker) for worker in workers}

    def go(self, *workers: int) -> None:
        for worker in workers:
            self.callers.pop(worker).leave()

    def hear(self, kind: str, *workers: int) -> list[dict[str, Any]]:
        return [self.callers[worker].hears(kind) for worker in workers]

    def ready_again(self, *workers: int, save: bool) -> None:
        assert [stop["save"] for stop in self.hear("stop", *workers)] == [save] * len(workers)
        for worker in workers:
            self.callers[worker].ready(worker)

    def end(self, generation: int) -> None:
        self.callers[0].send(type="done", generation=generation, step=9)
        assert [end["code"] for end in self.hear("end", *self.callers)] == [0] * len(self.callers)
        self.thread.join(60)
        assert not self.thread.is_alive()


def team(start: dict[str, Any]) -> list[int]:
    """Return the workers that train, by rank."""
    return [worker for worker, _ in start["past"]["team"]]


def test_an_elastic_gang_goes_on_without_lost_workers_and_takes_them_in_at_a_step_that_is_saved() -> None:
    gang = Elastic(replace_seconds=LONG_SECONDS)
    gang.come(0, 1, 2, 3)
    starts = gang.hear("start", 0, 1, 2, 3)
    assert [team(start) for start in starts] == [[0, 1, 2, 3]] * 4 and starts[0]["past"]["max_workers"] == 4
    gang.callers[0].send(type="began", generation=1, step=9, began_at=0)
    lost, gang.rendezvous.replace_seconds = time.monotonic(), 0.5
    gang.go(1, 2)
    gang.ready_again(0, 3, save=False)
    start, other = gang.hear("start", 0, 3)
    assert time.monotonic() - lost > 0.5
    gang.rendezvous.replace_seconds = LONG_SECONDS
    assert (team(start), team(other), start["generation"]) == ([0, 3], [0, 3], 2)
    assert start["addresses"] == other["addresses"] == ["host:0", "host:3"]  # worker 3 is the second now
    gang.come(1, 2)  # late: they do not train before the others have stopped
    gang.callers[3].send(type="began", generation=2, step=4, began_at=2)
    time.sleep(0.5)  # nor before the chief has told what the loss cost
    count = {"workers": 2, "maximum": 4, "step": 2, "seconds": 7.0}
    gang.callers[0].send(type="workers", generation=2, step=4, count=count)
    slow = {"worker": 3, "node": "node-3", "step": 3, "until": None, "own_ms": 9.0, "others_ms": 4.0}
    gang.callers[0].send(type="straggler", generation=2, step=4, straggler=slow)
    restart = {"reason": "worker 1 is lost", "step": 3, "resumed_at": 2, "lost_steps": 1, "seconds": 3.0}
    gang.callers[0].send(type="recovered", generation=2, step=4, restart=restart)
    gang.ready_again(0, 1, 2, 3, save=True)
    starts = gang.hear("start", 0, 1, 2, 3)
    assert [team(start) for start in starts] == [[0, 1, 2, 3]] * 4
    past = starts[0]["past"]
    assert other["past"]["team"] == [[0, "node-0"], [3, "node-3"]] and [*past["team"]][1] == [1, "node-1"]
    assert past["stragglers"] == [slow | {"until": 4}]  # the next team finds it again, if it still is one
    reason = "workers 1, 2 are there again: training continues with 4 of 4 workers"
    assert past["worker_counts"] == [count]
    assert past["last_break"][:2] == [reason, 4]  # the second generation had not come to the 9 of the first
    gang.end(generation=3)


def test_a_team_that_grows_waits_for_the_worker_that_stops_last() -> None:
    gang = Elastic(replace_seconds=0.2)
    gang.come(0, 1)
    gang.hear("start", 0, 1)
    gang.come(2, 3)
    gang.callers[0].send(type="began", generation=1, step=3, began_at=0)
    gang.ready_again(0, 2, 3, save=True)
    time.sleep(0.6)
    gang.ready_again(1, save=True)
    assert [team(start) for start in gang.hear("start", 0, 1, 2, 3)] == [[0, 1, 2, 3]] * 4
    gang.end(generation=2)


def test_of_three_workers_two_train_and_the_third_stands_in_for_a_lost_one_at_once() -> None:
    gang = Elastic(replace_seconds=0.5)
    gang.come(0, 1, 2)
    assert [start["addresses"] for start in gang.hear("start", 0, 1)] == [["host:0", "host:1"]] * 2
    gang.callers[2].send(type="broke", generation=1, step=3, code=20, error="ConfigurationError", message="not heard")
    gang.callers[0].send(type="began", generation=1, step=3, began_at=0)
    gang.rendezvous.replace_seconds = LONG_SECONDS
    gang.go(1)
    gang.ready_again(0, 2, save=False)
    assert [start["addresses"] for start in gang.hear("start", 0, 2)] == [["host:0", "host:2"]] * 2
    gang.callers[0].send(type="began", generation=2, step=6, began_at=0)
    gang.come(3)
    gang.go(3)  # a spare that goes breaks nothing
    gang.end(generation=2)


def test_a_gang_of_more_workers_than_a_process_may_open_files_meets() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    port, workers = free_port(), range(16)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 20, limits[1]))
        Rendezvous("127.0.0.1", port, [len(workers)], LONG_SECONDS, TOKEN, lambda: None).open()
        callers = [Caller(port).ready(worker) for worker in workers]
        assert [team(caller.hears("start")) for caller in callers] == [[*workers]] * len(workers)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_worker_of_a_later_generation_does_not_deafen_the_one_that_runs() -> None:
    gang = Elastic(replace_seconds=0.2)
    gang.come(0, 1)
    gang.hear("start", 0, 1)
    gang.callers[3] = Caller(gang.port)
    gang.callers[3].send(type="ready", worker=3, address="host:3", generation=7)
    gang.callers[0].send(type="began", generation=1, step=3, began_at=0)
    gang.end(generation=1)


def test_workers_of_an_elastic_gang_wait_for_the_chief_however_long_it_takes() -> None:
    gang = Elastic(replace_seconds=0.2)
    gang.come(1, 2, 3)
    time.sleep(0.6)
    gang.come(0)
    assert [team(start) for start in gang.hear("start", 0, 1, 2, 3)] == [[0, 1, 2, 3]] * 4
    gang.end(generation=1)


def test_a_new_worker_0_does_not_wait_anew_for_workers_that_were_missing_before_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "_GATHER_SECONDS", 0.5)
    gang = Elastic(replace_seconds=60)
    gang.come(0)
    came = time.monotonic()
    gang.callers[2] = Caller(gang.port).ready(2, away=61.0)
    assert [team(start) for start in gang.hear("start", 0, 2)] == [[0, 2]] * 2
    assert time.monotonic() - came > 0.5  # those that are about to come back are waited for
    gang.end(generation=1)


@pytest.mark.parametrize(("counts", "missing"), [([3], "2 of 3"), ([3, 4], "2, 3 of 4")])
def test_a_worker_that_never_comes_ends_the_start_at_its_deadline(counts: list[int], missing: str) -> None:
    port = free_port()
    meeting = Rendezvous("127.0.0.1", port, counts, LONG_SECONDS, TOKEN, lambda: None, 0.2)
    thread = meeting.open()
    callers = [Caller(port).ready(worker) for worker in (0, 1)]
    latest = time.monotonic() + 60
    while len(meeting._members) < 2:
        assert time.monotonic() < latest
        time.sleep(0.01)
    meeting.deadline_seconds = 0.5
    ends = [caller.hears("end") for caller in callers]
    assert [end["code"] for end in ends] == [30, 30]
    assert f"waiting for worker {missing} for " in ends[0]["message"]
    thread.join(60)
    assert not thread.is_alive()


def test_the_numbers_of_workers_are_kept_for_another_node_whoever_says_first_that_it_began(tmp_path: Path) -> None:
    kept = tmp_path / "gang" / "launcher.past"
    gang = Elastic(replace_seconds=0.2, past_uri=str(kept))
    gang.come(0, 1)
    gang.hear("start", 0, 1)
    gang.callers[1].send(type="began", generation=1, step=1, began_at=0)
    count = {"workers": 2, "maximum": 4, "step": 0, "seconds": 7.0}
    gang.callers[0].send(type="workers", generation=1, step=1, count=count)
    gang.callers[0].send(type="began", generation=1, step=1, began_at=0)
    deadline = time.monotonic() + 60
    while not kept.exists() or json.loads(kept.read_text())["past"]["worker_counts"] != [count]:
        assert time.monotonic() < deadline, kept.read_text()
        time.sleep(0.02)
    gang.end(generation=1)
