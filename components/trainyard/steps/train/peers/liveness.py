"""Answers the kubelet's liveness probe: a pod whose processes are all frozen is killed and replaced.

The gang notices a frozen worker by its silence and waits for it, but nothing in a gang may delete a pod, and a Job
counts a pod as running as long as the kubelet does. The probe uses the network, because a command in the pod would
freeze with the others, or not start in a frozen control group, which counts as no answer. Only the standard library is
imported, because tests run this source in pods without Trainyard.
"""

from __future__ import annotations

import errno
import socket
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

PORT = 2221
"""Port in the pod; the gang's NetworkPolicy admits only the pod's node."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0  # chosen: for clients that send no request

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing: the log is the training's."""


class _Server(ThreadingTCPServer):  # HTTPServer would look up its own name and wait for DNS
    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener


def answer(port: int = PORT) -> None:
    """Answer every request to `port` from threads while this process runs.

    If processes of one machine stand for pods, as in tests, the first one answers.
    """
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = _Server(socket.create_server(("", port), family=family, dualstack_ipv6=both))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return
    threading.Thread(target=server.serve_forever, daemon=True, name="liveness").start()
