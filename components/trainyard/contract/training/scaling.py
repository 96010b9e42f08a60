"""Compares a gang's speed with that of one worker, from the records of both."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from trainyard.contract import keys
from trainyard.contract.artifacts.train import Training
from trainyard.errors import TrainyardError
from trainyard.storage import storage


@dataclass(frozen=True)
class Scaling:
    """`efficiency` is the gang's examples a second over `workers` times the recorded one worker's.

    same_part: the one worker had the batch that each worker of the gang has; otherwise the whole gang's.
    """

    workers: int
    efficiency: float
    one_worker: float
    same_part: bool


def scaling(training: Training, folder: str) -> Scaling | None:
    """Compare `training`, in `folder`, with a one-worker training in the same storage; None without one.

    It must be of the same model, precision, engine and hardware, with an equal batch a worker or, failing that, the
    same batch. None too if the number of workers changed.
    """
    if training.workers == 1 or len(training.worker_counts) > 1 or not training.examples_per_second:
        return None
    batch = _batch(training)
    parent, own = keys.split(folder)
    by_batch: dict[bool, Training] = {}
    for name in storage.children(parent):
        path = storage.join(parent, name)
        with suppress(TrainyardError, ValueError):  # of another version
            if name == own or not storage.committed(path):
                continue
            other = Training.read(path)
            steady = other.workers == 1 and len(other.worker_counts) < 2
            if steady and _alike(other, training) and _batch(other) in (batch, batch // training.workers):
                by_batch[_batch(other) != batch] = other
    if not by_batch:
        return None
    same_part = True in by_batch
    one = by_batch[same_part].examples_per_second
    return Scaling(training.workers, training.examples_per_second / training.workers / one, one, same_part)


def _batch(training: Training) -> int:
    return round(training.examples_per_second * training.step_ms / 1000)


def _alike(one: Training, other: Training) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("model", "parameters", "precision", "engine", "hardware", "cores")
    )
