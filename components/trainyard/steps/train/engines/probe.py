"""Measures the speed of the training devices in the first second, so that a slow device is noticed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from trainyard import events
from trainyard.contract.artifacts.train import Device

T = TypeVar("T")

_SECONDS = 0.1  # chosen: duration of each measurement of a device
SIZES = {"CPU": (512, 1 << 25), "GPU": (8192, 1 << 30), "TPU": (8192, 1 << 30)}
"""Edge of the square matrices and bytes copied, by kind. Chosen: fills the device, and a product takes milliseconds."""


def report(devices: list[Device], versions: dict[str, str]) -> list[Device]:
    """Emit an event for each of the `devices`, with the driver `versions`; return the devices."""
    for device in devices:
        events.emit("devices", **device.model_dump(), **versions)
    return devices


def device_record(name: str, product: str, memory_bytes: int, products: float, copies: float) -> Device:
    """Return the record of a device from its products and copies a second, of its kind's SIZES."""
    edge, size = SIZES[name.partition(":")[0]]
    return Device(
        name=name,
        product=product,
        memory_bytes=memory_bytes,
        tflops=round(2 * edge**3 * products / 1e12, 4),
        gb_per_second=round(2 * size * copies / 1e9, 2),
    )


def calls_per_second(function: Callable[[T], T], start: T, wait: Callable[[T], object]) -> float:
    """Return the calls a second of `function`, each on the last result, without the first call.

    wait: returns when its argument is computed, because a device runs asynchronously. At most ten times as many calls
    as before run between two waits, so that the wait's own time does not count.
    """
    wait(function(start))
    runs, seconds = 0, 0.0
    while seconds < _SECONDS:
        missing = 1.05 * runs * (_SECONDS - seconds) / max(seconds, 1e-6)
        now, begin, value = max(1, min(10 * runs, int(missing))), time.perf_counter(), start
        for _ in range(now):
            value = function(value)
        wait(value)
        runs, seconds = runs + now, seconds + time.perf_counter() - begin
    return runs / seconds
