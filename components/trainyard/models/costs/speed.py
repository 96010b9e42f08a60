"""Measures the latency of one prediction on one core, and training steps on each kind of device."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import keras
import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.export import Latency
from trainyard.data import trained
from trainyard.errors import ConfigurationError

_WARM_UP_CALLS, _CALLS, _CALL_SECONDS = 10, 200, 1.0  # chosen: enough for a 95th percentile, one second a model
BATCH_SIZE = 32
"""Batch size of the first measurements, the default of `fit`; the others use four times as many."""

_BLOCKS, _BLOCK_SECONDS = 5, 0.4  # chosen: two seconds a setting, in blocks whose variation shows the uncertainty
_RATE = 1e-4  # chosen: small enough that the weights of the copy stay finite


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


@dataclass(frozen=True)
class StepSpeed:
    """One setting. rates: examples a second of each block; first_step_seconds: with tracing and compiling."""

    device: str
    batch_size: int
    xla: bool
    rates: tuple[float, ...]
    first_step_seconds: float


def device_names() -> dict[str, str]:
    """Return the product name of the CPU and of one accelerator of each kind, by device."""
    names = {}
    for kind in ("CPU", "GPU"):
        for device in tf.config.list_physical_devices(kind)[:1]:
            details = tf.config.experimental.get_device_details(device)
            names[f"{kind}:0"] = str(details.get("device_name", kind))
    return names


def step_speeds(model: keras.Model, quick: bool) -> Iterator[StepSpeed | tuple[str, str]]:
    """Yield the speed of `model` on each device, with and without XLA, and with larger batches unless `quick`.

    If a device refuses a setting, yields its name and the reason. A step is the forward pass in training mode,
    gradients of the mean square of the outputs, and SGD, on copies of the model.

    Raises `ConfigurationError` unless it is a functional or sequential Keras model of known input sizes on TensorFlow.
    """
    require_measurable(model)
    for device in device_names():
        with tf.device(device):
            copy = keras.models.clone_model(model)
        for batch_size in (BATCH_SIZE,) if quick else (BATCH_SIZE, 4 * BATCH_SIZE):
            for xla in (False, True):
                try:
                    yield _measure_speed(copy, device, batch_size, xla)
                except tf.errors.OpError as error:
                    yield setting_name(device, batch_size, xla), error.message.splitlines()[0][:200]


def answers(model: keras.Model) -> Iterator[tuple[str, Latency]]:
    """Yield each device and the latency of `model` there, with the host on one core."""
    for device in device_names():
        with tf.device(device):
            copy = keras.models.clone_model(model)
            yield device, model_latency(copy)


def setting_name(device: str, batch_size: int, xla: bool) -> str:
    """Return the name of a setting, such as `GPU:0, batch 128, XLA`."""
    return f"{device}, batch {batch_size}{', XLA' if xla else ''}"


def require_measurable(model: keras.Model) -> None:
    """Raise `ConfigurationError` if `step_speeds` cannot measure `model`."""
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError(f"bench: Keras runs on {keras.backend.backend()}. A model is measured on TensorFlow.")
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ConfigurationError(
            f"bench: {type(model).__name__} is no functional or sequential Keras model with inputs. Build it from "
            "keras.Input, or name a recipe."
        )
    for tensor in model.inputs:
        if None in tensor.shape[1:] or tensor.dtype == "string":
            raise ConfigurationError(
                f"bench: the input '{tensor.name}' is {tensor.dtype} {tuple(tensor.shape[1:])}. Numbers of a known "
                "size can be generated: give keras.Input the whole shape."
            )


def _measure_speed(model: keras.Model, device: str, batch_size: int, xla: bool) -> StepSpeed:
    with tf.device(device):
        model_inputs: Any = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        inputs = keras.tree.map_structure(lambda tensor: _random_input(tensor, batch_size), model_inputs)
        optimizer = keras.optimizers.SGD(_RATE)
        optimizer.build(model.trainable_variables)
        step = tf.function(_step(model, optimizer), jit_compile=xla, autograph=False)
        start = time.perf_counter()
        float(step(inputs))
        first = time.perf_counter() - start
        steps, seconds = 1, _seconds(step, inputs, 1)
        while seconds < _BLOCK_SECONDS:
            steps = max(steps + 1, math.ceil(steps * min(10.0, 1.2 * _BLOCK_SECONDS / max(seconds, 1e-6))))
            seconds = _seconds(step, inputs, steps)
        rates = tuple(batch_size * steps / _seconds(step, inputs, steps) for _ in range(_BLOCKS))
    return StepSpeed(device, batch_size, xla, rates, first)


def _seconds(step: Callable[[object], tf.Tensor], inputs: object, steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        loss = step(inputs)
    float(loss)  # waits for the device
    return time.perf_counter() - start


def _random_input(tensor: keras.KerasTensor, batch_size: int) -> tf.Tensor:
    shape, dtype = (batch_size, *tensor.shape[1:]), tf.as_dtype(tensor.dtype)
    if not dtype.is_floating:
        return tf.zeros(shape, dtype)
    return tf.cast(tf.random.stateless_uniform(shape, (1, 2)), dtype)


def _step(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Callable[[Any], tf.Tensor]:
    variables = model.trainable_variables

    def step(inputs: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs: Any = keras.tree.flatten(model(inputs, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.square(tf.cast(output, tf.float32))) for output in outputs])
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        # Some variables may not affect the outputs.
        optimizer.apply_gradients([pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None])
        return loss

    return step
