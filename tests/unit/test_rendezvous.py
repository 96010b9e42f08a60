"""The meeting of a gang: who is let in, who is heard, and what ends it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainyard.train.rendezvous import SILENCE_SECONDS, Line, Listening, Rendezvous

TOKEN = "of this gang"


class Caller:
    """The other end of one connection to the meeting."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._lines = self._socket.makefile("rb")

    def send(self, **message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ready(self, worker: int, token: str = TOKEN, **more: Any) -> Caller:
        self.send(type="ready", worker=worker, token=token, address=f"host:{worker}", generation=0, **more)
        return self

    def hears(self, kind: str) -> dict[str, Any]:
        while line := self._lines.readline():
            message = json.loads(line)
            if message["type"] == kind:
                return message
        raise AssertionError(f"cut off before {kind}")

    def is_cut_off(self) -> bool:
        try:
            while self._lines.readline():
                pass
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    thread: threading.Thread = Rendezvous(free, 2, 30, TOKEN).open()
    yield free
    # Whatever was said to it, the meeting goes on: two workers meet and end it.
    chief, other = Caller(free).ready(0), Caller(free).ready(1)
    assert chief.hears("start")["addresses"] == ["host:0", "host:1"]
    generation = other.hears("start")["generation"]
    chief.send(type="done", generation=generation, step=1)
    assert other.hears("end")["code"] == 0
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"type": "ready"}\n',
        b'{"type": "ready", "worker": "one", "token": "of this gang", "address": "a:1", "generation": 0}\n',
        b'{"type": "ready", "worker": 2, "token": "of this gang", "address": "a:1", "generation": 0}\n',
        b'{"type": "ready", "worker": 1, "token": "guessed", "address": "a:1", "generation": 0}\n',
        b'{"type": "ready", "worker": 1, "address": "a:1", "generation": 0}\n',
        b'{"type": "done", "generation": 0, "step": 1}\n',
        b'{"type": "broke", "generation": 0, "code": 50}\n',
        b"[1]\n\xff\n",
    ],
)
def test_a_stranger_is_cut_off_and_the_meeting_goes_on(port: int, said: bytes) -> None:
    stranger = Caller(port)
    stranger.write(said)
    assert stranger.is_cut_off()


def test_a_member_that_talks_nonsense_is_lost_and_comes_again(port: int) -> None:
    chief, other = Caller(port).ready(0), Caller(port).ready(1)
    chief.hears("start")
    other.send(type="broke", generation=1, code="none")
    assert other.is_cut_off()
    chief.hears("stop")


def test_where_the_gang_began_is_told_to_each_later_start(port: int) -> None:
    chief, other = Caller(port).ready(0), Caller(port).ready(1)
    first = chief.hears("start")["past"]
    assert first["began_at"] is None and first["meet"] >= 0
    chief.send(type="began", generation=1, step=200, began_at=200)
    other.hears("start")
    chief.send(type="broke", generation=1, step=230, code=75, error="PeerLost", message="killed")
    other.hears("stop")
    chief.ready(0)
    other.ready(1)
    second = chief.hears("start")["past"]
    assert (second["began_at"], second["break"]["step"], second["meet"]) == (200, 230, first["meet"])


def test_silence_counts_only_while_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    here, there = socket.socketpair()
    line, listening = Line(here), Listening()
    now += SILENCE_SECONDS + 30  # the machine stood still
    listening.excuse([line])
    assert not line.silent()
    for _ in range(int(SILENCE_SECONDS * 2)):
        now += 0.6
        listening.excuse([line])
    assert line.silent()
    line.close()
    there.close()
