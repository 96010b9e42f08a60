"""How the processes of a gang find out that they are of one gang, before either side of a connection hears a word.

Who is called sends 32 random bytes. The caller answers with 32 of its own and an HMAC over both, and gets another HMAC back.
The key goes over no wire, and an answer that was overheard opens no other connection. What is said afterwards is neither
encrypted nor signed: a gang's network is to be closed to others (k8s/base/network.yaml, and the gang's own NetworkPolicy).
Source: HMAC, RFC 2104, with SHA-256; the exchange is the mutual one of ISO/IEC 9798-4.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Collection

_BYTES = 32  # a nonce, and SHA-256
_SECONDS = 10.0  # chosen: a caller who has not answered by then is cut off
_MOST = 64  # chosen: of more callers at a time who have not answered, the oldest are cut off
_AT_A_TIME = 16  # chosen: callers that are looked at before those who are known are heard again
_BACKLOG = 128  # chosen: callers whom nobody has looked at yet


class Door:
    """A server's callers: those who prove that they know `key` are let in, and nobody waits for any other."""

    def __init__(self, server: socket.socket, key: bytes) -> None:
        server.setblocking(False)
        self._server = server
        self._key = key
        self._callers: list[_Caller] = []

    def sockets(self) -> list[socket.socket]:
        """Return what to wait on until one of it can be read."""
        return [self._server, *(caller.socket for caller in self._callers)]

    def let_in(self, readable: Collection[object]) -> list[socket.socket]:
        """Return the connections whose callers have proved themselves; `readable`: those of `sockets` that can be read."""
        known = []
        for caller in [each for each in self._callers if each.socket in readable]:
            verdict = caller.verdict()
            if verdict is None:
                continue
            self._callers.remove(caller)
            if verdict:
                known.append(caller.socket)
            else:
                caller.socket.close()
        if self._server in readable:
            for _ in range(_AT_A_TIME):
                if not self._take():
                    break
        self._cut_off()
        return known

    def close(self) -> None:
        """Close the server and the connections of those who have not proved anything."""
        for caller in self._callers:
            caller.socket.close()
        self._callers = []
        self._server.close()

    def _take(self) -> bool:
        """Ask one caller; return whether there may be another one."""
        try:
            connection, _ = self._server.accept()
        except BlockingIOError:
            return False
        except OSError:  # the caller is gone already, or this process has no descriptor left
            time.sleep(0.05)
            return False
        caller = _Caller(connection, self._key)
        if caller.asked:
            self._callers.append(caller)
        else:
            connection.close()
        return True

    def _cut_off(self) -> None:
        """Cut off who has not answered in time, and the oldest where there are too many."""
        now = time.monotonic()
        slow = [caller for caller in self._callers if now - caller.since > _SECONDS]
        for caller in {*slow, *self._callers[:-_MOST]}:
            self._callers.remove(caller)
            caller.socket.close()


class _Caller:
    """Somebody who has called and was asked to prove that the key is known; `asked` is False where that failed."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.since = time.monotonic()
        self._key = key
        self._nonce = secrets.token_bytes(_BYTES)
        self._answer = b""
        self.asked = _sent(connection, self._nonce)

    def verdict(self) -> bool | None:
        """Return whether the caller knows the key, None while the answer is not whole."""
        try:
            data = self.socket.recv(2 * _BYTES - len(self._answer))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._answer += data
        if not data:
            return False
        if len(self._answer) < 2 * _BYTES:
            return None
        nonce, proof = self._answer[:_BYTES], self._answer[_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key, b"caller", self._nonce, nonce)):
            return False
        return _sent(self.socket, _proof(self._key, b"called", self._nonce, nonce))


def key(token: str, *purpose: bytes) -> bytes:
    """Return the key of one purpose in the gang with `token`; keys of two purposes say nothing of each other."""
    return hmac.digest(token.encode(), b"\0".join(purpose), "sha256")


def call(host: str, port: int, key: bytes, seconds: float) -> socket.socket:
    """Return a connection whose two sides have proved to each other that they know `key`.

    Raises OSError where nobody answers within `seconds`, or somebody who does not know it.
    """
    end = time.monotonic() + seconds
    connection = socket.create_connection((host, port), timeout=seconds)
    try:
        theirs, ours = _received(connection, end), secrets.token_bytes(_BYTES)
        connection.sendall(ours + _proof(key, b"caller", theirs, ours))
        if not hmac.compare_digest(_received(connection, end), _proof(key, b"called", theirs, ours)):
            raise ConnectionRefusedError(f"{host}:{port} is not of this gang")
    except BaseException:
        connection.close()
        raise
    return connection


def listen(host: str, port: int) -> socket.socket:
    """Return a server on `port` of this machine, which others call `host`: of a loopback address on that one alone."""
    return socket.create_server((host if is_loopback(host) else "", port), backlog=_BACKLOG)


def is_loopback(host: str) -> bool:
    """Whether `host` is an address that this machine alone reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_free(port: int) -> bool:
    """Whether nobody listens on `port` of any of this machine's addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _sent(connection: socket.socket, data: bytes) -> bool:
    """Whether a few bytes, for which a new connection has room, are on their way."""
    try:
        return connection.send(data) == len(data)
    except OSError:
        return False


def _received(connection: socket.socket, end: float) -> bytes:
    data = b""
    while len(data) < _BYTES:
        connection.settimeout(max(0.01, end - time.monotonic()))
        piece = connection.recv(_BYTES - len(data))
        if not piece:
            raise ConnectionResetError("cut off: what was called is not of this gang, or has ended")
        data += piece
    return data


def _proof(key: bytes, who: bytes, called: bytes, caller: bytes) -> bytes:
    return hmac.digest(key, who + called + caller, "sha256")
