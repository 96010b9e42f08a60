"""CORS, compression, request ids and timeouts of HTTP requests."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aiohttp import web

from trainyard import events
from trainyard.serving.options import ANY
from trainyard.serving.records import JSON_BYTES

ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[!-~]{1,128}")
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""Source: https://www.w3.org/TR/trace-context/"""

_SMALLEST = 1024  # bytes of a compressed answer; chosen: fewer fit into one packet anyway
_LARGE = 64 << 10  # bytes; measured: a millisecond to compress
_HEAD_SECONDS = 30.0  # chosen
_BODY_SECONDS = 30.0  # chosen
_SLOWEST = 256 << 10  # bytes a second of a body; chosen: 2 Mbit/s
_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True)
class RequestIds:
    """The ids of a request in the log: its own or a new one, and the W3C traceparent of a valid header, '' without."""

    request_id: str
    traceparent: str

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> RequestIds:
        """Return the ids in HTTP headers or gRPC metadata, whose names are in lower case."""
        own, trace = headers.get("x-request-id", ""), headers.get("traceparent", "")
        return cls(
            own if _ID.fullmatch(own) else uuid.uuid4().hex,
            trace if _TRACE.fullmatch(trace) else "",
        )

    def fields(self) -> dict[str, str]:
        """Return them for an event."""
        return {"request_id": self.request_id} | ({"traceparent": self.traceparent} if self.traceparent else {})


def log_request(about: Mapping[str, str], status: str, start: float, ids: RequestIds) -> None:
    """Write the line of the access log for a request that came at `start`, by the monotonic clock."""
    seconds = round(time.monotonic() - start, 6)
    events.emit("request", **about, status=status, seconds=seconds, **ids.fields())


class SlowBody(Exception):
    """A body that did not arrive in time; the message says how long the server waited."""


async def read_body(request: web.Request, most_bytes: int) -> bytes:
    """Return the body of a request. Raises `SlowBody`, and aiohttp's error for more than `most_bytes`."""
    if request.content.is_eof():  # it came with the headers
        return await request.read()
    seconds = _BODY_SECONDS + min(request.content_length or most_bytes, most_bytes) / _SLOWEST
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError as error:
        raise SlowBody(
            f"the request: its body did not arrive within {seconds:.0f} s. Send at least {_SLOWEST >> 10} KiB a second."
        ) from error


def is_preflight(request: web.Request, origins: Collection[str]) -> bool:
    """Return True if a browser asks whether it may send a request of a page of another origin."""
    return bool(origins) and request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def add_cors(response: web.StreamResponse, request: web.Request, origins: Collection[str]) -> None:
    """Let pages of `origins` read the answer. Only a named origin may send credentials.

    Source: https://fetch.spec.whatwg.org/#http-cors-protocol
    """
    origin, headers = request.headers.get("Origin", ""), response.headers
    if ANY in origins:
        headers["Access-Control-Allow-Origin"] = ANY
    elif origins:
        headers.add("Vary", "Origin")
        if origin not in origins:
            return
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Allow-Credentials"] = "true"
    else:
        return
    headers["Access-Control-Expose-Headers"] = f"{JSON_BYTES}, {ID_HEADER}"
    if is_preflight(request, origins):
        headers["Access-Control-Allow-Methods"] = "GET, POST"
        headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers", "")
        headers["Access-Control-Max-Age"] = "600"


async def compress(response: web.StreamResponse, request: web.Request) -> None:
    """Compress the answer with gzip if the client takes it, a large one in a thread."""
    if not isinstance(response, web.Response) or not isinstance(body := response.body, bytes) or len(body) < _SMALLEST:
        return
    response.headers.add("Vary", "Accept-Encoding")
    if not _takes_gzip(request.headers.get("Accept-Encoding", "")):
        return
    small = gzip.compress(body, 1) if len(body) < _LARGE else await asyncio.to_thread(gzip.compress, body, 1)
    response.body = small
    response.headers["Content-Encoding"] = "gzip"


def _takes_gzip(accepted: str) -> bool:
    for item in accepted.lower().split(","):
        name, _, parameter = (part.strip() for part in item.partition(";"))
        if name == "gzip":
            return not re.fullmatch(r"q\s*=\s*0(\.0*)?", parameter)
    return False


class Connections:
    """Ends connections on which no first request comes in time; aiohttp ends those that are idle after one."""

    def __init__(self) -> None:
        self._used: set[object] = set()

    def use(self, request: web.Request) -> None:
        """Note that a request has come by a connection."""
        self._used.add(request.protocol)

    async def watch(self, server: web.Server) -> None:
        """Answer 408 to those that are late, until the task is cancelled."""
        opened: dict[web.RequestHandler, float] = {}
        while True:
            await asyncio.sleep(min(1.0, _HEAD_SECONDS / 2))
            now, connections = time.monotonic(), server.connections
            self._used.intersection_update(connections)
            opened = {each: opened.get(each, now) for each in connections if each not in self._used}
            for connection, start in opened.items():
                if now - start > _HEAD_SECONDS and connection.transport is not None:
                    connection.transport.write(_LATE)
                    connection.transport.close()
