"""`python checkpointing.py PORT,PORT EXAMPLES FOLDER...`: two workers train each FOLDER's recipe; it is named COST.

Checkpoints cost COST seconds of CPU more. Worker N leaves the step of each in `FOLDER/N`. Here they are not half a
minute apart, but ten times what a checkpoint costs.
"""

import sys
import time
from pathlib import Path

import trainings  # first: it chooses Keras 3

from trainyard.steps.train import session
from trainyard.steps.train.loop import checkpoint, loop
from trainyard.steps.train.loop.checkpoint import Arrays, CheckpointFolder, Progress


class LoopWithSaveLog(loop.Loop):
    def _save(self, step: int) -> bool:
        with Path(self.checkpoints.uri).with_name(str(self.rank.index)).open("a") as file:
            print(step, file=file)
        return super()._save(step)


class Costly(CheckpointFolder):
    def save(self, progress: Progress, arrays: Arrays) -> None:
        end = time.thread_time() + float(Path(self.uri).parent.name)
        while time.thread_time() < end:
            pass
        super().save(progress, arrays)


if __name__ == "__main__":
    checkpoint.CHECKPOINT_SECONDS, checkpoint.MAX_OVERHEAD = 0.0, 0.1
    session.Loop, session.CheckpointFolder = LoopWithSaveLog, Costly
    trainings.main(sys.argv[1], 1, sys.argv[2], sys.argv[3:])
