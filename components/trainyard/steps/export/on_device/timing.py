"""Times a LiteRT file where this runs: takes the file from stdin and prints the figures as a JSON object."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

_WARM_UP_CALLS, _CALLS, _SECONDS = 5, 100, 5.0  # chosen: enough for a 95th percentile, at most 5 s a thread count


def main() -> None:
    """Print the machine, its p50 and p95 in milliseconds by the number of threads, and the peak memory in bytes."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        latency = {}
        for threads in sorted({1, os.cpu_count() or 1}):
            interpreter = Interpreter(model_path=file.name, num_threads=threads)
            interpreter.allocate_tensors()
            times = sorted(_milliseconds(interpreter))
            latency[threads] = {"p50": times[len(times) // 2], "p95": times[int(0.95 * (len(times) - 1))]}
            del interpreter
    kib = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib
    print(json.dumps({"machine": _machine(), "latency_ms": latency, "memory_mb": memory / 1e6}))


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


def _machine() -> str:
    """Return the name of the board or of the CPU."""
    for path, key in (("/proc/device-tree/model", ""), ("/proc/cpuinfo", "model name"), ("/proc/cpuinfo", "CPU part")):
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        found = [line.partition(":")[2] if key else line for line in lines if line.startswith(key)]
        if found:
            return f"{found[0].strip(chr(0) + ' ')}, {os.uname().machine}"
    return os.uname().machine


if __name__ == "__main__":
    main()
