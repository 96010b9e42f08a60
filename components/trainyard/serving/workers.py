"""Several processes that serve one model on the same ports, and the parent that starts them again.

The kernel gives each connection to one of them (SO_REUSEPORT). Each worker loads the model and new versions.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any

from trainyard import events
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError
from trainyard.process.signals import on_signals
from trainyard.serving.options import METRICS_FOLDER, Addresses, Options
from trainyard.uris import with_port

_AGAIN_SECONDS = 5.0  # between two starts of a worker; chosen: loading TensorFlow costs a core for seconds
_END_SECONDS = 55.0  # chosen: twice the time that a server takes for its requests, and then for its log
_POLL_SECONDS = 0.2  # chosen


def serve(options: Options, started: Callable[[Addresses], None]) -> None:
    """Answer by `options.workers` processes until SIGTERM or SIGINT comes; see `server.serve`.

    A worker that ends is started again. Raises what the first start of a worker raises.
    """
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(on_signals(stop.set, [signal.SIGTERM, signal.SIGINT]))
        port = stack.enter_context(_reserved(options.host, options.port, "--port"))
        rpc = options.grpc_port
        if rpc is not None:
            rpc = stack.enter_context(_reserved(options.host, rpc, "--grpc-port"))
        stack.enter_context(_metrics_folder())
        workers = [_Worker(number, replace(options, port=port, grpc_port=rpc)) for number in range(options.workers)]
        stack.callback(_end, workers)
        addresses = [worker.first_answer(stop) for worker in workers]
        if addresses[0] is None:
            return
        started(addresses[0])
        while not stop.is_set():
            connection.wait([worker.process.sentinel for worker in workers if worker.process.is_alive()], _POLL_SECONDS)
            for worker in workers:
                worker.keep_alive()


class _Worker:
    """A process that serves by `options`."""

    def __init__(self, number: int, options: Options) -> None:
        self._number, self._options = number, options
        self._was_alive = True
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = get_context("spawn").Pipe()
        self.process = get_context("spawn").Process(target=_work, args=[self._options, theirs], daemon=True)
        self.process.start()
        theirs.close()  # otherwise the end of the worker does not end the pipe
        self._since = time.monotonic()

    def first_answer(self, stop: threading.Event) -> Addresses | None:
        """Wait until it serves; None if `stop` is set meanwhile. Raises the worker's error."""
        while not stop.is_set():
            if self._pipe.poll(_POLL_SECONDS):
                found = self._received()
                if isinstance(found, Addresses):
                    return found
                raise found or InfrastructureError(
                    f"--workers: worker {self._number} ended before it served, with exit code {self._exit_code()}. "
                    "Each needs the memory of a server. Give it more, or fewer workers."
                )
        return None

    def keep_alive(self) -> None:
        """Start it again if it ended."""
        if self.process.is_alive():
            return
        if self._was_alive:
            error = self._received()
            while isinstance(error, Addresses):
                error = self._received()
            why = error or f"exit code {self._exit_code()}"
            events.emit("warning", message=f"Worker {self._number} ended ({why}). It is started again.")
            _forget_gauges(self.process.pid)
        self._was_alive = False
        if time.monotonic() - self._since > _AGAIN_SECONDS:
            self._start()
            self._was_alive = True

    def _received(self) -> Addresses | TrainyardError | None:
        """Return the next message of the worker, None if it ended."""
        try:
            found: Addresses | TrainyardError = self._pipe.recv()
        except EOFError:
            return None
        return found

    def _exit_code(self) -> int | None:
        self.process.join()
        return self.process.exitcode


def _work(options: Options, parent: Connection[Any, Any]) -> None:
    """Serve until the parent says so or has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, too
    threads = str(max(1, len(os.sched_getaffinity(0)) // options.workers))
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(name, threads)
    threading.Thread(target=_follow, args=[parent], daemon=True).start()
    from trainyard.serving import server

    def started(addresses: Addresses) -> None:
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            raise ConfigurationError("--workers: this machine has a GPU, whose memory one process takes. Leave it out.")
        parent.send(addresses)

    try:
        server.serve(options, started)
    except TrainyardError as error:
        parent.send(error)


def _follow(parent: Connection[Any, Any]) -> None:
    """End this process when the parent has ended."""
    connection.wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)


def _end(workers: list[_Worker]) -> None:
    end = time.monotonic() + _END_SECONDS
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(max(0.0, end - time.monotonic()))
        worker.process.kill()
        worker.process.join()


@contextmanager
def _reserved(host: str, port: int, option: str) -> Iterator[int]:
    """Keep a port for the workers while the block runs; 0 is a free one.

    Raises `ConfigurationError` if another process has it.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:  # fails if another server shares the port with its own workers
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        kept = socket.socket(family, kind)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(address)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"{with_port(host, port)}: cannot be listened on ({error}). Give another --host or {option}."
        ) from error
    with kept:
        yield int(address[1])


@contextmanager
def _metrics_folder() -> Iterator[None]:
    """Have the workers keep their metrics in one folder, from which each answers for all."""
    before = os.environ.get(METRICS_FOLDER)
    with tempfile.TemporaryDirectory(prefix="trainyard-metrics-") as folder:
        os.environ[METRICS_FOLDER] = folder
        try:
            yield
        finally:
            os.environ.pop(METRICS_FOLDER)
            if before is not None:
                os.environ[METRICS_FOLDER] = before


def _forget_gauges(process: int | None) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(process)  # type: ignore[no-untyped-call]
