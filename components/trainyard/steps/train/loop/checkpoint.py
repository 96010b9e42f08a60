"""Checkpoints under the commit protocol, and when to write one.

A checkpoint is the folder `ckpt-<step>` with state.npz (all variables of model, optimizer and loop) and progress.json.
The step is the data position, because the batches are a pure function of it.
"""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.train import Epoch, Rollback, best_first
from trainyard.contract.document import Document
from trainyard.errors import ConfigurationError, DataError, listed
from trainyard.graph import producer, remedy
from trainyard.spec.selection import BY_LOSS, Selection
from trainyard.spec.train import Checkpoints
from trainyard.storage import storage

Arrays = Mapping[str, np.ndarray]

_STATE = "state.npz"
_PRODUCER = producer("train")


class Progress(Document):
    """The content of progress.json. identity: digest of the recipe and the examples.

    began: time.time() when the first byte of the examples was read; None in older checkpoints.
    """

    file = "progress.json"

    identity: str
    step: int
    history: list[Epoch]
    rollbacks: list[Rollback] = []
    began: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint in memory."""

    progress: Progress
    arrays: dict[str, np.ndarray]


@dataclass(eq=False)
class CheckpointFolder:
    """The checkpoints of one run below the folder `uri`: the last `keep` and the best one by `selection`."""

    uri: str
    identity: str
    keep: int
    writes: bool = True
    selection: Selection = BY_LOSS

    def __post_init__(self) -> None:
        if self.writes:
            storage.remove_unfinished(self.uri)

    def save(self, progress: Progress, arrays: Arrays) -> None:
        """Commit `ckpt-<step>` and remove checkpoints that are neither among the last nor the best."""
        step, final = progress.step, self._path(progress.step)
        storage.remove(final)
        with storage.stage(final, producer=_PRODUCER) as folder:
            np.savez(folder / _STATE, **arrays)  # type: ignore[arg-type]
            progress.write(folder)
        steps = self.steps()
        best = best_epoch((epoch for epoch in progress.history if epoch.step in steps), self.selection)
        retained = {*steps[-self.keep :], best.step if best else step}
        for other in steps:
            if other not in retained:
                storage.remove(self._path(other))

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints in rising order."""
        names = [name.removeprefix("ckpt-") for name in storage.children(self.uri) if name.startswith("ckpt-")]
        return sorted(int(name) for name in names if name.isdigit())

    def latest(self, expected: Arrays) -> Checkpoint | None:
        """Return the newest complete checkpoint of this run, or None; warn about each skipped one.

        Raises `ConfigurationError` if a checkpoint of this run holds other variables than `expected`.
        """
        for step in reversed(self.steps()):
            try:
                checkpoint = self.read(step)
            except DataError as error:
                events.warn(f"{self._path(step)}: skipped, the one before is used if there is one ({error})")
                continue
            if checkpoint.progress.identity == self.identity:
                _check_variables(self._path(step), checkpoint.arrays, expected)
                self._check_best(checkpoint.progress.history)
                return checkpoint
            events.warn(f"{self._path(step)}: skipped, it was made with another recipe or other examples.")
        return None

    def _check_best(self, history: list[Epoch]) -> None:
        """Warn if the best epoch's checkpoint is lost; remove a damaged one, so that another is kept instead."""
        best = best_epoch(history, self.selection)
        if best is None or not self.writes:
            return
        path = self._path(best.step)
        try:
            storage.local(path, remedy("train"))
        except DataError as error:
            storage.remove(path)
            events.warn(f"{lost_best_message(best)} ({error})")

    def read(self, step: int) -> Checkpoint:
        """Return the checkpoint of `step`. Raises `DataError` if it is missing, truncated or corrupt."""
        path = self._path(step)
        try:
            folder = storage.local(path, remedy("train"))
            manifest = storage.require(str(folder), remedy("train"))
            if manifest.producer != _PRODUCER:
                raise DataError(f"{path}: was written by {manifest.producer}.")
            with np.load(folder / _STATE, allow_pickle=False) as archive:
                return Checkpoint(Progress.read(str(folder)), {name: archive[name] for name in archive.files})
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from error

    def _path(self, step: int) -> str:
        return storage.join(self.uri, f"ckpt-{step}")


def best_epoch(history: Iterable[Epoch], selection: Selection = BY_LOSS) -> Epoch | None:
    """Return the first of `best_first`, None without epochs."""
    return next(iter(best_first(history, selection)), None)


def lost_best_message(best: Epoch) -> str:
    """Return the warning for a missing checkpoint of the best epoch."""
    return (
        f"the checkpoint of epoch {best.epoch}, the best one (eval loss {best.eval_loss:.6g}), is lost, so the model "
        "is that of another epoch. Run with --from train to get it again"
    )


