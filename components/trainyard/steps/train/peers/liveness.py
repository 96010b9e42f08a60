"""Shows the kubelet that a worker's pod is alive: one whose processes all stand still is killed and replaced.

The gang finds such a worker by its silence and waits for its return, but nothing in a gang may delete a pod, and a Job
takes one for running as long as the kubelet does. The kubelet asks over the network: a command that it runs in the pod
would stand still with the others, or not start in a frozen control group, which counts as no answer at all.
"""

from __future__ import annotations

import errno
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

PORT = 2221
"""In the pod; the gang's NetworkPolicy closes it to all but the pod's node."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0  # chosen: for who connects and asks for nothing

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: the log is the training's."""


class _Server(ThreadingTCPServer):  # HTTPServer would look its own name up, and wait for the DNS
    allow_reuse_address, daemon_threads = True, True


def answer(port: int = PORT) -> None:
    """Answer every request to `port` from now on, in threads, as long as this process runs.

    Where processes of one machine stand for pods, the first one answers: a pod has the port for itself.
    """
    try:
        server = _Server(("", port), _Handler)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return
    threading.Thread(target=server.serve_forever, daemon=True, name="liveness").start()
