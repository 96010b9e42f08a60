"""Runs benchmarks and writes their parts of docs/benchmarks.md: `make bench`, all of them in a quiet half-hour, or

python -m benchmarks command_line planning
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks import page

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    """Run benchmarks, and write the page after each one, so that a later failure loses no results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    apart = (*ACCELERATED, *LONG)
    usual = [name for name in BENCHMARKS if name not in apart]
    shown = f"of {', '.join(BENCHMARKS)}; by default all but {', '.join(apart)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=shown)
    wanted = parser.parse_args().names or usual
    if unknown := sorted(set(wanted) - set(BENCHMARKS)):
        parser.error(f"no benchmark {', '.join(unknown)}. There are {', '.join(BENCHMARKS)}.")
    for name in wanted:
        print(f"· {name}", file=sys.stderr)
        result = BENCHMARKS[name]()
        texts = result if isinstance(result, dict) else {name: result}
        parts = {part: f"{text.strip()}\n\n{_measured()}" for part, text in texts.items()}
        PAGE.write_text(page.with_parts(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
        print("\n\n".join(parts.values()))


def _measured() -> str:
    return f"Measured on {date.today()} with {os.cpu_count()} cores and a load of {os.getloadavg()[0]:.0f}."


def _here(module: str) -> str:
    benchmark = import_module(f"benchmarks.{module}")
    return str(benchmark.section(benchmark.measure()))


def _process_output(module: str, *options: str) -> str:
    # Its own: what TensorFlow's import leaves in the environment is no part of the others.
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _scaling() -> dict[str, str]:
    from benchmarks.training import scaling

    return scaling.sections([scaling.measure(*case) for case in scaling.CASES]) | {"elastic": scaling.elastic()}


# What gives a benchmark's part of the page, or its parts by name.
BENCHMARKS: dict[str, Callable[[], str | dict[str, str]]] = {
    "run_digits": partial(_here, "training.run_digits"),
    "training_loop": partial(_process_output, "training.training_loop", "--part"),
    "fine_tuning": partial(_process_output, "training.fine_tuning"),
    "first_model": partial(_process_output, "training.first_model"),
    "command_line": partial(_here, "commands.command_line"),
    "planning": partial(_here, "commands.planning"),
    "scaling": _scaling,
    "gangs": partial(_process_output, "training.rendezvous"),
    "data": partial(_here, "data.data"),
    "input": partial(_process_output, "data.input"),
    "predict": partial(_process_output, "commands.predict"),
    "serving": partial(_process_output, "commands.serving"),
    "evaluation": partial(_process_output, "commands.evaluation"),
    "exports": partial(_process_output, "commands.exports"),
    "on_device": partial(_process_output, "commands.on_device"),
    "scale": partial(_process_output, "data.scale"),
    "uploads": partial(_process_output, "data.uploads"),
    "chaos": partial(_process_output, "chaos", "--seeds", "200"),
    "goodput": partial(_process_output, "training.goodput"),
    "accelerator_input": partial(_process_output, "training.accelerator_input"),
    "accelerator": partial(_process_output, "training.accelerator"),
}
ACCELERATED = ("accelerator",)
"""Benchmarks that need a GPU or TPU."""
LONG = ("chaos", "first_model")
"""Benchmarks that take hours."""


if __name__ == "__main__":
    main()
