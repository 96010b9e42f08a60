"""Some of the faults that `python -m benchmarks.chaos` makes at random, at moments that a test can repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.chaos.faults import Fault, draw
from benchmarks.chaos.programs import ALL, Program
from benchmarks.chaos.trials import Bench

pytestmark = pytest.mark.usefixtures("warm_processes")


def test_a_run_that_sigterm_and_sigkill_end_in_every_step_has_the_results_of_the_undisturbed_one(
    tmp_path: Path,
) -> None:
    """SIGTERM to every process as systemd sends it, and SIGKILL as a lost machine."""
    steps = {"preprocess": "SIGTERM", "train": "SIGTERM", "evaluate": "SIGTERM", "export": "SIGKILL"}
    kinds = {"SIGTERM": "SIGTERM to all processes", "SIGKILL": "SIGKILL of all processes"}
    faults = [Fault(kinds[signal], step, share=0.3, pick=0.5, seconds=0) for step, signal in steps.items()]
    outcome = Bench(tmp_path).trial(0, Program("table"), faults)
    assert outcome.codes == [143, 143, 143, -9, 0], outcome.messages
    assert all("stopped by SIGTERM" in message for message in outcome.messages[:3])
    assert (outcome.wrong, outcome.faulty) == ([], [])


def test_a_gang_survives_what_is_drawn_for_it(tmp_path: Path) -> None:
    """A kill of one process, and a network that is cut: test_jax_faults.py kills all of a gang."""
    program, faults = draw(9, tuple(program for program in ALL if program.workers > 1)[:1])
    outcome = Bench(tmp_path).trial(9, program, faults[:2])
    assert (outcome.wrong, outcome.faulty) == ([], []) and len(outcome.injected) == 2, outcome
