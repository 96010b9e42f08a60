"""The training's side of its input workers: connects to them, assigns turns, and notices a lost one."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import TypeVar

import tensorflow as tf

from trainyard import events
from trainyard.errors import ConfigurationError, PeerLost, TransientError
from trainyard.runtime.step import end_with
from trainyard.steps.train.input.shard_ranges import no_autograph
from trainyard.steps.train.peers import channel, settings
from trainyard.steps.train.peers.channel import Message, MessageStream, StallGuard

_CALL_SECONDS = 2.0  # chosen: for one attempt to reach an input worker
# Chosen: share of an input worker's memory limit for prefetched batches.
_PREPARED_SHARE = 1 / 4

_Element = TypeVar("_Element")


def service_key(token: str) -> bytes:
    """Return the handshake key of a training and its input workers in the gang with `token`."""
    return channel.derive_key(token, b"input")


@dataclass(frozen=True)
class Turn:
    """The turn of an input worker: micro-batches whose number modulo `count` is `number`."""

    number: int = 0
    count: int = 1

    def first(self, start: int) -> int:
        """Return the first number of this turn from `start` on."""
        return start + (self.number - start) % self.count


@dataclass(frozen=True)
class InputWorker:
    """An input worker that serves.

    target: address of its dispatcher. source: host:port that its batches come from. examples: its folder of examples.
    fetched: that folder is a copy of a bucket's. memory_mib: its memory limit, 0 for none.
    """

    turn: Turn
    address: str
    target: str
    source: str
    examples: str
    fetched: bool
    memory_mib: int
    stream: MessageStream

    def __str__(self) -> str:
        return f"input worker {self.turn.number} of {self.turn.count} ({self.address})"

    def prepare(self, elements: tf.data.Dataset[_Element]) -> tf.data.Dataset[_Element]:
        """Return `elements` in order, computed by this worker for this training only."""
        options = tf.data.Options()
        if self.memory_mib:
            options.autotune.ram_budget = int(_PREPARED_SHARE * (self.memory_mib << 20))
        service = tf.data.experimental.service
        # A job with a known name would be shared, and part of its batches would go elsewhere.
        return elements.with_options(options).apply(
            service.distribute(service.ShardingPolicy.OFF, self.target, job_name=uuid.uuid4().hex, compression=None)
        )


@dataclass(frozen=True)
class InputService:
    """The input workers of a training, in the order of their turns."""

    workers: list[InputWorker]

    @classmethod
    def connect(cls, addresses: Sequence[str], token: str, deadline_seconds: float) -> InputService:
        """Return the workers at `addresses` (host:port) once all of them serve.

        Raises `TransientError` if one does not answer by the deadline, `ConfigurationError` if its TensorFlow differs.
        """
        end = time.monotonic() + deadline_seconds
        workers = [
            _connect_worker(Turn(number, len(addresses)), address, token, end)
            for number, address in enumerate(addresses)
        ]
        events.emit("input_workers", count=len(workers))
        return cls(workers)

    @classmethod
    def from_environment(cls) -> InputService | None:
        """Return the workers that the environment names once they serve, None without any."""
        addresses, token = settings.input_addresses(), os.environ.get(settings.GANG_TOKEN, "")
        return cls.connect(addresses, token, settings.start_deadline_seconds()) if addresses else None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise `PeerLost` if a worker is lost in the block, or end the process, because a read may wait forever.

        A worker with a damaged copy of the examples is lost until it has fetched another copy.
        """
        done = threading.Event()
        threading.Thread(target=self._watch, args=(done,), daemon=True, name="input-workers").start()
        try:
            yield
        except tf.errors.NotFoundError as error:
            # A restarted worker knows no data set.
            raise PeerLost(f"train: an input worker was restarted ({error.message.splitlines()[0]}).") from error
        except tf.errors.DataLossError as error:
            # Only TensorFlow's message names the worker: "from worker feed-1:2224: …".
            for worker in self.workers:
                if worker.fetched and f" {worker.source}: " in error.message:
                    worker.stream.send("damaged")
                    raise PeerLost(
                        f"train: {worker}: its copy of the examples is damaged ({worker.examples} there). "
                        "It fetches them again, and the training then resumes."
                    ) from error
            raise
        finally:
            done.set()

    def _watch(self, done: threading.Event) -> None:
        guard = StallGuard()
        streams = [worker.stream for worker in self.workers]
        while not done.is_set():
            readable = connection.wait([stream.socket for stream in streams], timeout=0.5)
            guard.excuse(streams)
            for worker in self.workers:
                closed = worker.stream.socket in readable and worker.stream.receive() is None
                if (closed or worker.stream.is_silent()) and not done.is_set():
                    why = "the connection to it is closed" if closed else "it sends no heartbeat"
                    end_with(PeerLost(f"train: {worker} is lost: {why}. The training resumes when it is back."))


