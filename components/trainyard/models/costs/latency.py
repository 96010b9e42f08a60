"""How long one answer takes on one core: `python -m trainyard.models.costs.latency OUTPUT…`, of what train left there.

A sweep runs it as a process, because it does not load TensorFlow itself. It prints the JSON of a `Latency` a line, null
for a model with code of its own, which is not run here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.export import Latency
from trainyard.data import trained
from trainyard.errors import ConfigurationError

_WARM_UP_CALLS, _CALLS, _CALL_SECONDS = 10, 200, 1.0  # chosen: enough for a 95th percentile, one second a model


def latency(call: Callable[[], object]) -> Latency:
    """Return the time of one `call` on one core, warm-up left out."""
    with _one_core():
        for _ in range(_WARM_UP_CALLS):
            call()
        milliseconds: list[float] = []
        end = time.perf_counter() + _CALL_SECONDS
        while len(milliseconds) < _CALLS and (not milliseconds or time.perf_counter() < end):
            start = time.perf_counter()
            call()
            milliseconds.append(1000 * (time.perf_counter() - start))
    p50, p95 = np.percentile(milliseconds, [50, 95])
    return Latency(p50=round(float(p50), 4), p95=round(float(p95), 4))


def of_model(model: keras.Model) -> Latency:
    """Return the time that `model` takes for one example, of zeros, in float32."""
    example = keras.tree.map_structure(
        lambda tensor: tf.zeros((1, *tensor.shape[1:]), tf.as_dtype(tensor.dtype)), model.input
    )
    exact = trained.in_float32(model)
    answer = tf.function(lambda inputs: exact(inputs, training=False), autograph=False)

    def call() -> list[object]:
        outputs: Any = keras.tree.flatten(answer(example))
        return [output.numpy() for output in outputs]

    return latency(call)


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep every thread of this process on one core, for TensorFlow's own thread pools cannot be made smaller later.

    Only Linux can; elsewhere TensorFlow's formats use as many cores as they like.
    """
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    try:
        _pin(threads, {min(before)})
        yield
    finally:
        _pin(threads, before)


def _pin(threads: list[int], cores: set[int]) -> None:
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:  # it ended meanwhile
            continue


def main() -> None:
    """Print the latency of each model, as it is known."""
    tf.config.set_visible_devices([], "GPU")
    for output in sys.argv[1:]:
        try:
            print(of_model(trained.load(output)).model_dump_json(), flush=True)
        except ConfigurationError:
            print("null", flush=True)


if __name__ == "__main__":
    main()
