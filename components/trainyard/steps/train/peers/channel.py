"""A connection of two members of a gang: mutual authentication, then messages, JSON objects one a line.

The server sends 32 random bytes. The client answers with 32 of its own and an HMAC over both, and receives another
HMAC. The key is never sent, and a recorded answer opens no other connection. Later messages are neither encrypted nor
signed: a gang's network must be closed to others (k8s/base/network.yaml, and the gang's own NetworkPolicy). Source:
HMAC, RFC 2104, with SHA-256; the exchange is the mutual one of ISO/IEC 9798-4.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Collection
from typing import Any

from trainyard.process import ports
from trainyard.uris import BRACKETS

_NONCE_BYTES = 32  # a nonce, and SHA-256
_ANSWER_SECONDS = 10.0  # chosen: time for a client to answer
_MAX_PENDING = 64  # chosen: the oldest of more unanswered clients are cut off
_ACCEPTS_PER_TURN = 16  # chosen: so that many strangers do not delay members
_BACKLOG = 128  # chosen: connections waiting for accept
HEARTBEAT_SECONDS = 1.0
"""Chosen: interval of `beat` messages."""

SILENCE_SECONDS = 10.0
"""Chosen: a side that is silent for this long counts as lost."""

_MAX_LINE = 1 << 20
_STALL_SECONDS = 1.0  # chosen: a longer turn of this side's loop is a stall of this side
Message = dict[str, Any]


class Acceptor:
    """Accepts clients that prove knowledge of `key`, without blocking on any of them."""

    def __init__(self, server: socket.socket, key: bytes) -> None:
        server.setblocking(False)
        self._server = server
        self._key = key
        self._clients: list[_PendingClient] = []

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait on."""
        return [self._server, *(client.socket for client in self._clients)]

    def accept(self, readable: Collection[object]) -> list[socket.socket]:
        """Return newly authenticated connections; `readable`: the readable ones of `sockets`."""
        accepted = []
        for client in [client for client in self._clients if client.socket in readable]:
            authenticated = client.is_authenticated()
            if authenticated is None:
                continue
            self._clients.remove(client)
            if authenticated:
                accepted.append(client.socket)
            else:
                client.socket.close()
        if self._server in readable:
            self._challenge_new()
        self._drop_slow()
        return accepted

    def close(self) -> None:
        """Close the server and the unauthenticated connections."""
        for client in self._clients:
            client.socket.close()
        self._clients = []
        self._server.close()

    def _challenge_new(self) -> None:
        """Challenge the clients that have connected."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._server.accept()
            except BlockingIOError:
                return
            except OSError:  # the client has left, or this process has no descriptor left
                time.sleep(0.05)
                return
            client = _PendingClient(connection, self._key)
            if client.challenged:
                self._clients.append(client)
            else:
                connection.close()

    def _drop_slow(self) -> None:
        """Drop clients that did not answer in time, and the oldest if there are too many."""
        now = time.monotonic()
        slow = [client for client in self._clients if now - client.since > _ANSWER_SECONDS]
        for client in {*slow, *self._clients[:-_MAX_PENDING]}:
            self._clients.remove(client)
            client.socket.close()


class _PendingClient:
    """A client whose proof is awaited; `challenged` is False if it could not be asked."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.since = time.monotonic()
        self._key = key
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._answer = b""
        self.challenged = _send(connection, self._nonce)

    def is_authenticated(self) -> bool | None:
        """Return True if the client knows the key, None until its answer is complete."""
        try:
            data = self.socket.recv(2 * _NONCE_BYTES - len(self._answer))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._answer += data
        if not data:
            return False
        if len(self._answer) < 2 * _NONCE_BYTES:
            return None
        nonce, proof = self._answer[:_NONCE_BYTES], self._answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _hmac(self._key, b"caller", self._nonce, nonce)):
            return False
        return _send(self.socket, _hmac(self._key, b"called", self._nonce, nonce))


