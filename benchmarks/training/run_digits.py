"""`trainyard run digits` from raw data to a pushed model: wall time, and the share that is framework start-up.

Beside it: what kfp.local costs for one trivial component in a virtual environment of its own, its default.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRIVIAL = """
from kfp import dsl, local
local.init(local.SubprocessRunner(use_venv=True), pipeline_root={root!r})
@dsl.component
def nothing() -> int:
    return 1
nothing()
"""


def measure() -> dict[str, Any]:
    """Return seconds: of the run, of its steps, of each step's start-up, and of a trivial component of kfp.local."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "here.yaml"
        environment.write_text(f"target: local\nstorage: {folder}/storage\n")
        program = str(Path(sys.executable).parent / "trainyard")
        start = time.monotonic()
        subprocess.run(
            [program, "run", "digits", "-e", str(environment), "-o", "json"], check=True, capture_output=True
        )
        wall = time.monotonic() - start
        record = json.loads(next(Path(folder).glob("storage/digits/runs/*/run.json")).read_text())
        trivial_file = Path(folder) / "trivial.py"
        trivial_file.write_text(TRIVIAL.format(root=folder))
        start = time.monotonic()
        subprocess.run([sys.executable, str(trivial_file)], check=True, capture_output=True, cwd=folder)
        trivial = time.monotonic() - start
    startup = record["startup_seconds"]
    return {
        "wall_seconds": round(wall, 1),
        "step_seconds": record["seconds"],
        "startup_seconds": startup,
        "startup_share": round(sum(startup.values()) / wall, 2),
        "accuracy": record["metrics"]["accuracy"],
        "kfp_local_trivial_component_with_venv_seconds": round(trivial, 1),
    }


def section(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    with_venv = result["kfp_local_trivial_component_with_venv_seconds"]
    rows = "\n".join(
        f"| {step} | {seconds:.1f} | {result['startup_seconds'].get(step, 0.0):.1f} |"
        for step, seconds in result["step_seconds"].items()
    )
    return f"""From raw data to a pushed model, nothing reused: **{result["wall_seconds"]:.1f} s**,
test accuracy {result["accuracy"]:.4f}. Start-up is the time until a step's code begins:
**{100 * result["startup_share"]:.0f} %** of the whole. TensorFlow is imported once, in preprocess' start-up, and the
steps are forked.

| step | seconds | of them start-up |
| --- | ---: | ---: |
{rows}

One trivial component in kfp.local with a virtual environment, its default: {with_venv:.1f} s."""


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
