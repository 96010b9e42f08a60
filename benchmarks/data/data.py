"""Data: what preprocess costs beside bare loops of the same work, in CPU seconds of all its processes.

python -m benchmarks.data.data [--rows N] prints the table. One function a row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from benchmarks.cost import Cost, cost
from benchmarks.data import images, tables

ROWS = 1_000_000
_BEAM_ROWS = 200_000  # Beam by its guide takes five times as long a row
_FEW_ROWS = 10_000
_IMAGES = {"original": 20_000, "training_size": 4_000}  # one costs less than what two starts of the step differ by


@dataclass(frozen=True)
class Row:
    """One line of the page."""

    work: str
    against: str
    measured: str
    aim: str


def table_against_beam(rows: int) -> Row:
    """Compare the step with Beam and tf.Transform, an added row each."""
    baseline = "Beam + tf.Transform as in their guide, without digests, order and statistics"
    return _table(rows, _cost_of_a_row("beam", min(rows, _BEAM_ROWS)), baseline, "3 times")


def table_against_hand(rows: int) -> Row:
    """Compare the step with one loop over Arrow's batches, an added row each."""
    return _table(rows, _cost_of_a_row("hand", rows), "an equivalent loop over Arrow and NumPy", "0.33 times")


def _table(rows: int, other: float, baseline: str, aim: str) -> Row:
    ours, work = _cost_of_a_row("ours", rows), f"CSV of {rows:,} rows to examples"
    measured = f"{ours * 1e6:.0f} µs a row: {other / ours:.2f} times as fast"
    return Row(work, f"{baseline}: {other * 1e6:.0f} µs a row", measured, aim)


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


def images_row(store: str, _: int) -> Row:
    """Compare the step with a bare loop that decodes, to check or to shrink and encode, an added image each."""
    height, width = images.SIZES[store]
    ours, other = (images.cost_of_an_image(side, store, _IMAGES[store]) for side in ("preprocess", "bare"))
    return Row(
        f"JPEG of {width} x {height} to shards, `{store}`",
        f"libjpeg-turbo loop, CRC and write: {other * 1e3:.2f} ms an image",
        f"{ours * 1e3:.2f} ms an image: {other / ours:.2f} times as fast",
        "0.8 times",
    )


MEASURES: list[Callable[[int], Row]] = [
    partial(images_row, "original"),
    partial(images_row, "training_size"),
    table_against_beam,
    table_against_hand,
    table_reader,
    table_memory,
    fixed_cost,
]


def measure(rows: int = ROWS) -> list[Row]:
    """Return every row, for tables of `rows` rows."""
    return [each(rows) for each in MEASURES]


def section(rows: list[Row]) -> str:
    """Return the part of the page."""
    lines = "\n".join(f"| {row.work} | {row.against} | {row.measured} | {row.aim} |" for row in rows)
    return f"""CPU seconds of all processes, both sides in one run, on generated data. A row has four numbers, three
categories, a date and a label; its cost is the cost of one more row, without imports. Memory is of all processes,
without the page cache. Images are bound to one core on both sides.

| work | against | measured | aim |
| --- | --- | --- | --- |
{lines}"""


def _cost_of_a_row(side: str, rows: int) -> float:
    few = _side(side, _FEW_ROWS).cpu_seconds
    return (_side(side, rows).cpu_seconds - few) / (rows - _FEW_ROWS)


@cache
def _side(side: str, rows: int) -> Cost:
    """Return the cost of `side` of benchmarks.data.tables for `rows` rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        tables.write(path, rows)
        return cost([sys.executable, "-m", "benchmarks.data.tables", side, str(path), f"{folder}/output"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data.data", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the largest table")
    print(section(measure(parser.parse_args().rows)))
