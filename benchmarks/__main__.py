"""Runs benchmarks and writes their parts of docs/benchmarks.md: `make bench`, all of them in a quiet half-hour, or

python -m benchmarks command_line planning
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

from benchmarks import page

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    """Measure, and write the page after each benchmark: what was measured is kept where a later one fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    wanted = parser.parse_args().names or [*BENCHMARKS]
    if unknown := sorted(set(wanted) - set(BENCHMARKS)):
        parser.error(f"no benchmark {', '.join(unknown)}. There are {', '.join(BENCHMARKS)}.")
    for name in wanted:
        print(f"· {name}", file=sys.stderr)
        parts = {part: f"{text.strip()}\n\n{_measured()}" for part, text in BENCHMARKS[name]().items()}
        PAGE.write_text(page.with_parts(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
        print("\n\n".join(parts.values()))


def _measured() -> str:
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, no accelerator, "
    machine += f"a load of {os.getloadavg()[0]:.0f} afterwards"
    return f"Measured on {date.today()}: {machine}."


def _run_digits() -> dict[str, str]:
    from benchmarks.training import run_digits

    return {"run_digits": run_digits.section(run_digits.measure())}


def _training_loop() -> dict[str, str]:
    return {"training_loop": _of_a_process("benchmarks.training.training_loop", "--part")}


def _fine_tuning() -> dict[str, str]:
    return {"fine_tuning": _of_a_process("benchmarks.training.fine_tuning")}


def _input() -> dict[str, str]:
    return {"input": _of_a_process("benchmarks.data.input")}


def _of_a_process(*module: str) -> str:
    # Its own: what TensorFlow's import leaves in the environment is no part of the others.
    return subprocess.run([sys.executable, "-m", *module], check=True, stdout=subprocess.PIPE, text=True).stdout


def _command_line() -> dict[str, str]:
    from benchmarks.commands import command_line

    return {"command_line": command_line.section(command_line.measure())}


def _planning() -> dict[str, str]:
    from benchmarks.commands import planning

    return {"planning": planning.section(planning.measure())}


def _scaling() -> dict[str, str]:
    from benchmarks.training import scaling

    return scaling.sections([scaling.measure(*case) for case in scaling.CASES])


def _data() -> dict[str, str]:
    from benchmarks.data import data

    return {"data": data.section(data.measure())}


def _predict() -> dict[str, str]:
    return {"predict": _of_a_process("benchmarks.commands.predict")}


def _scale() -> dict[str, str]:
    from benchmarks.data import scale

    return {"scale": scale.section()}


BENCHMARKS: dict[str, Callable[[], dict[str, str]]] = {
    "run_digits": _run_digits,
    "training_loop": _training_loop,
    "fine_tuning": _fine_tuning,
    "command_line": _command_line,
    "planning": _planning,
    "scaling": _scaling,
    "data": _data,
    "input": _input,
    "predict": _predict,
    "scale": _scale,
}


if __name__ == "__main__":
    main()