def derive_key(token: str, *purpose: bytes) -> bytes:
    """Return the key of one purpose in the gang with `token`; no key reveals another."""
    return hmac.digest(token.encode(), b"\0".join(purpose), "sha256")


def connect(host: str, port: int, key: bytes, seconds: float) -> socket.socket:
    """Return a connection to a server that knows `key` too.

    host: IPv6 addresses may be in brackets. Raises OSError if no such server answers within `seconds`.
    """
    end = time.monotonic() + seconds
    connection = socket.create_connection((host.strip(BRACKETS), port), timeout=seconds)
    try:
        their_nonce, our_nonce = _receive(connection, end), secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(our_nonce + _hmac(key, b"caller", their_nonce, our_nonce))
        if not hmac.compare_digest(_receive(connection, end), _hmac(key, b"called", their_nonce, our_nonce)):
            raise ConnectionRefusedError(f"{host}:{port} is not of this gang")
    except BaseException:
        connection.close()
        raise
    return connection


def listen(host: str, port: int) -> socket.socket:
    """Return a server on `port`: of `host` alone if that is a loopback address, otherwise of IPv4 and IPv6."""
    host = host.strip(BRACKETS)
    if is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    return ports.listen(port, _BACKLOG)


def is_loopback(host: str) -> bool:
    """Return True if `host` is a loopback address."""
    try:
        return ipaddress.ip_address(host.strip(BRACKETS)).is_loopback
    except ValueError:
        return False


def _send(connection: socket.socket, data: bytes) -> bool:
    """Return True if a few bytes were sent, for which a new connection has room."""
    try:
        return connection.send(data) == len(data)
    except OSError:
        return False


def _receive(connection: socket.socket, end: float) -> bytes:
    data = b""
    while len(data) < _NONCE_BYTES:
        connection.settimeout(max(0.01, end - time.monotonic()))
        piece = connection.recv(_NONCE_BYTES - len(data))
        if not piece:
            raise ConnectionResetError("cut off: what was called is not of this gang, or has ended")
        data += piece
    return data


def _hmac(key: bytes, who: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(key, who + server_nonce + client_nonce, "sha256")


def encode(kind: str, **fields: Any) -> bytes:
    """Return a message as a line."""
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


class MessageStream:
    """One side of a connection, which sends and receives whole messages."""

    def __init__(self, connection: socket.socket) -> None:
        # A duplicate descriptor, because sending may block and receiving must not.
        self._out = connection.dup()
        self._out.settimeout(2)
        connection.setblocking(False)
        self.socket = connection
        self._sending = threading.Lock()
        self.last_received = time.monotonic()
        self._partial = b""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.socket.fileno()

    def send(self, kind: str, **fields: Any) -> bool:
        """Send a message; return False if the other side is gone or no longer reads."""
        return self.send_line(encode(kind, **fields))

    def send_line(self, line: bytes) -> bool:
        """Send a message as `encode` returns it, which serves many receivers; the rest is as in `send`."""
        try:
            with self._sending:
                self._out.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Return the messages since the last call, None if the other side closed or sent anything else."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data or len(self._partial) > _MAX_LINE:
            return None
        self.last_received = time.monotonic()
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) and "type" in message for message in messages) else None

    def is_silent(self) -> bool:
        """Return True if the other side has been silent for too long."""
        return time.monotonic() - self.last_received > SILENCE_SECONDS

    def excuse(self, seconds: float) -> None:
        """Subtract `seconds` in which this side did not read (a paused machine, a stalled process) from the silence."""
        self.last_received += seconds

    def close(self) -> None:
        """Close the connection."""
        self._out.close()
        self.socket.close()


class StallGuard:
    """Detects stalls of this side, so that silence counts only while this side reads."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def excuse(self, streams: list[MessageStream]) -> None:
        """Subtract a stall since the last call from the silence of `streams`; call it once a turn."""
        now = time.monotonic()
        if now - self._last > _STALL_SECONDS:
            for stream in streams:
                stream.excuse(now - self._last)
        self._last = now
