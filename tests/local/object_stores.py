"""Real servers of both protocols for tests, behind a small proxy that makes faults on the way to them.

S3 is moto's server; Cloud Storage is gcp-storage-emulator, which knows no preconditions, no generation of what is
downloaded and no pages: the proxy adds them from the emulator's own answers.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.ports import free_port

from trainyard.uris import with_port

FAULTS = ("503", "429", "reset", "lost answer", "truncated")
STALL_SECONDS = 600.0  # at most, see `Store.calm`
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass
class Request:
    """One request as the proxy saw it; `number` counts from 1."""

    number: int
    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Store:
    """A store behind its proxy.

    fault: what happens to a request: one of FAULTS, 'hang', 'stalled' (half of the answer waits for `calm`), or None.
    before, after: called before and after a request goes to the store; if `before` returns True, it does not go there.
    """

    scheme: str
    bucket: str
    address: str
    environment: dict[str, str]
    fault: Callable[[Request], str | None] = lambda request: None
    before: Callable[[Request], object] = lambda request: None
    after: Callable[[Request], object] = lambda request: None
    overlooks_conditions: bool = False
    requests: list[Request] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    calmed: threading.Event = field(default_factory=threading.Event)

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    def calm(self) -> None:
        """Forget the requests, make no more faults, and end the answers that stalled."""
        self.calmed.set()
        self.calmed = threading.Event()
        self.fault = lambda request: None
        self.before = self.after = lambda request: None
        self.overlooks_conditions = False
        self.requests = []


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the client to acknowledge the headers
    store: Store
    upstream: tuple[str, int]

    def do_GET(self) -> None:
        store = self.store
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with store.lock:
            request = Request(len(store.requests) + 1, self.command, self.path, dict(self.headers.items()))
            store.requests.append(request)
        fault = store.fault(request)
        if store.before(request):
            return self._reset()
        if fault == "hang":
            time.sleep(3600)
        if fault == "reset":
            return self._reset()
        if fault in ("503", "507", "429", "403"):
            return self._answer(int(fault), [], b"{}" if store.scheme == "gs" else b"")
        with store.lock:
            status, headers, content = self._forward(body)
        store.after(request)
        if fault == "lost answer":
            return self._reset()
        self._answer(status, headers, content, fault)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        added: list[tuple[str, str]] = []
        if self.store.scheme == "gs":
            if "ifGenerationMatch" in query:
                match = re.search(rb'"name": "([^"]+)"', body)
                bucket, _, rest = url.path.split("/b/")[1].partition("/o")
                name = match[1].decode() if match else query["name"][0] if "name" in query else unquote(rest[1:])
                if self._generation(bucket, name) != query["ifGenerationMatch"][0]:
                    return 412, [], json.dumps({"error": {"code": 412, "message": "conditionNotMet"}}).encode()
            elif self.command == "GET" and query.get("alt") == ["media"]:
                bucket, name = re.findall(r"/b/([^/]+)/o/(.+)", url.path)[0]
                added = [("X-Goog-Generation", self._generation(bucket, unquote(name)))]
        dropped = _HOP | ({"if-match", "if-none-match"} if self.store.overlooks_conditions else set())
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        status, answered, content = self._ask(self.command, self.path, body, headers)
        if self.store.scheme == "gs" and status == 200 and "maxResults" in query:
            content = _page(content, int(query.get("pageToken", ["0"])[0]), int(query["maxResults"][0]))
        return status, answered + added, content

    def _generation(self, bucket: str, name: str) -> str:
        status, _, content = self._ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}", b"", {})
        return str(json.loads(content)["generation"]) if status == 200 else "0"

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        try:
            connection.request(method, path, body, {**headers, "Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, fault: str | None = None) -> None:
        calmed = self.store.calmed
        try:
            self.send_response(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = value
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                half = len(content) // 2 if fault in ("truncated", "stalled") else len(content)
                self.wfile.write(content[:half])
                if fault == "stalled":
                    calmed.wait(STALL_SECONDS)
                    self.wfile.write(content[half:])
            if fault == "truncated":
                self._reset()
        except OSError:
            self.close_connection = True

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def _page(listing: bytes, start: int, count: int) -> bytes:
    """Return the part of a whole listing of Cloud Storage from entry `start` on, objects and folders counted alike."""
    whole = json.loads(listing)
    entries = sorted(
        [*((item["name"], item) for item in whole["items"]), *((prefix, None) for prefix in whole["prefixes"])]
    )
    page = entries[start : start + count]
    page = {"items": [item for _, item in page if item], "prefixes": [name for name, item in page if not item]}
    return json.dumps(page | ({"nextPageToken": str(start + count)} if start + count < len(entries) else {})).encode()


def forget_clients() -> None:
    """Have this process make its clients anew, by the environment of that time."""
    from trainyard.storage.buckets import gcs, s3, stores

    for cached in (stores.open_store, gcs._client, s3._made_client):
        cached.cache_clear()
    s3.access_by(s3.Access)
    gcs.trust_by(str)


@contextmanager
def _proxied(
    scheme: str, upstream: tuple[str, int], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Store]:
    store = Store(scheme, "trainyard-test", "", {})
    handler = type("Proxy", (_Proxy,), {"store": store, "upstream": upstream})
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = type("Server", (ThreadingHTTPServer,), {"address_family": family})((host, 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    store.address = f"{'https' if tls else 'http'}://{with_port(host, server.server_port)}"
    forget_clients()
    try:
        yield store
    finally:
        forget_clients()
        server.shutdown()
        server.server_close()


@contextmanager
def s3_store(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Store]:
    """A bucket of moto's S3 server, whose proxy listens on `host`, with the certificate of `tls`."""
    from moto.server import ThreadedMotoServer

    port = free_port()
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    with _proxied("s3", ("127.0.0.1", port), host, tls) as store:
        store.environment = {
            "AWS_ENDPOINT_URL_S3": store.address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/{store.bucket}")
        assert connection.getresponse().status == 200
        connection.close()
        yield store
    server.stop()


@contextmanager
def gcs_store(tls: ssl.SSLContext | None = None) -> Iterator[Store]:
    """A bucket of the emulator of Cloud Storage, behind a proxy with the certificate of `tls`."""
    from gcp_storage_emulator.server import create_server

    port = free_port()
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="trainyard-test")
    with server, _proxied("gs", ("127.0.0.1", port), tls=tls) as store:
        store.environment = {"STORAGE_EMULATOR_HOST": store.address}
        yield store


STORES = {"gs": gcs_store, "s3": s3_store}
