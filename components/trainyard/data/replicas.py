"""A model on every local accelerator, which answer batches in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Generic, TypeVar

import tensorflow as tf

Model = TypeVar("Model")
Batch = TypeVar("Batch")
Answer = TypeVar("Answer")


class Replicas(Generic[Model]):
    """A model on each GPU of this machine; without GPUs on each logical CPU, which is one by default.

    first: the model on TensorFlow's default device. load: returns it again, with its variables on the current device.
    """

    def __init__(self, first: Model, load: Callable[[], Model]) -> None:
        self.first = first
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        self._models: list[tuple[Model, str | None]] = [(first, None)]
        for device in devices[1:]:
            with tf.device(device.name):
                self._models.append((load(), device.name))

    def map(self, ask: Callable[[Model, Batch], Answer], batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answer]]:
        """Yield each batch with its answer, in order. A model is asked for one batch at a time, each in its thread.

        Each batch is computed whole by one device, so the answers do not depend on the number of devices. At most one
        batch more than there are devices is in memory.
        """
        if len(self._models) == 1:
            yield from ((batch, ask(self.first, batch)) for batch in batches)
            return

        def answer(model: Model, device: str | None, batch: Batch) -> Answer:
            with tf.device(device):
                return ask(model, batch)

        waiting: deque[tuple[Batch, Future[Answer]]] = deque()
        with ExitStack() as stack:
            threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in self._models]
            for number, batch in enumerate(batches):
                at = number % len(self._models)
                waiting.append((batch, threads[at].submit(answer, *self._models[at], batch)))
                if len(waiting) > len(self._models):
                    done, future = waiting.popleft()
                    yield done, future.result()
            for done, future in waiting:
                yield done, future.result()
