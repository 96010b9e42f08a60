"""Latency of one prediction on one core."""

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

_WARM_UP_CALLS, _CALLS, _CALL_SECONDS = 10, 200, 1.0  # chosen: enough for a 95th percentile, one second a model


def latency(call: Callable[[], object]) -> Latency:
    """Return the latency of `call` on one core, after a warm-up."""
    p50, p95 = np.percentile(_milliseconds(call), [50, 95])
    return Latency(p50=round(float(p50), 4), p95=round(float(p95), 4))


def _milliseconds(call: Callable[[], object]) -> list[float]:
    """Return the times of up to _CALLS calls."""
    with _one_core():
        for _ in range(_WARM_UP_CALLS):
            call()
        milliseconds: list[float] = []
        end = time.perf_counter() + _CALL_SECONDS
        while len(milliseconds) < _CALLS and (not milliseconds or time.perf_counter() < end):
            start = time.perf_counter()
            call()
            milliseconds.append(1000 * (time.perf_counter() - start))
    return milliseconds


def model_latency(model: keras.Model) -> Latency:
    """Return the latency of `model` for one example of zeros, in float32."""
    return latency(_prediction_call(model))


def fastest(model: keras.Model) -> float:
    """Return the shortest latency of `model` in milliseconds, as in `model_latency`.

    Other load on the machine can only increase a latency.
    """
    return min(_milliseconds(_prediction_call(model)))


def _prediction_call(model: keras.Model) -> Callable[[], object]:
    example = keras.tree.map_structure(
        lambda tensor: tf.zeros((1, *tensor.shape[1:]), tf.as_dtype(tensor.dtype)), model.input
    )
    exact = trained.in_float32(model)
    answer = tf.function(lambda inputs: exact(inputs, training=False), autograph=False)

    def call() -> list[object]:
        outputs: Any = keras.tree.flatten(answer(example))
        return [output.numpy() for output in outputs]

    return call


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep all threads of this process on one core, because TensorFlow's thread pools cannot shrink later.

    On systems other than Linux, TensorFlow uses as many cores as it likes.
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
