"""Trainings that end themselves by a signal: another process may come too late to end a short one."""

from __future__ import annotations

import signal
import sys

PROGRAM = """
import os, sys
from trainyard.runtime import step
from trainyard.steps.train import run
from trainyard.steps.train.loop.checkpoint import CheckpointFolder
last, signals, save = int(sys.argv.pop(1)), [int(sys.argv.pop(1))], CheckpointFolder.save
def save_and_end(folder, progress, arrays):
    save(folder, progress, arrays)
    if progress.step >= last and signals:
        os.kill(os.getpid(), signals.pop())
CheckpointFolder.save = save_and_end
step.main(run.run)
"""


def command(step: int, how: signal.Signals) -> list[str]:
    """Return the step's command, to which its options are added; it gets `how` with a checkpoint of `step` or later."""
    return [sys.executable, "-c", PROGRAM, str(step), str(int(how))]
