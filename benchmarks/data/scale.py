"""Scale: preprocess over a million rows and 200,000 images to the end, and what larger data would cost at that rate.

python -m benchmarks.data.scale prints the part of the page.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cost import cost
from benchmarks.data import images, tables
from trainyard.steps.preprocess.shards import count_shards

_ROWS, _FEW_ROWS = 1_000_000, 10_000
_IMAGES, _FEW_IMAGES, _SIDE = 200_000, 2_000, 32
_PHOTOGRAPHS, _FEW_PHOTOGRAPHS = 4_000, 400
_USD_PER_CORE_HOUR = 0.3885 / 8  # n2-standard-8 on demand, as in the catalog of 2026-08-03


@dataclass(frozen=True)
class Run:
    """The step on so much data. bytes: of the source."""

    records: str
    count: int
    bytes: int
    cpu_seconds: float
    wall_seconds: float
    peak_mib: float


def rows_run(count: int) -> Run:
    """Run the step on a table of `count` rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        tables.write(path, count)
        command = [sys.executable, "-m", "benchmarks.data.tables", "ours", str(path), f"{folder}/output"]
        return _run("rows", count, path.stat().st_size, command)


def images_run(records: str, count: int, store: str, height: int, width: int) -> Run:
    """Run the step on `count` JPEG files."""
    with tempfile.TemporaryDirectory() as folder:
        images.write(Path(folder, "in"), count, height, width)
        size = sum(path.stat().st_size for path in Path(folder, "in").glob("*/*"))
        side = ["--side", "preprocess", "--store", store, "--in", folder]
        return _run(records, count, size, [sys.executable, "-m", "benchmarks.data.images", *side])


def _run(records: str, count: int, size: int, command: list[str]) -> Run:
    start = time.monotonic()
    spent = cost(command)
    return Run(records, count, size, spent.cpu_seconds, time.monotonic() - start, spent.peak_mib)


def section() -> str:
    """Measure, and return the part of the page."""
    small, photograph = f"images of {_SIDE} x {_SIDE}", "photographs of 500 x 375, stored at training size"
    rows = [rows_run(_FEW_ROWS), rows_run(_ROWS)]
    thumbs = [images_run(small, count, "original", _SIDE, _SIDE) for count in (_FEW_IMAGES, _IMAGES)]
    counts = (_FEW_PHOTOGRAPHS, _PHOTOGRAPHS)
    photographs = [images_run(photograph, count, "training_size", 375, 500) for count in counts]
    ran = "\n".join(
        f"| {run.count:,} {run.records} | {run.bytes / 1e6:,.0f} | {run.cpu_seconds:,.0f} | {run.wall_seconds:,.0f} "
        f"| {run.peak_mib:,.0f} |"
        for run in (*rows, *thumbs, *photographs)
    )
    a_row, bytes_of_row = _added(rows), rows[1].bytes / rows[1].count
    would = [
        _would("ImageNet, 1.28 M photographs", 1_281_167, 150e9, _added(photographs)),
        _would("100 M rows", 100_000_000, 100e6 * bytes_of_row, a_row),
        _would("1 TB of such rows", int(1e12 / bytes_of_row), 1e12, a_row),
    ]
    return f"""The whole step on generated data. *Peak* is the memory of all processes, without the page cache.

| data | MB | CPU seconds | seconds | peak, MiB |
| --- | ---: | ---: | ---: | ---: |
{ran}

One more row costs {a_row * 1e6:.0f} µs of CPU time, one more photograph {_added(photographs) * 1e3:.2f} ms, one more
small image {_added(thumbs) * 1e3:.2f} ms. Extrapolated, with ${_USD_PER_CORE_HOUR:.4f} a core-hour (an eighth of an
`n2-standard-8` on demand) and the default number of shards:

| data | GB | CPU-hours | shards | cores for an hour | dollars |
| --- | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(would)}"""


def _added(runs: list[Run]) -> float:
    """Return the CPU seconds of an added example."""
    few, many = runs
    return (many.cpu_seconds - few.cpu_seconds) / (many.count - few.count)


def _would(records: str, count: int, size: float, seconds: float) -> str:
    hours, shards = count * seconds / 3600, count_shards(count, None)
    dollars = hours * _USD_PER_CORE_HOUR
    return f"| {records} | {size / 1e9:,.0f} | {hours:,.2f} | {shards:,} | {math.ceil(hours)} | {dollars:,.2f} |"


if __name__ == "__main__":
    print(section())
