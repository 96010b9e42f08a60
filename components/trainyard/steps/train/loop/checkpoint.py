"""Checkpoints under the commit protocol: what a stopped run needs to go on as if it had never stopped.

A checkpoint is the folder `ckpt-<step>` with state.npz (every variable of model, optimizer and loop) and progress.json.
The data position is the step itself, for the batches are a pure function of it.
"""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.train import Epoch, Rollback
from trainyard.contract.document import Document
from trainyard.errors import ConfigurationError, DataError, listed
from trainyard.graph import producer
from trainyard.spec.training.train import Checkpoints
from trainyard.storage import storage

Arrays = Mapping[str, np.ndarray]

_STATE = "state.npz"
_PRODUCER = producer("train")


class Progress(Document):
    """What a checkpoint knows beside its arrays. identity names the recipe and the examples that it belongs to.

    began: when the first byte of the examples was read, as time.time(); None of an earlier version.
    """

    file = "progress.json"

    identity: str
    step: int
    history: list[Epoch]
    rollbacks: list[Rollback] = []
    began: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, read back."""

    progress: Progress
    arrays: dict[str, np.ndarray]


@dataclass(eq=False)
class CheckpointFolder:
    """The checkpoints of one run below the folder `uri`: the last `keep` of them and the best one."""

    uri: str
    identity: str
    keep: int
    writes: bool = True

    def __post_init__(self) -> None:
        if self.writes:
            storage.remove_unfinished(self.uri)

    def save(self, progress: Progress, arrays: Arrays) -> None:
        """Commit `ckpt-<step>` of `progress` and remove what is neither among the last ones nor the best."""
        step, final = progress.step, self._path(progress.step)
        storage.remove(final)
        with storage.stage(final, producer=_PRODUCER) as folder:
            np.savez(folder / _STATE, **arrays)  # type: ignore[arg-type]
            progress.write(folder)
        steps = self.steps()
        best = best_epoch([epoch for epoch in progress.history if epoch.step in steps])
        retained = {*steps[-self.keep :], best.step if best else step}
        for other in steps:
            if other not in retained:
                storage.remove(self._path(other))

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are there, in rising order."""
        names = [name.removeprefix("ckpt-") for name in storage.children(self.uri) if name.startswith("ckpt-")]
        return sorted(int(name) for name in names if name.isdigit())

    def latest(self, expected: Arrays) -> Checkpoint | None:
        """Return the newest complete checkpoint of this very run, or None; a skipped one is a warning.

        Raises `ConfigurationError` if a checkpoint holds other variables than `expected`: another model's.
        """
        for step in reversed(self.steps()):
            try:
                checkpoint = self.read(step)
            except DataError as error:
                events.emit(
                    "warning", message=f"{self._path(step)}: skipped for the one before, if there is one ({error})"
                )
                continue
            _check_variables(self._path(step), checkpoint.arrays, expected)
            if checkpoint.progress.identity == self.identity:
                self._check_best(checkpoint.progress.history)
                return checkpoint
            events.emit(
                "warning", message=f"{self._path(step)}: skipped, it was made with another recipe or other examples."
            )
        return None

    def _check_best(self, history: list[Epoch]) -> None:
        """Warn if the best epoch's checkpoint is lost, and remove a damaged one: another becomes the one to keep."""
        best = best_epoch(history)
        if best is None or not self.writes:
            return
        path = self._path(best.step)
        try:
            storage.local(path, made_by="train")
        except DataError as error:
            storage.remove(path)
            events.emit("warning", message=f"{lost_best_message(best)} ({error})")

    def read(self, step: int) -> Checkpoint:
        """Return the checkpoint of `step`. Raises `DataError` if it is missing, cut or corrupt."""
        path = self._path(step)
        try:
            folder = storage.local(path, made_by="train")
            manifest = storage.require(str(folder), made_by="train")
            if manifest.producer != _PRODUCER:
                raise DataError(f"{path}: was written by {manifest.producer}.")
            with np.load(folder / _STATE, allow_pickle=False) as archive:
                return Checkpoint(Progress.read(str(folder)), {name: archive[name] for name in archive.files})
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from error

    def _path(self, step: int) -> str:
        return storage.join(self.uri, f"ckpt-{step}")


def best_epoch(history: list[Epoch]) -> Epoch | None:
    """Return the epoch of the smallest eval loss, the first of equals, or None if none has ended."""
    return min(history, key=lambda epoch: epoch.eval_loss, default=None)


def lost_best_message(best: Epoch) -> str:
    """Return the sentence about the best epoch, whose checkpoint is gone."""
    return (
        f"the checkpoint of epoch {best.epoch}, the best one (eval loss {best.eval_loss:.6g}), is lost, so the model "
        "is that of another epoch. Run with --from train to have it again"
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
