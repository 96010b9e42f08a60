"""Seconds until the command line answers, beside an empty Python process."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 7


def measure() -> dict[str, float]:
    """Return the median seconds of each command."""
    program = str(Path(sys.executable).parent / "trainyard")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "trainyard --help": [program, "--help"],
        "trainyard compile digits -e gke": [program, "compile", "digits", "-e", "gke"],
        "trainyard plan digits -e gke": [program, "plan", "digits", "-e", "gke", "-o", "json"],
    }
    return {
        name: round(statistics.median(_seconds(command) for _ in range(RUNS)), 3) for name, command in commands.items()
    }


def section(seconds: dict[str, float]) -> str:
    """Return the part of the page."""
    rows = "\n".join(f"| `{name}` | {value:.2f} |" for name, value in seconds.items())
    return f"""Median seconds of {RUNS} runs. None imports TensorFlow or Beam.

| command | seconds |
| --- | ---: |
{rows}"""


def _seconds(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - start


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
