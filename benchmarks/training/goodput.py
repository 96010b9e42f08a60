"""Goodput of a long training under random kills, simulated from measured parts: restarts and elastic changes of a local
gang of two, measured here, and the checkpoints of docs/benchmarks.md.

python -m benchmarks.training.goodput prints the part of the page.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainyard_control.planning.plan import POD_SECONDS, START_SECONDS, expected_stays

if TYPE_CHECKING:
    from gang_processes import Gang

TESTS, PAGE = (Path(__file__).parents[2] / name for name in ("tests", "docs/benchmarks.md"))
EVERY = {"2 h": 7200.0, "30 min": 1800.0, "10 min": 600.0}
ELASTIC = '{"counts": [1, 2], "replace_seconds": 2, "start_deadline_seconds": 300}'
STEPS = 100  # between two kills
# Workers to kill in each gang, one after the other: a local gang starts a killed supervisor twice.
GANGS = [("fixed", "1010"), ("fixed", "10"), ("elastic", "11"), ("elastic", "11")]


def measure() -> dict[str, list[float]]:
    """Return the seconds from a SIGKILL to the first new step, and from an elastic gang's stop to that of a larger."""
    sys.path[:0] = [str(TESTS), str(TESTS / "local")]
    import gang_processes

    seconds: dict[str, list[float]] = {"fixed": [], "elastic": [], "larger": []}
    with tempfile.TemporaryDirectory() as folder:
        examples = gang_processes.examples(Path(folder))
        for number, (kind, victims) in enumerate(GANGS):
            workers, given = (1, ELASTIC) if kind == "elastic" else (2, "")
            options = {"epochs": 100_000, "every_steps": 20, "elastic": given}
            gang = gang_processes.start(Path(folder, str(number)), examples, workers, **options)
            for worker in map(int, victims):
                for name, value in _disturb(gang, worker, kind).items():
                    seconds[name].append(value)
            gang.process.terminate()
            gang.finish(143)
    return seconds


def _disturb(gang: Gang, worker: int, kind: str) -> dict[str, float]:
    after, seen = gang.step() + STEPS, len(gang.events("recovered"))
    gang.wait_for(lambda: gang.step() > after)
    victim = [event["process"] for event in gang.events("supervisor") if event["worker"] == worker][-1]
    with gang.descriptors(2) if kind == "elastic" else nullcontext():  # two are too few to start another process
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        gang.wait_for(lambda: len(gang.events("recovered")) > seen)
        seconds = {kind: time.monotonic() - start}
    if kind == "elastic":
        gang.wait_for(lambda: len(gang.events("recovered")) > seen + 1)
        seconds["larger"] = gang.events("recovered")[-1]["seconds"]
    return seconds


def simulated(every: float, restart: float, interval: float, cost: float, kills: int = 1_000_000) -> float:
    """Return the share of the time that trains steps which stay, in seconds of a Poisson process of kills.

    every: mean time between kills. restart: time without new steps after each. interval: time between checkpoints, each
    of which costs `cost`; the steps after the last one are lost.
    """
    gaps = np.random.default_rng(0).exponential(every, kills)
    kept = np.floor(np.maximum(gaps - restart, 0) / (interval + cost)) * interval
    return float(kept.sum() / gaps.sum())


def exact(every: float, restart: float, interval: float, cost: float) -> float:
    """Return the goodput by formula: the interval by the mean time until one passes without a kill."""
    return float(interval / every * np.exp(-restart / every) / np.expm1((interval + cost) / every))


def planned(every: float, restart: float, interval: float, cost: float) -> float:
    """Return the same as `trainyard plan --preemption-rate` has it: kills during steps, of which half are lost."""
    hours, lost = 1 + cost / interval, ((interval + cost) / 2 + restart) / 3600
    return 1 / expected_stays([("pool", hours, 3600 / every, lost, None)])[0].hours


def section(seconds: dict[str, list[float]]) -> str:
    """Return the part of the page. Raises ValueError if simulation, formula and plan are more than 1 % apart."""
    rows, pod = [], POD_SECONDS + START_SECONDS
    found = re.findall(r"^\| (`\w+`) \| (?:[\d.]+ \| ){4}(\d+) \| ([\d.]+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    for network, interval, percent in found:
        for name, every in EVERY.items():
            values = []
            for restart in (statistics.median(seconds["fixed"]), pod):
                parts = (every, restart, float(interval), float(interval) * float(percent) / 100)
                results = [function(*parts) for function in (simulated, exact, planned)]
                values.append(f"{100 * results[0]:.1f}")
                if max(results) - min(results) > 0.01:
                    raise ValueError(f"{parts}: simulated, exact and planned are {results}")
            rows.append(f"| {network} | {interval} | {name} | {' | '.join(values)} |")
    spread = {
        kind: f"{statistics.median(values):.0f} s ({min(values):.0f}–{max(values):.0f}, {len(values)} times)"
        for kind, values in seconds.items()
    }
    longest = max(apart for apart in range(1, 1800) if exact(EVERY["30 min"], pod, apart, parts[3]) >= 0.95)
    return f"""Two local workers, one of which gets SIGKILL: {spread["fixed"]} to the first new step. An elastic gang
with `replace_seconds: 2` trains with one worker after {spread["elastic"]}. When the other one is back, both train
{spread["larger"]} after the stop.

Goodput in %, simulated for checkpoints as often as the table above has them: with that time after each kill, and with
the {pod} s that `trainyard plan` expects for a new pod.

| network | checkpoint each, s | kill each | here | new pod |
| --- | ---: | ---: | ---: | ---: |
{chr(10).join(rows)}

With new pods and a kill each 30 min, 95 % need checkpoints at most {longest} s apart."""


if __name__ == "__main__":
    print(section(measure()))
