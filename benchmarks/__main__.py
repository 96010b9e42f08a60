"""Runs every benchmark and writes docs/benchmarks.md: `make bench`, ten quiet minutes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import command_line, planning, run_digits

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
STEPS = ("preprocess", "train", "evaluate", "export", "push")


def main() -> None:
    """Measure and write the page."""
    loop = json.loads(
        subprocess.run([sys.executable, "-m", "benchmarks.training_loop"], check=True, stdout=subprocess.PIPE).stdout
    )
    PAGE.write_text(page(run_digits.measure(), loop, command_line.measure(), planning.measure()), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def page(run: dict[str, Any], loop: dict[str, Any], commands: dict[str, float], planned: dict[str, Any]) -> str:
    """Return the page of results."""
    steps = "\n".join(
        f"| {step} | {run['step_seconds'][step]:.1f} | {run['startup_seconds'][step]:.1f} |" for step in STEPS
    )
    ours, theirs = loop["trainyard"], loop["keras_fit"]
    loops = "\n".join(
        f"| {seed} | {ours['step_ms'][seed - 1]:.2f} | {theirs['step_ms'][seed - 1]:.2f} "
        f"| {ours['accuracy'][seed - 1]:.4f} | {theirs['accuracy'][seed - 1]:.4f} |"
        for seed in range(1, len(ours["step_ms"]) + 1)
    )
    seconds = "\n".join(f"| `{name}` | {value:.2f} |" for name, value in commands.items())
    return f"""# What it costs

Written by `make bench` on {date.today()}: Python {platform.python_version()}, {os.cpu_count()} cores, no accelerator.
Seconds depend on the machine and on what else it does; ratios less so. Both sides of a comparison are measured in one run.

## `trainyard run digits`

From raw data to a pushed model, nothing reused: **{run["wall_seconds"]:.1f} s**, test accuracy {run["accuracy"]:.4f}.
Start-up is the time until a step's own code begins: **{100 * run["startup_share"]:.0f} %** of the whole. TensorFlow is
imported once a run and the steps are forked from there; preprocess' start-up holds that import.

| step | seconds | of them start-up |
| --- | ---: | ---: |
{steps}

One trivial component by kfp.local in a virtual environment of its own, its default: {run["kfp_local_trivial_component_with_venv_seconds"]:.1f} s.

## The training loop against Keras `fit`

The same model (`cnn_small`), data, batch ({loop["batch_size"]}), schedule and number of epochs ({loop["epochs"]}); `fit` with its
defaults, one step a call. Step time ratio, median over seeds: **{loop["step_time_ratio"]:.2f}** (below 1: ours is faster, for it
runs many steps a call). Difference of mean test accuracy: {loop["accuracy_difference"]:+.4f}.

| seed | ours, ms a step | `fit`, ms a step | ours, accuracy | `fit`, accuracy |
| ---: | ---: | ---: | ---: | ---: |
{loops}

## The command line

Median seconds of {command_line.RUNS} runs. None imports TensorFlow or Beam.

| command | seconds |
| --- | ---: |
{seconds}

{planning.section(planned)}"""


if __name__ == "__main__":
    main()
