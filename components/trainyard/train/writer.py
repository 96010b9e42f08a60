"""Commits checkpoints beside the training, so that a step waits for a copy in memory and not for a disk."""

from __future__ import annotations

import threading
import time

from trainyard.train.checkpoint import Arrays, Checkpoints, Progress


class Writer:
    """Writes the checkpoints of one run in a thread, one at a time and each of them.

    A newer one waits for the one before: the weights of an epoch may turn out to be the best, so none is left out, and
    no more than one copy of the state is ever held. `seconds` is the time that writing took, beside the training.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.seconds = 0.0
        self.count = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, progress: Progress, arrays: Arrays) -> None:
        """Begin to write the checkpoint of `progress`; `arrays` belong to the writer from now on."""
        self.wait()
        # Not a daemon: an interpreter that ends in the ordinary way lets it finish.
        self._thread = threading.Thread(target=self._write, args=(progress, arrays), name="checkpoint")
        self._thread.start()

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

    def _write(self, progress: Progress, arrays: Arrays) -> None:
        start = time.perf_counter()
        try:
            self.checkpoints.save(progress, arrays)
            self.count += 1
        except BaseException as error:  # noqa: BLE001 - raised again by the next call
            self._error = error
        finally:
            self.seconds += time.perf_counter() - start
