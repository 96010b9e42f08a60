"""Data: what preprocess costs beside bare loops of the same work, in CPU seconds of all its processes.

python -m benchmarks.data [--rows N] prints the table. One function a row.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks import tables

ROWS = 1_000_000
_BEAM_ROWS = 200_000  # Beam by its guide takes five times as long a row
_FEW_ROWS = 10_000
_SECONDS_BETWEEN_SAMPLES = 0.1


@dataclass(frozen=True)
class Row:
    """One line of the page."""

    work: str
    against: str
    measured: str
    aim: str


@dataclass(frozen=True)
class Cost:
    """What a command took: CPU seconds of all its processes, the most memory they had together, page cache apart."""

    cpu_seconds: float
    peak_mib: float


def table_against_beam(rows: int) -> Row:
    """Compare the step with Beam and tf.Transform, an added row each."""
    ours, other = _cost_of_a_row("ours", rows), _cost_of_a_row("beam", min(rows, _BEAM_ROWS))
    return Row(
        f"CSV of {rows:,} rows to examples",
        f"Beam + tf.Transform by their guide, without digests, order and statistics: {other * 1e6:.0f} µs a row",
        f"{ours * 1e6:.0f} µs a row: {other / ours:.2f} times as fast",
        "3 times",
    )


def table_against_hand(rows: int) -> Row:
    """Compare the step with one loop over Arrow's batches, an added row each."""
    ours, other = _cost_of_a_row("ours", rows), _cost_of_a_row("hand", rows)
    return Row(
        f"CSV of {rows:,} rows to examples",
        f"one loop over Arrow and NumPy that does the same: {other * 1e6:.0f} µs a row",
        f"{ours * 1e6:.0f} µs a row: {other / ours:.2f} times as fast",
        "0.33 times",
    )


def table_reader(rows: int) -> Row:
    """Compare the reader with the row-by-row one, in one process."""
    few = min(rows, 10 * _FEW_ROWS)
    batches, single = (_side(side, few).cpu_seconds for side in ("batches", "rows"))
    start = _side("imports", few).cpu_seconds
    return Row(
        f"CSV of {few:,} rows to checked batches with digests",
        f"the same row by row: {(single - start) / few * 1e6:.0f} µs a row",
        f"{(batches - start) / few * 1e6:.1f} µs a row",
        "under 40 µs",
    )


def table_memory(rows: int) -> Row:
    """Compare the step's peak memory on few and on many rows."""
    few, many = _side("ours", _FEW_ROWS), _side("ours", rows)
    return Row(
        f"Peak memory, {rows:,} rows",
        f"{_FEW_ROWS:,} rows: {few.peak_mib:,.0f} MiB",
        f"{many.peak_mib:,.0f} MiB",
        "flat, at most 1,536 MiB",
    )


def fixed_cost(_: int) -> Row:
    """Measure the step on a table of next to nothing, once it has run before."""
    _side("ours", _FEW_ROWS)
    return Row("The step on 100 rows", "–", f"{_side('ours', 100).cpu_seconds:.1f} CPU seconds", "8 CPU seconds")


MEASURES: list[Callable[[int], Row]] = [
    table_against_beam,
    table_against_hand,
    table_reader,
    table_memory,
    fixed_cost,
]


def measure(rows: int = ROWS) -> list[Row]:
    """Return every row, on tables of so many rows."""
    return [each(rows) for each in MEASURES]


def section(rows: list[Row]) -> str:
    """Return the part of the page."""
    lines = "\n".join(f"| {row.work} | {row.against} | {row.measured} | {row.aim} |" for row in rows)
    return f"""CPU seconds of all processes together, both sides in one run, on data that the benchmark makes.
A row of a table is four numbers, three categories, a day and a label; its cost is that of one row more, so that imports
do not count. Memory is what all processes have together, the page cache apart.

| work | against | measured | aim |
| --- | --- | --- | --- |
{lines}"""


def _cost_of_a_row(side: str, rows: int) -> float:
    few = _side(side, _FEW_ROWS).cpu_seconds
    return (_side(side, rows).cpu_seconds - few) / (rows - _FEW_ROWS)


@cache
def _side(side: str, rows: int) -> Cost:
    """Return what `side` of benchmarks.tables costs on so many rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        tables.write(path, rows)
        return cost([sys.executable, "-m", "benchmarks.tables", side, str(path), f"{folder}/output"])


def cost(command: list[str]) -> Cost:
    """Run `command` to its end and return what it and its children cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        sampler = _Sampler(process.pid)
        sampler.start()
        _, errors = process.communicate()
        sampler.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{errors[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, sampler.peak_mib)


class _Sampler(threading.Thread):
    """Keeps the most anonymous memory that a process and all below it had at one time, in MiB."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = root
        self.peak_mib = 0.0

    def run(self) -> None:
        while (mib := sum(map(_anonymous_mib, _tree(self._root)))) > 0:
            self.peak_mib = max(self.peak_mib, mib)
            time.sleep(_SECONDS_BETWEEN_SAMPLES)


def _tree(root: int) -> list[int]:
    found = [root]
    for process in found:
        with suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _anonymous_mib(process: int) -> float:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/status").read_text().split("RssAnon:")[1].split()[0]) / 1024
    return 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the largest table")
    print(section(measure(parser.parse_args().rows)))
