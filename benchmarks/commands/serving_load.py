"""`trainyard serve` at 70 % of its measured limit while new versions are pushed: errors, p99 and memory.

python -m benchmarks.commands.serving_load [SECONDS [RELOAD_SECONDS]] prints a table; by default ten minutes with a
reload each minute. Latencies count from the time at which a request was due, so that a pause delays those after it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.commands.predict import train
from benchmarks.commands.serving import percentile, rest, table_rows
from trainyard.contract.version import champion, set_champion

_CLIENTS, _SHARE, _LIMIT_SECONDS, _PARTS = 8, 0.7, 10.0, 4


@dataclass
class _Load:
    """Requests of one client: (seconds after the start, latency in seconds), and the errors."""

    answered: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def section(seconds: float, reload_seconds: float) -> str:
    """Return the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train("tabular", folder)
        models = folder / "runs" / "tabular" / "models"
        rows = table_rows(models / "1")
        with _serving(models) as (process, port):
            limit = len(_asked(port, rows, _LIMIT_SECONDS).answered) / _LIMIT_SECONDS
            memory: list[float] = []
            ended = threading.Event()
            beside = [
                threading.Thread(target=_push, args=(models, reload_seconds, ended)),
                threading.Thread(target=_watch, args=(process, memory, ended)),
            ]
            for thread in beside:
                thread.start()
            load = _asked(port, rows, seconds, rate=limit * _SHARE)
            ended.set()
            for thread in beside:
                thread.join()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/m") as answer:
                served = json.load(answer)["model_version_status"][0]["version"]
    return "\n".join(_lines(load, memory, seconds, limit, served))


def _lines(load: _Load, memory: list[float], seconds: float, limit: float, served: str) -> Iterator[str]:
    watched = len(memory)
    asked = f"Limit {limit:,.0f} rows/s, asked for {limit * _SHARE:,.0f}"
    yield f"{asked}; {len(load.answered):,} answers in {seconds:g} s,"
    yield f"{len(load.errors)} errors; version {served} serves at the end."
    yield from sorted(set(load.errors))[:3]
    yield ""
    yield "| part | answers | p50, ms | p99, ms | longest, ms | memory, MB |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for part in range(_PARTS):
        first, last = seconds * part / _PARTS, seconds * (part + 1) / _PARTS
        times = [latency for start, latency in load.answered if first <= start < last] or [float("nan")]
        resident = max(memory[watched * part // _PARTS : watched * (part + 1) // _PARTS], default=float("nan"))
        values = [percentile(times, 50), percentile(times, 99), max(times) * 1000]
        yield (
            f"| {part + 1} | {len(times):,} | " + " | ".join(f"{each:.2f}" for each in values) + f" | {resident:.0f} |"
        )


def _asked(port: int, rows: list[dict[str, Any]], seconds: float, rate: float = 0.0) -> _Load:
    """Ask for `seconds`, `rate` rows a second in all, 0 for as many as are answered."""
    loads = [_Load() for _ in range(_CLIENTS)]
    start = time.perf_counter()

    def ask(client: int) -> None:
        send: Callable[[int], None] | None = None
        own, number = loads[client], 0
        while (now := time.perf_counter() - start) < seconds:
            due = (number * _CLIENTS + client) / rate if rate else now
            if due >= seconds:
                break
            time.sleep(max(0.0, due - now))
            try:
                send = send or rest(port, rows)
                send(number)
                own.answered.append((due, time.perf_counter() - start - due))
            except (OSError, AssertionError, ValueError) as error:
                own.errors.append(f"{type(error).__name__}: {error}"[:200])
                send = None
            number += 1

    threads = [threading.Thread(target=ask, args=[client]) for client in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _Load([each for load in loads for each in load.answered], [each for load in loads for each in load.errors])


def _push(models: Path, every: float, ended: threading.Event) -> None:
    """Leave the champion's files as a new version, and let it serve, at an interval of `every` seconds."""
    while not ended.wait(every):
        best = champion(str(models))
        assert best is not None
        target = models / str(best.version + 1)
        shutil.copytree(best.path, models / ".copy")
        (models / ".copy").rename(target)
        set_champion(str(models), best.model_copy(update={"version": best.version + 1, "path": str(target)}))


def _watch(process: int, memory: list[float], ended: threading.Event) -> None:
    """Append the resident MB of `process` each second."""
    while not ended.wait(1):
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
        memory.append(int(found[1]) / 1000 if found else 0.0)


@contextmanager
def _serving(models: Path) -> Iterator[tuple[int, int]]:
    """Serve `models`, and yield the process and the port."""
    command = [sys.executable, "-m", "trainyard_control.cli.main", "serve", str(models), "--port", "0"]
    with subprocess.Popen([*command, "--model-name", "m"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            address = process.stderr.readline().rpartition("//")[2].split()[0].strip(".,")
            threading.Thread(target=process.stderr.read, daemon=True).start()  # the log must not fill the pipe
            yield process.pid, int(address.rpartition(":")[2])
        finally:
            process.terminate()


if __name__ == "__main__":
    given = [float(text) for text in sys.argv[1:]]
    print(section(*(given + [600.0, 60.0][len(given) :])))