def _check_variables(path: str, arrays: Arrays, expected: Arrays) -> None:
    faults = [f"{name} is missing" for name in expected if name not in arrays]
    faults += [f"{name} is not known" for name in arrays if name not in expected]
    faults += [
        f"{name} is {arrays[name].shape} instead of {value.shape}"
        for name, value in expected.items()
        if name in arrays and arrays[name].shape != value.shape
    ]
    if faults:
        raise ConfigurationError(
            f"{path}: holds another model: {listed(faults, 5, '; ')}. "
            "Name another checkpoints folder, or remove this one."
        )


# Chosen: maximum cost of checkpoints without an interval in the recipe and a rate of preemptions in the environment:
# 1 % of the training. 0.4 % of it is for uncounted cost (measured: ResNet-50's next steps lose 1.22 to 1.43 times the
# counted cost, because they share the processor's cache).
MAX_OVERHEAD = 0.006
# Chosen: minimum time between checkpoints without an interval in the recipe.
CHECKPOINT_SECONDS = 30.0


def interval_seconds(cost: float, preemptions_per_hour: float | None) -> float:
    """Return the seconds from one checkpoint to the next if one costs `cost` seconds.

    At a known rate those that lose the least time to checkpoints and repeated steps together: the root of 2 * cost *
    mean time between preemptions (Young, A first order approximation to the optimum checkpoint interval, 1974).

    >>> interval_seconds(9, 2), interval_seconds(9, 0), interval_seconds(0.9, None)
    (180.0, inf, 150.0)
    """
    if preemptions_per_hour is None:
        return max(CHECKPOINT_SECONDS, cost / MAX_OVERHEAD)
    if preemptions_per_hour == 0:
        return math.inf
    return max(CHECKPOINT_SECONDS, math.sqrt(2 * cost * 3600 / preemptions_per_hour))


class CheckpointWriter:
    """Writes the checkpoints of a run in a thread, one at a time.

    A new checkpoint waits for the one before. None is skipped, because any epoch may turn out to be the best, and at
    most one copy of the state exists. seconds: total time of writing.

    interval_seconds: `interval_seconds` by the cost of the last checkpoint; infinite while one is written. The cost is
    the time that a step waited plus the CPU time of the writing thread; threads of a bucket's client are not counted.
    """

    def __init__(self, checkpoints: CheckpointFolder, preemptions_per_hour: float | None = None) -> None:
        self.checkpoints = checkpoints
        self.seconds = 0.0
        self.interval_seconds = CHECKPOINT_SECONDS
        self.count = 0
        # At a normal exit the interpreter lets the thread finish.
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._preemptions_per_hour = preemptions_per_hour
        self._writing: Future[None] | None = None

    def save(self, progress: Progress, arrays: Arrays, waited: float = 0.0) -> None:
        """Start to write a checkpoint; `arrays` belong to the writer from now on.

        waited: seconds that a step waited for the arrays.
        """
        self.wait()
        self.interval_seconds = math.inf
        self._writing = self._executor.submit(self._write, progress, arrays, waited)

    def wait(self, seconds: float | None = None) -> bool:
        """Return True once no checkpoint is being written, False after `seconds`. Raises the writer's error."""
        if self._writing is not None and wait([self._writing], seconds).not_done:
            return False
        self.check()
        return True

    def check(self) -> None:
        """Raise the writer's error, once."""
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
            cost = waited + time.thread_time() - cpu_start
            self.interval_seconds = interval_seconds(cost, self._preemptions_per_hour)


class SaveSchedule:
    """When to save within an epoch: by the recipe's interval, otherwise by time.

    The workers of a gang agree because they all pass the gang's means.
    """

    def __init__(self, settings: Checkpoints, steps_per_epoch: int) -> None:
        self.saved_step = -1
        # Half of the recipe's interval: while a checkpoint is written, the one before it is at most an interval old.
        self._every = max(1, settings.every_steps // 2) if settings.every_steps else None
        self._steps_per_epoch = steps_per_epoch
        self._seconds_since_saved = self._step_seconds = self._interval_seconds = 0.0

    def note_saved(self, step: int) -> None:
        """Start the interval at `step`, which is saved now."""
        self.saved_step, self._seconds_since_saved = step, 0.0

    def note_steps(self, count: int, step_seconds: float, interval_seconds: float) -> None:
        """Note that `count` steps took `step_seconds` each; interval_seconds: as of `CheckpointWriter`."""
        self._seconds_since_saved += count * step_seconds
        self._step_seconds, self._interval_seconds = step_seconds, interval_seconds

    def steps_left(self, step: int) -> int:
        """Return the number of steps from `step` to the epoch's end or an earlier checkpoint by the recipe."""
        left = self._steps_per_epoch - step % self._steps_per_epoch
        return min(left, self.saved_step + self._every - step) if self._every else left

    def is_due(self, step: int) -> bool:
        """Return True to save at `step`. By time, not where half an interval later the epoch's end is saved anyway."""
        left = -step % self._steps_per_epoch
        if not left:
            return False
        if self._every:
            return step == self.saved_step + self._every
        interval = self._interval_seconds
        return self._seconds_since_saved >= interval and left * self._step_seconds >= interval / 2
