"""Compares the accelerators that the pool promises with those that this process sees, and measures their speed.

Reads device files and NVIDIA's management library and loads no TensorFlow: a pod that lost its GPU must fail at once,
and must never train on a CPU by accident.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from trainyard import events
from trainyard.contract.artifacts.train import Device
from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec.hardware.catalog import catalog
from trainyard.spec.hardware.pools import DEVICES_VARIABLE

_MEMORY_SHARE = 0.85  # chosen: share of the catalog's memory; the driver reserves some, and data sheets round up
T = TypeVar("T")
_SECONDS = 0.1  # chosen: duration of each measurement of a device
SIZES = {"CPU": (512, 1 << 25), "GPU": (8192, 1 << 30), "TPU": (8192, 1 << 30)}
"""Edge of the square matrices and bytes copied, by kind. Chosen: fills the device, and a product takes milliseconds."""


@dataclass(frozen=True)
class ExpectedDevices:
    """The accelerators of a worker by the environment's pool: `count` of one kind."""

    kind: str
    accelerator: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} {self.accelerator}"


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class VisibleDevices:
    """The device files of this process and, if NVIDIA's library answers, its GPUs and driver version.

    gpus: None without that library. shared: the GPUs are MIG partitions, so there are fewer files than devices.
    """

    files: list[str]
    gpus: list[Gpu] | None
    driver: str
    shared: bool = False


def expected_devices() -> ExpectedDevices | None:
    """Return the devices that TRAINYARD_DEVICES names, or None. Raises `ConfigurationError` if it is malformed."""
    text = os.environ.get(DEVICES_VARIABLE, "")
    if not text:
        return None
    try:
        return ExpectedDevices(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{DEVICES_VARIABLE}: {text!r} names no devices ({error}). "
            "It is set when the pipeline is compiled: compile again."
        ) from error


def check_devices() -> None:
    """Raise `InfrastructureError` if an expected device is missing, as far as this shows without TensorFlow."""
    expected = expected_devices()
    if expected is None:
        return
    visible = visible_devices(expected.kind)
    events.emit(
        "devices_seen",
        expected=expected,
        files=len(visible.files),
        gpus=",".join(gpu.name for gpu in visible.gpus or []),
        driver=visible.driver or "none",
    )
    if fault := difference(expected, visible):
        raise devices_error(expected, fault)


def devices_error(expected: ExpectedDevices, fault: str) -> InfrastructureError:
    """Return the error for a process whose devices differ from the expected ones."""
    return InfrastructureError(
        f"devices: the pool should have {expected}, {fault}. Look at the node (driver, device plugin) and at the "
        "pool's accelerator and count in the environment; nothing was trained."
    )


def difference(expected: ExpectedDevices, visible: VisibleDevices) -> str:
    """Describe how the visible devices differ from the expected ones; '' if they match."""
    # The library counts a partitioned GPU as one, so TensorFlow's list decides for MIG.
    if expected.kind == "gpu" and visible.gpus is not None and not visible.shared:
        return _gpu_difference(expected, visible.gpus)
    if not visible.files:
        return "no /dev/nvidia* is there" if expected.kind == "gpu" else "no /dev/accel* and no /dev/vfio/* is there"
    if len(visible.files) < expected.count and not visible.shared:
        return f"{len(visible.files)} found: {', '.join(visible.files)}"
    return ""


def _gpu_difference(expected: ExpectedDevices, gpus: list[Gpu]) -> str:
    if len(gpus) != expected.count:
        return f"the driver shows {len(gpus)} ({', '.join(gpu.name for gpu in gpus) or 'none'})"
    known = catalog().accelerators.get(expected.accelerator)
    if known is None:
        return ""
    # The GPU operator's labels spell product names with dashes.
    other = [gpu.name for gpu in gpus if known.products and gpu.name.replace(" ", "-") not in known.products]
    if other:
        return f"the driver shows {', '.join(other)}"
    least = (known.memory_gib or 0) * _MEMORY_SHARE * 2**30
    small = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes < least]
    if small:
        return f"one has {small[0] / 2**30:.0f} GiB of memory instead of {known.memory_gib:g}"
    return ""


def visible_devices(kind: str, root: Path = Path("/")) -> VisibleDevices:
    """Return the accelerators of `kind` that this process can open: device files below `root`, and NVIDIA's library."""
    if kind == "tpu":
        numbered = [*_device_files(root / "dev", r"accel\d+"), *_device_files(root / "dev/vfio", r"\d+")]
        return VisibleDevices(numbered, None, "")
    files = _device_files(root / "dev", r"nvidia\d+")
    # 1 and 2 configure and monitor MIG and are there without it (/proc/driver/nvidia-caps/mig-minors, driver 580).
    shared = bool(_device_files(root / "dev/nvidia-caps", r"nvidia-cap(?![12]$)\d+"))
    gpus, driver = _nvml()
    return VisibleDevices(files, gpus, driver or _driver_file(root), shared)


def _device_files(folder: Path, pattern: str) -> list[str]:
    try:
        return sorted(str(path) for path in folder.iterdir() if re.fullmatch(pattern, path.name))
    except OSError:
        return []


def _driver_file(root: Path) -> str:
    """Return the driver version from its kernel module, '' without one."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else ""


def _nvml() -> tuple[list[Gpu] | None, str]:
    """Return GPUs and driver version from NVIDIA's library; (None, '') if there is no library."""
    try:
        import pynvml  # only in the image gpu
    except ImportError:
        return None, ""
    version = ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (None if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else []), ""
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        gpus = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [gpu for gpu in gpus if gpu], version
    except pynvml.NVMLError:
        return [], version
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: ModuleType, index: int) -> Gpu | None:
    """Return one GPU, or None if the container may not open it."""
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        return Gpu(nvml.nvmlDeviceGetName(device), nvml.nvmlDeviceGetMemoryInfo(device).total)
    except nvml.NVMLError:
        return None


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
