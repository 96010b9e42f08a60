"""A proxy that asks for a login before Kubeflow and tells it the user, as oauth2-proxy, Dex and Istio do."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PAGE = b"<!doctype html><title>Log in to Your Account</title>"
USER = "kubeflow-userid"
_DROPPED = {"host", "cookie", "authorization", "connection", USER}


class Answers(BaseHTTPRequestHandler):
    """A handler with whole answers and no log."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, content: Any, kind: str = "application/json") -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Proxy(Answers):
    """Forwards the requests of `sessions`, a user by what proves it; answers others by a page to log in.

    istio: who has no policy. pages: the status of the page, or 302 for a redirection to it. upstream: URL of Kubeflow,
    which replaces /pipeline.
    """

    sessions: dict[str, str]
    istio: set[str]
    pages: int
    upstream: str

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proof = self.headers.get("Cookie") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        user = self.sessions.get(proof, "")
        if self.path == "/dex/auth":
            return self.answer(200, PAGE, "text/html; charset=utf-8")
        if not user and self.pages == 302:
            self.send_response(302)
            self.send_header("Location", "/dex/auth")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if not user:
            return self.answer(self.pages, PAGE, "text/html")
        if user in self.istio:
            return self.answer(403, b"RBAC: access denied", "text/plain")
        url = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
        path = f"{url.path}{self.path.removeprefix('/pipeline')}"
        connection.request(self.command, path, body, kept | {USER: user})
        answer = connection.getresponse()
        self.answer(answer.status, answer.read(), answer.headers["Content-Type"] or "")
        connection.close()

    do_POST = do_DELETE = do_GET


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler], **settings: Any) -> Iterator[ThreadingHTTPServer]:
    """Serve a handler of these settings on this machine until the block ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type(handler.__name__, (handler,), settings)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def token(user: str, seconds: float) -> str:
    """Return a JSON Web Token of the user that is valid for `seconds`."""
    claims = json.dumps({"email": user, "exp": time.time() + seconds}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"
