"""Checkpoints that are written while the training goes on."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest

from trainyard.errors import InfrastructureError
from trainyard.steps.train.loop.checkpoint import (
    CHECKPOINT_SECONDS,
    MAX_OVERHEAD,
    Arrays,
    CheckpointFolder,
    CheckpointWriter,
    Progress,
    interval_seconds,
)

STATE = {"loop/step": np.asarray(7)}


class BlockingCheckpoints(CheckpointFolder):
    """Checkpoints whose writing waits until it is let go, and may then fail."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "me", keep=3)
        self.go = threading.Event()
        self.at_once = 0
        self.max_at_once = 0
        self.error: Exception | None = None

    def save(self, progress: Progress, arrays: Arrays) -> None:
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        assert self.go.wait(60)
        if self.error:
            raise self.error
        super().save(progress, arrays)
        self.at_once -= 1


def test_a_save_returns_before_the_checkpoint_is_written_and_nothing_is_readable_until_it_is(tmp_path: Path) -> None:
    checkpoints = BlockingCheckpoints(str(tmp_path))
    writer = CheckpointWriter(checkpoints)
    writer.save(progress(5), STATE)
    assert checkpoints.steps() == [] and not writer.wait(0.01)
    checkpoints.go.set()
    assert writer.wait()
    assert checkpoints.steps() == [5] and writer.count == 1


def test_a_newer_checkpoint_waits_for_the_one_before_and_both_are_written(tmp_path: Path) -> None:
    checkpoints = BlockingCheckpoints(str(tmp_path))
    writer = CheckpointWriter(checkpoints)
    writer.save(progress(5), STATE)
    threading.Timer(0.05, checkpoints.go.set).start()
    writer.save(progress(6), STATE)
    assert writer.wait()
    assert checkpoints.steps() == [5, 6] and checkpoints.max_at_once == 1


def test_what_went_wrong_in_writing_is_raised_once_by_the_next_call(tmp_path: Path) -> None:
    checkpoints = BlockingCheckpoints(str(tmp_path))
    checkpoints.error = InfrastructureError("the disk is full")
    checkpoints.go.set()
    writer = CheckpointWriter(checkpoints)
    writer.save(progress(5), STATE)
    with pytest.raises(InfrastructureError, match="the disk is full"):
        writer.wait()
    assert writer.wait() and checkpoints.steps() == []


def test_the_next_checkpoint_is_so_far_that_this_one_costs_its_share(tmp_path: Path) -> None:
    checkpoints = BlockingCheckpoints(str(tmp_path))
    writer = CheckpointWriter(checkpoints)
    assert writer.interval_seconds == CHECKPOINT_SECONDS
    writer.save(progress(5), STATE, waited=1.0)
    assert writer.interval_seconds == math.inf
    checkpoints.go.set()
    assert writer.wait()
    assert 1 < MAX_OVERHEAD * writer.interval_seconds < 2


def lost_share(interval: float, cost: float, between: float) -> float:
    """Return the share of a training that checkpoints and steps repeated after losses take, for losses at random."""
    draw, kept = np.random.default_rng(0), 0.0
    gaps = draw.exponential(between, 20_000)
    kept = float((np.floor(gaps / (interval + cost)) * interval).sum())
    return 1 - kept / float(gaps.sum())


def test_at_a_known_rate_no_other_interval_loses_much_less_than_the_chosen_one() -> None:
    for cost, rate in ((1.0, 2.0), (10.0, 2.0), (10.0, 0.1), (60.0, 0.5)):
        chosen = lost_share(interval_seconds(cost, rate), cost, 3600 / rate)
        others = [lost_share(interval_seconds(cost, rate) * factor, cost, 3600 / rate) for factor in (0.3, 0.5, 2, 3)]
        assert chosen < min(others)


def progress(step: int) -> Progress:
    return Progress(identity="me", step=step, history=[])
