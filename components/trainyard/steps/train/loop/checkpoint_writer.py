"""Commits checkpoints beside the training, so that a step waits for a copy in memory and not for a disk; and when."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from trainyard.spec.training.train import Checkpoints
from trainyard.steps.train.loop.checkpoint import Arrays, CheckpointFolder, Progress

# Chosen: what checkpoints may cost of the training if the recipe does not say when to save: 1 %, of which 0.4 % is for
# what is not counted (measured: ResNet-50's next steps lose 1.22 to 1.43 times of it, for their part of the processor's
# cache).
MAX_OVERHEAD = 0.006
# Chosen: if the recipe names no interval, a checkpoint within an epoch is not closer to another than that.
CHECKPOINT_SECONDS = 30.0


class CheckpointWriter:
    """Writes the checkpoints of one run in a thread, one at a time and each of them.

    A newer one waits for the one before: the weights of an epoch may turn out to be the best, so none is left out, and
    there is never more than one copy of the state. `seconds` is the time that writing took, beside the training.

    min_interval_seconds: the interval after the last checkpoint of which its cost is `MAX_OVERHEAD`; infinite while it
    is written. Its cost is what a step waited for it and the CPU time of its writing, which is the most that it took
    from the training; threads of a bucket's client are left out.
    """

    def __init__(self, checkpoints: CheckpointFolder) -> None:
        self.checkpoints = checkpoints
        self.seconds = 0.0
        self.min_interval_seconds = 0.0
        self.count = 0
        # An interpreter that ends in the ordinary way lets its thread finish.
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, progress: Progress, arrays: Arrays, waited: float = 0.0) -> None:
        """Begin to write the checkpoint of `progress`; `arrays` belong to the writer from now on.

        waited: the seconds that a step has waited for them.
        """
        self.wait()
        self.min_interval_seconds = math.inf
        self._writing = self._executor.submit(self._write, progress, arrays, waited)

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether nothing is being written any more, after at most `seconds`. Raises what the writing raised."""
        if self._writing is not None and wait([self._writing], seconds).not_done:
            return False
        self.check()
        return True

    def check(self) -> None:
        """Raise what the writing raised, once."""
        if self._writing is not None and self._writing.done():
            ended, self._writing = self._writing, None
            ended.result()

    def _write(self, progress: Progress, arrays: Arrays, waited: float) -> None:
        start, cpu_start = time.perf_counter(), time.thread_time()
        try:
            self.checkpoints.save(progress, arrays)
            self.count += 1
        finally:
            self.seconds += time.perf_counter() - start
            self.min_interval_seconds = (waited + time.thread_time() - cpu_start) / MAX_OVERHEAD


class SaveSchedule:
    """The next step to save at, by the recipe's interval or by what the last checkpoint cost.

    The workers of a gang agree, because the numbers that they give it are those of all of them.
    """

    def __init__(self, settings: Checkpoints, steps_per_epoch: int) -> None:
        self.saved_step = -1
        self._every = settings.every_steps
        self._steps_per_epoch = steps_per_epoch
        self._seconds_since_saved = self._min_interval_seconds = 0.0

    def note_saved(self, step: int) -> None:
        """Count from `step` on, of which there is a checkpoint now."""
        self.saved_step, self._seconds_since_saved = step, 0.0

    def note_steps(self, seconds: float, min_interval_seconds: float) -> None:
        """Count steps that took `seconds`; the other number is that of `CheckpointWriter`."""
        self._seconds_since_saved += seconds
        self._min_interval_seconds = min_interval_seconds

    def next_step(self, step: int) -> int:
        """Return the step of the next checkpoint within the epoch, beyond the epoch if none is left.

        Half an interval after the last one, by default half an epoch: while one is written, the one before it, which is
        committed, is at most an interval old.
        """
        interval = max(1, self._every // 2) if self._every else (self._steps_per_epoch + 1) // 2
        due = self.saved_step + interval
        return due if due > step else step + self._steps_per_epoch

    def is_worthwhile(self) -> bool:
        """Whether a checkpoint within the epoch is worth its cost.

        One of the recipe's always is; one by default if the last one cost at most `MAX_OVERHEAD` of the steps since.
        """
        return bool(self._every) or self._seconds_since_saved >= max(CHECKPOINT_SECONDS, self._min_interval_seconds)
