"""The program of an input worker: prepares batches for a training until that has committed its output.

TensorFlow's dispatcher, its only worker and the heartbeat share one process, so that they end together: a restarted
dispatcher knows no data set, and the training notices instead of reading some batches twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import tensorflow as tf

from trainyard import events, uris
from trainyard.data.examples import ExampleFolder
from trainyard.errors import ConfigurationError, ExitCode, TrainyardError, TransientError, failure_fields
from trainyard.graph import remedy
from trainyard.process import memory
from trainyard.steps.train.input.service.client import service_key
from trainyard.steps.train.peers import channel, settings
from trainyard.steps.train.peers.channel import HEARTBEAT_SECONDS, Message, MessageStream
from trainyard.storage import cache, storage
from trainyard.uris import is_bucket

_LOOK_SECONDS = 5.0  # chosen: interval of checks for the end of the training
# Chosen: when the buffers of a killed training's job are freed.
_GC_CHECK_MS, _GC_TIMEOUT_MS = 10_000, 60_000


@dataclass(frozen=True)
class _Servers:
    """TensorFlow's servers, which serve as long as this object exists.

    port: the dispatcher's. source: host:port that the batches come from.
    """

    port: int
    source: str
    dispatcher: tf.data.experimental.service.DispatchServer
    worker: tf.data.experimental.service.WorkerServer

    @classmethod
    def start(cls, host: str, port: int) -> _Servers:
        """Start the servers on the two ports behind `port`. Raises `TransientError` if a port is taken."""
        service, first, source = tf.data.experimental.service, port + 1, f"{host}:{port + 2}"
        kept = {"job_gc_check_interval_ms": _GC_CHECK_MS, "job_gc_timeout_ms": _GC_TIMEOUT_MS}
        try:
            dispatcher = service.DispatchServer(service.DispatcherConfig(first, **kept))
            worker = service.WorkerServer(
                service.WorkerConfig(f"localhost:{first}", worker_address=source, port=first + 1)
            )
        except RuntimeError as error:  # of TensorFlow 2.21, whose text does not say why
            raise TransientError(
                f"train: TensorFlow's data service could not listen on the ports {first} and {first + 1} ({error}). "
                "Run the same command again."
            ) from error
        return cls(first, source, dispatcher, worker)


def serve(address: str, token: str, examples: str, ended: Callable[[], bool]) -> None:
    """Serve clients that know `token` at host:port and the two ports behind it, until `ended()`.

    First fetches the training split of `examples` if it is in a bucket; clients that connect meanwhile wait.
    """
    host, _, port = address.rpartition(":")
    acceptor = channel.Acceptor(channel.listen(host, int(port)), service_key(token))
    servers = _Servers.start(host, int(port))
    with ThreadPoolExecutor(1) as pool:
        _serve_clients(acceptor, lambda: pool.submit(_fetch_examples, examples, servers), lambda: pool.submit(ended))


def _serve_clients(
    acceptor: channel.Acceptor, prepare: Callable[[], Future[Message]], look: Callable[[], Future[bool]]
) -> None:
    """Send every client the prepared data set and heartbeats, until a `look` says that the training has ended.

    If a client found the copy of the examples damaged, prepares it again before telling any other client. Raises the
    preparation's error. A storage that does not answer delays no heartbeat.
    """
    beat_at, looked_at = 0.0, time.monotonic()
    ended: Future[bool] | None = None
    prepared = prepare()
    waiting: list[MessageStream] = []
    clients: list[MessageStream] = []
    while True:
        readable = connection.wait(
            [*acceptor.sockets(), *(stream.socket for stream in (*waiting, *clients))], timeout=0.2
        )
        received = {s: s.receive() for s in (*waiting, *clients) if s.socket in readable}
        gone = [stream for stream, stream_messages in received.items() if stream_messages is None]
        messages = [message for stream_messages in received.values() for message in stream_messages or ()]
        if prepared.done() and any(message["type"] == "damaged" for message in messages):
            cache.discard(Path(prepared.result()["examples"]))
            prepared = prepare()
        waiting += [MessageStream(client) for client in acceptor.accept(readable)]
        if prepared.done():
            hello = prepared.result()
            gone += [stream for stream in waiting if not stream.send("serving", **hello)]
            clients, waiting = [*clients, *waiting], []
        if time.monotonic() - beat_at > HEARTBEAT_SECONDS:
            beat_at = time.monotonic()
            events.emit_alive()
            gone += [stream for stream in (*waiting, *clients) if not stream.send("beat")]
        for stream in {*gone}:
            stream.close()
        waiting, clients = [[s for s in streams if s not in gone] for streams in (waiting, clients)]
        if ended is None and time.monotonic() - looked_at > _LOOK_SECONDS:
            ended = look()
        if ended is not None and ended.done():
            if ended.result():
                return
            looked_at, ended = time.monotonic(), None


def _fetch_examples(examples: str, servers: _Servers) -> Message:
    """Fetch the files that a training reads through this worker; return the message that describes them."""
    splits = ExampleFolder(examples).document.splits
    other_files = {file for name, split in splits.items() if name != "train" for file in split.files}
    folder = storage.local(examples, remedy("preprocess"), lambda name: name not in other_files)
    events.emit("input_worker", examples=str(folder), port=servers.port)
    return {
        "examples": str(folder),
        "fetched": is_bucket(examples),
        "port": servers.port,
        "source": servers.source,
        "tensorflow": tf.version.VERSION,
        "memory_mib": memory.limit_mib() or 0,
    }


def main() -> None:
    """Serve at this worker's address until the training has ended; exits with the step's exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.input.service.server", description=__doc__)
    for name in ("examples", "output"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    code = ExitCode.DONE
    try:
        _serve_worker(options.examples, options.output)
    except TrainyardError as error:
        code = error.exit_code
        events.emit("failed", step="train", **failure_fields(error))
    sys.stderr.flush()
    os._exit(int(code))


def _serve_worker(examples: str, output: str) -> None:
    addresses = settings.input_addresses()
    index, token = os.environ.get(settings.WORKER_INDEX, ""), os.environ.get(settings.GANG_TOKEN, "")
    if not index.isdigit() or int(index) >= len(addresses) or not token:
        raise ConfigurationError(
            f"{settings.INPUT_WORKERS}, {settings.WORKER_INDEX}, {settings.GANG_TOKEN}: {','.join(addresses)!r} has no "
            f"input worker {index!r}, or the token is missing. Trainyard sets all three: start it by an environment "
            "with input_workers."
        )
    uris.bypass_proxy(addresses)
    serve(addresses[int(index)], token, examples, lambda: storage.committed(output) is not None)


if __name__ == "__main__":
    main()
