"""Processes that need no framework import none: each would take seconds and hundreds of MiB in its pod."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests import small_documents

from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.storage import storage

HEAVY = ("tensorflow", "keras", "jax", "apache_beam", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "kubernetes")
REPORT = f"\nimport atexit, sys\natexit.register(lambda: print('loaded', *(n for n in {HEAVY} if n in sys.modules)))\n"


def loaded(program: str, *arguments: str) -> str:
    """Run a program and return which of the heavy libraries it has loaded at its end."""
    done = subprocess.run([sys.executable, "-c", REPORT + program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_push_loads_no_framework(tmp_path: Path) -> None:
    gate = Verdict(verdict="blessed", thresholds=[])
    with storage.stage(str(tmp_path / "evaluation"), producer="trainyard.evaluate") as staging:
        small_documents.evaluation(metrics={"accuracy": 1.0}, gate=gate).write(staging)
    with storage.stage(str(tmp_path / "exported"), producer="trainyard.export") as staging:
        (staging / "saved_model").mkdir()
        (staging / "saved_model" / "saved_model.pb").touch()
        Exports(exports=[], gate=gate).write(staging)
    program = """
from trainyard.runtime import step
from trainyard.spec import recipe
from trainyard.steps.push import run
folder, inputs = sys.argv[1], ("evaluation", "exported", "destination")
given = {name: f"{folder}/{name}" for name in inputs}
step.execute(run.run, f"{folder}/output", recipe=recipe.load("digits"), **given)
"""
    assert loaded(program, str(tmp_path)) == "loaded"
    assert (tmp_path / "destination" / "1" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    "module",
    ["trainyard.steps.check.run", "trainyard.steps.train.gang.supervisor", "trainyard_control.local.step_process"],
)
def test_what_only_looks_on_or_starts_others_loads_no_framework(module: str) -> None:
    assert loaded(f"import trainyard.runtime.task, {module}") == "loaded"
