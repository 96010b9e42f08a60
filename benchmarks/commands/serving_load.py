"""`trainyard serve` at 70 % of its limit while new versions are pushed: errors, latencies and memory by minute.

python -m benchmarks.commands.serving_load [PARTS [SECONDS]] prints what `--log` costs, then a table; by default ten
parts of 60 s. Each begins by measuring the limit, and a version is pushed in its middle. Latencies count from the time
at which a request was due, so that a pause delays those after it.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
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
from benchmarks.commands.serving import cpu_seconds, percentile, rest, table_rows
from trainyard.contract.version import champion, set_champion

_CLIENTS, _SHARE, _LIMIT_SECONDS = 8, 0.7, 5.0
_LOG_ROUNDS = 7  # of each server; chosen


@dataclass
class _Load:
    """Latencies in seconds of the requests of one client, and the errors. late: requests that no time was left for."""

    answered: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    late: int = 0


def section(parts: int, seconds: float) -> str:
    """Return the text and the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train("tabular", folder)
        models = folder / "runs" / "tabular" / "models"
        rows = table_rows(models / "1")
        with _serving(models) as plain:
            with _serving(models, "--log", str(folder / "log")) as logged:
                cost = _cost_of_log(plain, logged, rows)
            lines = list(_parts(plain, models, rows, parts, seconds))
            with urllib.request.urlopen(f"http://127.0.0.1:{plain[1]}/v1/models/m") as answer:
                served = json.load(answer)["model_version_status"][0]["version"]
    return "\n".join([cost, f"Of {parts} versions pushed, {served} serves at the end; it was 1.", "", *lines])


def _cost_of_log(plain: tuple[int, int], logged: tuple[int, int], rows: list[dict[str, Any]]) -> str:
    """Return a sentence about two servers that take turns, the second one with a log of all requests."""
    found: list[tuple[float, float]] = []
    for _ in range(_LOG_ROUNDS + 1):
        rates, cpus = [], []
        for process, port in (plain, logged):
            before = cpu_seconds(process)
            answers = len(_asked(port, rows, _LIMIT_SECONDS).answered)
            rates.append(answers)
            cpus.append((cpu_seconds(process) - before) / answers)
        found.append((1 - rates[1] / rates[0], cpus[1] / cpus[0] - 1))
    rate, cpu = (statistics.median(values) * 100 for values in zip(*found[1:], strict=True))  # the first warms up
    return f"`--log` with all requests costs {rate:.1f} % of the rows/s and {cpu:.1f} % more CPU for a row."


def _parts(
    server: tuple[int, int], models: Path, rows: list[dict[str, Any]], parts: int, seconds: float
) -> Iterator[str]:
    """Yield the lines of the table, and print each one, because a part takes a minute."""
    process, port = server
    errors: set[str] = set()
    lines = [
        "| part | limit, rows/s | asked | answered | errors | late | p50, ms | p99, ms | longest, ms | memory, MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    yield from lines
    for part in range(1, parts + 1):
        limit = len(_asked(port, rows, _LIMIT_SECONDS).answered) / _LIMIT_SECONDS
        memory: list[float] = []
        ended = threading.Event()
        beside = [
            threading.Thread(target=_push, args=(models, seconds / 2, ended)),
            threading.Thread(target=_watch, args=(process, memory, ended)),
        ]
        for thread in beside:
            thread.start()
        load = _asked(port, rows, seconds, rate=limit * _SHARE)
        ended.set()
        for thread in beside:
            thread.join()
        errors |= set(load.errors)
        times = load.answered or [float("nan")]
        latencies = [percentile(times, 50), percentile(times, 99), max(times) * 1000]
        counts = [limit, limit * _SHARE * seconds, len(load.answered), len(load.errors), load.late]
        cells = [f"{part}", *(f"{each:,.0f}" for each in counts), *(f"{each:.2f}" for each in latencies)]
        line = f"| {' | '.join(cells)} | {max(memory, default=float('nan')):.0f} |"
        print(line, file=sys.stderr, flush=True)
        yield line
    yield from sorted(errors)[:3]


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
                own.answered.append(time.perf_counter() - start - due)
            except (OSError, AssertionError, ValueError) as error:
                own.errors.append(f"{type(error).__name__}: {error}"[:200])
                send = None
            number += 1
        own.late = max(0, len(range(client, int(rate * seconds), _CLIENTS)) - number)

    threads = [threading.Thread(target=ask, args=[client]) for client in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _Load(
        [each for load in loads for each in load.answered],
        [each for load in loads for each in load.errors],
        sum(load.late for load in loads),
    )


def _push(models: Path, after: float, ended: threading.Event) -> None:
    """Push the champion's files as a new version after `after` seconds, unless `ended` comes first."""
    if ended.wait(after):
        return
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
def _serving(models: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Serve `models`, and yield the process and the port."""
    command = [sys.executable, "-m", "trainyard_control.cli.main", "serve", str(models), "--port", "0"]
    with subprocess.Popen([*command, "--model-name", "m", *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            address = process.stderr.readline().rpartition("//")[2].split()[0].strip(".,")
            threading.Thread(target=process.stderr.read, daemon=True).start()  # the log must not fill the pipe
            yield process.pid, int(address.rpartition(":")[2])
        finally:
            process.terminate()


if __name__ == "__main__":
    parts, seconds = sys.argv[1:] + ["10", "60"][len(sys.argv) - 1 :]
    print(section(int(parts), float(seconds)))
