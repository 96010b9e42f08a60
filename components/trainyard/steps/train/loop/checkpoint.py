"""Checkpoints under the commit protocol: what a stopped run needs to go on as if it had never stopped.

A checkpoint is the folder `ckpt-<step>` with state.npz (every variable of model, optimizer and loop) and progress.json.
The data position is the step itself, for the batches are a pure function of it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.train import Epoch, Rollback
from trainyard.contract.document import Document
from trainyard.errors import ConfigurationError, DataError, listed
from trainyard.graph import producer
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
