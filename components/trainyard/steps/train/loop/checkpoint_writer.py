"""Commits checkpoints beside the training, so that a step waits for a copy in memory and not for a disk."""

from __future__ import annotations

import math
import threading
import time

from trainyard.steps.train.loop.checkpoint import Arrays, CheckpointFolder, Progress

# Chosen: what checkpoints may cost of the training if the recipe does not say when to save: 1 %, of which 0.4 % is for
# what is not counted (measured: ResNet-50's next steps lose 1.22 to 1.43 times of it, for their part of the processor's
# cache).
MAX_OVERHEAD = 0.006


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
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, progress: Progress, arrays: Arrays, waited: float = 0.0) -> None:
        """Begin to write the checkpoint of `progress`; `arrays` belong to the writer from now on.

        waited: the seconds that a step has waited for them.
        """
        self.wait()
        self.min_interval_seconds = math.inf
        # Not a daemon: an interpreter that ends in the ordinary way lets it finish.
        thread = threading.Thread(target=self._write, args=(progress, arrays, waited), name="checkpoint")
        thread.start()
        self._thread = thread

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether nothing is being written any more, after at most `seconds`. Raises what the writing raised."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        self.check()
        return True

    def check(self) -> None:
        """Raise what the writing raised, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, progress: Progress, arrays: Arrays, waited: float) -> None:
        start = time.perf_counter()
        try:
            self.checkpoints.save(progress, arrays)
            self.count += 1
        except BaseException as error:  # noqa: BLE001 - raised again by the next call
            self._error = error
        finally:
            self.seconds += time.perf_counter() - start
            self.min_interval_seconds = (waited + time.thread_time()) / MAX_OVERHEAD
