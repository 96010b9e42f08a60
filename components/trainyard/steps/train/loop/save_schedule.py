"""When the loop saves checkpoints within an epoch."""

from __future__ import annotations

from trainyard.spec.training.train import Checkpoints

# Chosen: if the recipe names no interval, a checkpoint within an epoch is not closer to another than that.
CHECKPOINT_SECONDS = 30.0


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