def in_turn(
    parts: Sequence[tf.data.Dataset[tuple[tf.Tensor, _Element]]], first: int, end: int, local: int
) -> tf.data.Dataset[_Element]:
    """Return the batches of micro-batches `first` to `end`, `local` of each number, from `parts` in turn.

    Each part yields (number, batch). An unexpected number, from a restarted worker, raises InvalidArgumentError, so
    that no batch is repeated or left out silently.
    """
    numbers = tf.data.Dataset.range(first * local, end * local).map(no_autograph(lambda key: key // local))
    batches = tf.data.Dataset.choose_from_datasets(parts, numbers.map(no_autograph(lambda number: number % len(parts))))

    def checked(expected: tf.Tensor, numbered: tuple[tf.Tensor, _Element]) -> _Element:
        number, batch = numbered
        message = f"an input worker of {len(parts)} gave the micro-batch of another number"
        tf.debugging.assert_equal(number, expected, message)
        return batch

    return tf.data.Dataset.zip(numbers, batches).map(no_autograph(checked))


def _connect_worker(turn: Turn, address: str, token: str, end: float) -> InputWorker:
    host, _, port = address.rpartition(":")
    start, problem = time.monotonic(), "no answer"
    while time.monotonic() < end:
        try:
            stream = MessageStream(channel.connect(host, int(port), service_key(token), _CALL_SECONDS))
        except OSError as error:
            problem = str(error)
            time.sleep(0.2)
            continue
        if (hello := _wait_until_serving(stream)) is not None:
            _check_version(f"input worker {turn.number} of {turn.count} ({address})", str(hello["tensorflow"]))
            return InputWorker(
                turn=turn,
                address=address,
                target=f"grpc://{host}:{int(hello['port'])}",
                source=str(hello["source"]),
                examples=str(hello["examples"]),
                fetched=bool(hello["fetched"]),
                memory_mib=int(hello["memory_mib"]),
                stream=stream,
            )
        problem = "it ended while it fetched the examples"
    raise TransientError(
        f"train: is waiting for input worker {turn.number} of {turn.count} ({address}: {problem}) for "
        f"{time.monotonic() - start:.0f} s, the deadline. Look why it does not start, or run the same command again."
    )


def _wait_until_serving(stream: MessageStream) -> Message | None:
    """Return a worker's message that it serves, None if it ends before; there is no deadline while it lives."""
    while not stream.is_silent():
        connection.wait([stream.socket], timeout=0.5)
        messages = stream.receive()
        if messages is None:
            return None
        for message in messages:
            if message["type"] == "serving":
                return message
    return None


def _check_version(who: str, version: str) -> None:
    ours = tf.version.VERSION
    if version.split(".")[:2] != ours.split(".")[:2]:
        raise ConfigurationError(
            f"train: {who} has TensorFlow {version}, and what trains has {ours}: they exchange graphs. Give both "
            "images the same TensorFlow, or leave input_workers out of the environment."
        )
