"""`python checkpointing.py COST RECIPE EXAMPLES FOLDER`: trains; checkpoints cost COST seconds of CPU more.

Prints the step of each checkpoint, then `done`, and waits to be killed, as the others of a gang must not miss it. Half
an epoch need not take half a minute here, but twice what a checkpoint costs.
"""

import sys
import threading
import time
from pathlib import Path

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
from trainyard.spec import recipe
from trainyard.steps.train import session
from trainyard.steps.train.loop import checkpoint_writer, loop, save_schedule
from trainyard.steps.train.loop.checkpoint import Arrays, CheckpointFolder, Progress


class Told(loop.Loop):
    def _save(self, step: int) -> bool:
        print(step, flush=True)
        return super()._save(step)


class Costly(CheckpointFolder):
    def save(self, progress: Progress, arrays: Arrays) -> None:
        end = time.thread_time() + float(sys.argv[1])
        while time.thread_time() < end:
            pass
        super().save(progress, arrays)


if __name__ == "__main__":
    _, path, examples, folder = sys.argv[1:]
    save_schedule.CHECKPOINT_SECONDS, checkpoint_writer.MAX_OVERHEAD = 0.0, 0.5
    session.Loop, session.CheckpointFolder = Told, Costly
    output = Path(folder) / "output"
    output.mkdir(exist_ok=True)
    session.train(recipe.load(path), examples, f"{folder}/checkpoints", "test", output)
    print("done", flush=True)
    threading.Event().wait()
