"""Errors of `trainyard plan`: its prediction for this machine before each of two runs of three recipes.

    python -m benchmarks.commands.planning

prints one JSON object. The first prediction knows nothing of the recipe's network on this machine, the second one run
of it. Between them stand only runs of the other recipes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 96
CLASSES, EACH = 4, 250
SYNTHETIC = f"""
name: synthetic
data: {{format: image_folder, path: images, image_size: [{SIDE}, {SIDE}]}}
model: {{name: mobilenet_v3_small}}
train: {{epochs: 3, batch_size: 32}}
export: {{formats: [saved_model]}}
"""


def measure() -> dict[str, Any]:
    """Return, by recipe, what was predicted and what was measured in each run, and the machine's load after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "here.yaml").write_text(f"target: local\nstorage: {folder}/storage\n")
        (folder / "synthetic.yaml").write_text(SYNTHETIC)
        _write_images(folder / "images")
        recipes = {"digits": "digits", "tabular": "tabular", "synthetic": str(folder / "synthetic.yaml")}
        results: dict[str, list[dict[str, float]]] = {recipe: [] for recipe in recipes}
        for _ in range(2):
            for recipe, source in recipes.items():
                results[recipe].append(_run(folder, recipe, source) | {"load": os.getloadavg()[0]})
    return {"cores": os.cpu_count(), "recipes": results}


def section(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    rows = "\n".join(
        f"| {recipe} | {number} | {run['expected']:,.0f} ({run['low']:,.0f} – {run['high']:,.0f}) "
        f"| {run['measured']:,.0f} | {100 * (run['expected'] / run['measured'] - 1):+.0f} % "
        f"| {_inside(run)} | {run['load']:.0f} |"
        for recipe, runs in result["recipes"].items()
        for number, run in enumerate(runs, start=1)
    )
    seconds = statistics.median(run["plan_cpu_seconds"] for runs in result["recipes"].values() for run in runs)
    return f"""Training examples per second on this machine: predicted with an 80 % interval before each of two runs,
and measured. Before run 1 no run of the network is recorded (`synthetic` is mobilenet_v3_small at {SIDE} pixels);
before run 2, run 1 is. *Load* is the number of processes waiting for the {result["cores"]} cores after the run. A
plan takes {seconds:.2f} s of CPU time.

| recipe | run | predicted | measured | error | inside | load |
| --- | ---: | ---: | ---: | ---: | --- | ---: |
{rows}
"""


def _inside(run: dict[str, float]) -> str:
    return "yes" if run["low"] <= run["measured"] <= run["high"] else "no"


def _run(folder: Path, recipe: str, source: str) -> dict[str, float]:
    """Plan the recipe, train it (again), and return the prediction beside what was measured."""
    program, options = str(Path(sys.executable).parent / "trainyard"), ["-e", str(folder / "here.yaml"), "-o", "json"]
    before = os.times()
    plan = subprocess.run([program, "plan", source, *options], check=True, capture_output=True, text=True)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    (entry,) = json.loads(plan.stdout)
    subprocess.run([program, "run", source, *options, "--from", "train"], check=True, capture_output=True)
    newest = max((folder / "storage" / recipe / "train").glob("*/training.json"), key=lambda file: file.stat().st_mtime)
    measured = json.loads(newest.read_text())["speed"]["examples_per_second"]
    return entry["examples_per_second"] | {"measured": measured, "plan_cpu_seconds": cpu}


def _write_images(folder: Path) -> None:
    draw = np.random.default_rng(1)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for number in range(EACH):
            pixels = draw.integers(50 * label, 50 * label + 90, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / str(label) / f"{number}.png")


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
