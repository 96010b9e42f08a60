"""Times a LiteRT file where this runs: takes the file from stdin and prints the figures as a JSON object.

Without a file it prints what the machine has. It runs by `python -c`, and so imports nothing else of Trainyard.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

_WARM_UP_CALLS, _CALLS, _SECONDS = 5, 100, 5.0  # chosen: enough for a 95th percentile, at most 5 s a thread count
_PROBE_BYTES = 1 << 20  # written to find a full disk; chosen
# Source: the parts of implementer 0x41, ARM, in arch/arm64/include/asm/cputype.h of Linux.
_ARM_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73",
    "0xd0a": "Cortex-A75",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
}


def main() -> None:
    """Print the machine, its p50 and p95 in milliseconds by the number of threads, and the peak memory."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    try:
        with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            size = file.tell()
            file.write(b"" if size else bytes(_PROBE_BYTES))
            file.flush()
            found = _times(Interpreter, file.name) if size else _summary(file.name)
    except OSError as error:
        found = {"unwritable": error.strerror or str(error)}
    print(json.dumps(found))


def machine() -> str:
    """Return the name of the board, if it has one, and of the CPU."""
    board = _line("/proc/device-tree/model")
    part = _line("/proc/cpuinfo", "CPU part")
    cpu = _line("/proc/cpuinfo", "model name") or _ARM_PARTS.get(part, part)
    name = f"{board} ({cpu})" if board and cpu else board or cpu
    return f"{name}, {os.uname().machine}" if name else os.uname().machine


def _summary(path: str) -> dict[str, object]:
    free = shutil.disk_usage(Path(path).parent).free
    return {
        "machine": machine(),
        "cpus": os.cpu_count() or 1,
        "python": platform.python_version(),
        "litert": metadata.version("ai-edge-litert"),
        "free_mb": free / 1e6,
    }


def _times(interpreter_type, path: str) -> dict[str, object]:  # type: ignore[no-untyped-def]
    import numpy as np  # which LiteRT needs, too

    latency = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        interpreter = interpreter_type(model_path=path, num_threads=threads)
        interpreter.allocate_tensors()
        for tensor in interpreter.get_input_details():  # their memory holds anything, such as an index out of bounds
            interpreter.set_tensor(tensor["index"], np.zeros(tensor["shape"], tensor["dtype"]))
        times = sorted(_milliseconds(interpreter))
        latency[threads] = {"p50": times[len(times) // 2], "p95": times[int(0.95 * (len(times) - 1))]}
        del interpreter
    kib = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib
    return {"machine": machine(), "latency_ms": latency, "memory_mb": memory / 1e6}


def _milliseconds(interpreter) -> list[float]:  # type: ignore[no-untyped-def]
    """Return the times of answers to zeros, which cost what other values cost."""
    for _ in range(_WARM_UP_CALLS):
        interpreter.invoke()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < _CALLS and (not times or time.perf_counter() < end):
        start = time.perf_counter()
        interpreter.invoke()
        times.append(1000 * (time.perf_counter() - start))
    return times


def _line(path: str, key: str = "") -> str:
    """Return the first line of the file, or the value of its first line with the key; '' if there is none."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = [line.partition(":")[2] if key else line for line in lines if line.startswith(key)]
    return found[0].strip(chr(0) + " ") if found else ""


if __name__ == "__main__":
    main()
