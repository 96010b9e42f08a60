"""What accelerators the pool promised this process, and whether they are there: looked at before anything else is paid for.

It reads device files and asks NVIDIA's management library, and loads no TensorFlow: a pod that lost its GPU must not spend
a minute of a GPU node to find that out, and must never train on a CPU by accident.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trainyard import events
from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec.hardware import catalog
from trainyard.spec.pools import DEVICES_VARIABLE

_NVML = "libnvidia-ml.so.1"  # comes with the driver; the container runtime mounts it into pods that have a GPU
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, nvml.h
_VERSION_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, nvml.h
_MEMORY_SHARE = 0.85  # chosen: of the catalog's memory; the driver keeps some, and data sheets round up


@dataclass(frozen=True)
class Promise:
    """What a worker was promised: `count` accelerators of one kind."""

    kind: str
    accelerator: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} {self.accelerator}"


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver describes it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Seen:
    """What is there: files of devices, and where NVIDIA's library answers, its GPUs and its driver's version.

    shared: the GPUs are parts of one (MIG), so there are fewer files than devices.
    """

    files: list[str]
    gpus: list[Gpu] | None
    driver: str
    shared: bool = False


def promised() -> Promise | None:
    """Return what TRAINYARD_DEVICES promises, None where nothing is. Raises `ConfigurationError` where it is no promise."""
    text = os.environ.get(DEVICES_VARIABLE, "")
    if not text:
        return None
    try:
        return Promise(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{DEVICES_VARIABLE}: {text!r} is no promise ({error}). It is set when the pipeline is compiled: compile again."
        ) from error


def check() -> None:
    """Return where all that was promised is there, as far as it can be known without TensorFlow.

    Raises `InfrastructureError` with what was found instead.
    """
    promise = promised()
    if promise is None:
        return
    found = seen(promise.kind)
    events.emit(
        "devices_seen",
        promised=promise,
        files=len(found.files),
        gpus=",".join(gpu.name for gpu in found.gpus or []),
        driver=found.driver or "none",
    )
    if fault := difference(promise, found):
        raise missing(promise, fault)


def missing(promise: Promise, fault: str) -> InfrastructureError:
    """Return the error that ends a process whose devices are not those promised."""
    return InfrastructureError(
        f"devices: the pool promised {promise}, {fault}. Look at the node (driver, device plugin) and at the pool's "
        "accelerator and count in the environment; nothing was trained."
    )


def difference(promise: Promise, found: Seen) -> str:
    """Return what is found instead of what was promised, '' where nothing speaks against it."""
    # Of parts of a GPU the library counts the whole: TensorFlow's list decides there.
    if promise.kind == "gpu" and found.gpus is not None and not found.shared:
        return _gpu_difference(promise, [gpu.name for gpu in found.gpus], [gpu.memory_bytes for gpu in found.gpus])
    where = "no /dev/nvidia* is there" if promise.kind == "gpu" else "no /dev/accel* and no /dev/vfio/* is there"
    if not found.files:
        return where
    if len(found.files) < promise.count and not found.shared:
        return f"{len(found.files)} found: {', '.join(found.files)}"
    return ""


def _gpu_difference(promise: Promise, names: list[str], memory: list[int]) -> str:
    if len(names) != promise.count:
        return f"the driver shows {len(names)} ({', '.join(names) or 'none'})"
    known = catalog().accelerators.get(promise.accelerator)
    if known is None:
        return ""
    # The labels of the GPU operator write a product's name with dashes.
    other = [name for name in names if known.products and name.replace(" ", "-") not in known.products]
    if other:
        return f"the driver shows {', '.join(other)}"
    least = (known.memory_gib or 0) * _MEMORY_SHARE * 2**30
    small = [size for size in memory if size < least]
    if small:
        return f"one has {small[0] / 2**30:.0f} GiB of memory instead of {known.memory_gib:g}"
    return ""


def seen(kind: str, root: Path = Path("/")) -> Seen:
    """Return the accelerators of `kind` that this process can open, by the files below `root` and NVIDIA's library."""
    if kind == "tpu":
        numbered = [*_numbered(root / "dev", r"accel\d+"), *_numbered(root / "dev/vfio", r"\d+")]
        return Seen(numbered, None, "")
    files = _numbered(root / "dev", r"nvidia\d+")
    shared = bool(_numbered(root / "dev/nvidia-caps", r"nvidia-cap\d+"))
    gpus, driver = _nvml()
    return Seen(files, gpus, driver or _driver_file(root), shared)


def _numbered(folder: Path, pattern: str) -> list[str]:
    try:
        return sorted(str(path) for path in folder.iterdir() if re.fullmatch(pattern, path.name))
    except OSError:
        return []


def _driver_file(root: Path) -> str:
    """Return the driver's version as its kernel module tells it, '' where there is none."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else ""


def _nvml() -> tuple[list[Gpu] | None, str]:
    """Return the GPUs and the driver's version as NVIDIA's library tells them; (None, '') where there is no such library.

    Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
    """
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        return None, ""
    if library.nvmlInit_v2():
        return [], ""
    try:
        version = ctypes.create_string_buffer(_VERSION_BYTES)
        library.nvmlSystemGetDriverVersion(version, _VERSION_BYTES)
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return [], version.value.decode()
        gpus = [_gpu(library, index) for index in range(count.value)]
        return [gpu for gpu in gpus if gpu], version.value.decode()
    finally:
        library.nvmlShutdown()


def _gpu(library: ctypes.CDLL, index: int) -> Gpu | None:
    """Return one GPU, None where the container may not open it."""
    device = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return None
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    library.nvmlDeviceGetName(device, name, _NAME_BYTES)
    library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    return Gpu(name.value.decode(), memory[0])
