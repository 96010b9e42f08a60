"""Forwards a port of this machine to a Service of a cluster, through the Kubernetes API server.

The kubernetes package has a port-forward too: it copies all that is buffered for each 16 KiB that TLS takes, and ends
with a traceback when a connection breaks.
"""

from __future__ import annotations

import atexit
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.kubernetes.diagnosis import conditions, name_of

if TYPE_CHECKING:
    from trainyard.kubernetes.client import Cluster, Manifest

_CHUNK_BYTES = 1 << 18  # chosen: of one message to the API server
_HANDSHAKE_SECONDS = 20  # chosen: as for a request to the API server
_DATA, _ERROR = b"\0", 1  # specified: the channels of the first port in a port-forward


Secure = Callable[[socket.socket], socket.socket]
"""Returns a socket with TLS on another one, after the handshake. Raises `ssl.SSLError`."""


def forward(cluster: Cluster, service: str, port: int, secure: Secure | None = None) -> int:
    """Forward a free port of this machine to `port` of `service` in the cluster's namespace until the process ends.

    secure: adds TLS between this machine and the pod, so that a client here needs none: the certificate of a Service
    does not name 127.0.0.1.

    Returns 0 if there is no such Service. Raises `InfrastructureError` if the API server refuses, `TransientError` if
    no pod of the Service is ready, and `ssl.SSLError` if the handshake fails.
    """
    found = cluster.get(cluster.path("services", service))
    if found is None:
        return 0
    forwarder = _Forwarder(cluster, found, port, secure)
    forwarder.check()
    listener = socket.create_server(("127.0.0.1", 0))
    atexit.register(listener.close)
    threading.Thread(target=forwarder.serve, args=(listener,), name="port-forward", daemon=True).start()
    return int(listener.getsockname()[1])


class _Forwarder:
    """Connections to the pods of one Service."""

    def __init__(self, cluster: Cluster, service: Manifest, port: int, secure: Secure | None) -> None:
        self._cluster, self._service, self._port, self._secure = cluster, service, port, secure

    def check(self) -> None:
        """Connect once, so that a refusal is known now, and does not look like a broken connection later."""
        self.connect().close()
        if self._secure:
            self._secured(self._secure).close()

    def serve(self, listener: socket.socket) -> None:
        """Relay every connection that `listener` accepts, until it is closed."""
        with suppress(OSError):
            while True:
                local, _ = listener.accept()
                threading.Thread(target=self._relay, args=(local,), name="port-forward", daemon=True).start()

    def connect(self) -> Any:
        """Return a WebSocket whose data channel is a connection to a ready pod."""
        pod, port = self._target()
        return open_websocket(self._cluster, f"{self._cluster.path('pods', pod)}/portforward", [("ports", str(port))])

    def _target(self) -> tuple[str, int]:
        """Return a ready pod of the Service, and the port of its container."""
        service, spec = f"Service {name_of(self._service)}", self._service["spec"]
        ports = {entry["port"]: entry.get("targetPort", entry["port"]) for entry in spec.get("ports", [])}
        if not spec.get("selector") or self._port not in ports:
            known = ", ".join(map(str, ports)) or "none"
            why = f"has no port {self._port}; it has {known}" if spec.get("selector") else "names no pods"
            raise ConfigurationError(f"kubernetes: {service} {why}. Correct the endpoint in the environment.")
        selector = ",".join(f"{name}={value}" for name, value in spec["selector"].items())
        for pod in self._cluster.items("pods", selector):
            if "Ready" in conditions(pod) and not pod["metadata"].get("deletionTimestamp"):
                return name_of(pod), _number(ports[self._port], pod)
        raise TransientError(
            f"kubernetes: no pod of {service} in namespace {self._cluster.namespace} is ready. Look at "
            f"`kubectl get pods -n {self._cluster.namespace}`, and run the same command again."
        )

    def _relay(self, local: socket.socket) -> None:
        """Copy data between `local` and a pod until one of them ends; the store's client retries what breaks off."""
        if self._secure is None:
            return self._relay_plain(local)
        with closing(local), suppress(OSError), closing(self._secured(self._secure)) as remote:
            ends = {local: remote, remote: local}
            while True:
                pending = isinstance(remote, ssl.SSLSocket) and remote.pending()
                for end in [remote] if pending else select.select(list(ends), [], [])[0]:
                    if not (content := end.recv(_CHUNK_BYTES)):
                        return
                    ends[end].sendall(content)

    def _secured(self, secure: Secure) -> socket.socket:
        """Return a socket with TLS to a pod."""
        inner, outer = socket.socketpair()
        threading.Thread(target=self._relay_plain, args=(inner,), name="port-forward", daemon=True).start()
        outer.settimeout(_HANDSHAKE_SECONDS)
        try:
            secured = secure(outer)
        except OSError:
            outer.close()
            raise
        secured.settimeout(None)
        return secured

    def _relay_plain(self, local: socket.socket) -> None:
        """Copy data between `local` and a pod as it is."""
        from websocket import ABNF, WebSocketException

        broken = suppress(TrainyardError, WebSocketException, OSError)
        with closing(local), broken, closing(self.connect()) as remote:
            begun: set[int] = set()  # the first message of each channel repeats the port
            while True:
                pending = isinstance(remote.sock, ssl.SSLSocket) and remote.sock.pending()
                ready = [remote.sock] if pending else select.select([local, remote.sock], [], [])[0]
                if local in ready:
                    if not (content := local.recv(_CHUNK_BYTES)):
                        return
                    remote.send_binary(_DATA + content)
                if remote.sock not in ready:
                    continue
                code, frame = remote.recv_data_frame(control_frame=True)
                if code == ABNF.OPCODE_CLOSE:
                    return
                channel = frame.data[0] if code == ABNF.OPCODE_BINARY else None
                if channel in begun:
                    if channel == _ERROR:
                        return
                    local.sendall(frame.data[1:])
                elif channel is not None:
                    begun.add(channel)


def open_websocket(cluster: Cluster, path: str, query: list[tuple[str, str]]) -> Any:
    """Open a WebSocket to a part of a pod, such as its exec. Its first byte of a message is the channel.

    Raises `InfrastructureError` if the API server refuses, otherwise `TransientError`.
    """
    from kubernetes.stream import ws_client
    from websocket import WebSocketBadStatusException, WebSocketException

    headers: dict[str, str] = {}
    cluster.api.update_params_for_auth(headers, [], ["BearerToken"])
    url = ws_client.get_websocket_url(f"{cluster.host}{path}", query)
    try:
        return ws_client.create_websocket(cluster.api.configuration, url, headers)
    except WebSocketBadStatusException as error:
        refusal = _message(error)
        kind = InfrastructureError if error.status_code in (401, 403) else TransientError
        raise kind(f"kubernetes: {path}: {error.status_code} ({refusal}).") from error
    except (WebSocketException, OSError) as error:
        raise TransientError(
            f"kubernetes: {cluster.host}: no connection to {path} ({error}). Run the same command again."
        ) from error


def _number(port: int | str, pod: Manifest) -> int:
    """Return the number of the container port that a Service names `port`."""
    if isinstance(port, int):
        return port
    containers = pod["spec"]["containers"]
    named = [entry for container in containers for entry in container.get("ports", []) if entry.get("name") == port]
    if not named:
        raise ConfigurationError(f"kubernetes: pod {name_of(pod)} has no port '{port}'. Correct its Service.")
    return int(named[0]["containerPort"])


def _message(error: Any) -> str:
    """Return the message of the API server's Status in a refused handshake, otherwise its status line."""
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.resp_body)["message"])
    return " ".join(str(error).split())[:300]
