"""What the devices that train deliver, measured in the first second of a training, so that a slow one shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts.train import Device
from trainyard.steps.train.engines.tensorflow import strategy
from trainyard.steps.train.expected_devices import devices_error, expected_devices, visible_devices

T = TypeVar("T")

_SECONDS = 0.1  # chosen: how long each measurement of one device lasts
SIZES = {"CPU": (512, 1 << 25), "GPU": (8192, 1 << 30), "TPU": (8192, 1 << 30)}
"""Edge of the square matrices and bytes copied, by kind; chosen: large enough to fill the device, small enough that one
product takes milliseconds."""


def check() -> None:
    """Raise `InfrastructureError` if TensorFlow does not list the expected devices.

    Call it before a strategy is made: it starts no device.
    """
    expected = expected_devices()
    if expected is None or expected.kind == "tpu":  # TensorFlow lists TPUs after their start alone
        return
    devices = tf.config.list_physical_devices(expected.kind.upper())
    if len(devices) != expected.count:
        raise devices_error(expected, f"TensorFlow {tf.version.VERSION} lists {len(devices)}")


def probe() -> list[Device]:
    """Return, and emit, what each device of this process computes and copies in a second.

    Call it in the training process. TFLOP/s are those of a matrix product (float32 on a CPU, else bfloat16 or float16),
    GB/s those of reading and writing.
    """
    details = _details()
    return report([_measured(name, details) for name in strategy.devices()], versions())


def report(devices: list[Device], versions: dict[str, str]) -> list[Device]:
    """Emit an event for each of the `devices`, with the `versions` of what drives them; return them."""
    for device in devices:
        events.emit("devices", **device.model_dump(), **versions)
    return devices


def versions() -> dict[str, str]:
    """Return the versions of what drives the devices: TensorFlow, what it was built with, and the driver."""
    build = tf.sysconfig.get_build_info()
    version_by_name = {"tensorflow": tf.version.VERSION, "driver": visible_devices("gpu").driver}
    if tf.config.list_physical_devices("GPU"):
        version_by_name |= {"cuda": str(build.get("cuda_version", "")), "cudnn": str(build.get("cudnn_version", ""))}
    return {name: value for name, value in version_by_name.items() if value}


def _details() -> dict[str, tuple[str, int]]:
    """Return product name and memory of each GPU, by the device's name."""
    gpus = visible_devices("gpu").gpus or []
    details = {}
    for index, device in enumerate(tf.config.list_physical_devices("GPU")):
        name = tf.config.experimental.get_device_details(device).get("device_name", "GPU")
        details[f"GPU:{index}"] = (str(name), gpus[index].memory_bytes if index < len(gpus) else 0)
    return details


def _measured(name: str, details: dict[str, tuple[str, int]]) -> Device:
    kind = name.partition(":")[0]
    edge, size = SIZES[kind]
    with tf.device(name):
        matrix = tf.cast(tf.random.stateless_normal((edge, edge), (1, 2)) / edge**0.5, strategy.native_precision())
        vector = tf.zeros(size // 4, tf.float32)
        products = calls_per_second(lambda x: tf.matmul(matrix, x), matrix, _wait)
        copies = calls_per_second(lambda x: x + 1.0, vector, _wait)
    return device_record(name, *details.get(name, (kind, 0)), products, copies)


def device_record(name: str, product: str, memory_bytes: int, products: float, copies: float) -> Device:
    """Return the record of a device that did so many products and copies of its kind's SIZES in a second."""
    edge, size = SIZES[name.partition(":")[0]]
    return Device(
        name=name,
        product=product,
        memory_bytes=memory_bytes,
        tflops=round(2 * edge**3 * products / 1e12, 4),
        gb_per_second=round(2 * size * copies / 1e9, 2),
    )


def calls_per_second(function: Callable[[T], T], start: T, wait: Callable[[T], object]) -> float:
    """Return how often `function` runs in a second, each time on the last one's result; the first runs are not counted.

    wait: returns when its argument is computed, for a device works on behind the caller.
    """
    wait(function(start))
    times, seconds = 1, 0.0
    while seconds < _SECONDS:
        begin = time.perf_counter()
        value = start
        for _ in range(times):
            value = function(value)
        wait(value)
        seconds = time.perf_counter() - begin
        if seconds < _SECONDS:
            times = max(times + 1, min(times * 10, int(1.2 * times * _SECONDS / max(seconds, 1e-6))))
    return times / seconds


def _wait(value: tf.Tensor) -> None:
    tf.reshape(value, [-1])[0].numpy()
