"""A worker that makes the others wait is found by the times that they exchange, and noise names nobody."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.loop.speed import WINDOW_CALLS, WINDOW_SECONDS, WINDOWS, Stragglers
from trainyard.steps.train.peers.settings import Rank

CALL_SECONDS = WINDOW_SECONDS / WINDOW_CALLS


def feed(stragglers: Stragglers, calls: np.ndarray, first: int = 0) -> None:
    """Note calls of one step: each worker's own seconds, (calls, workers)."""
    for step, own in enumerate(calls.tolist(), first):
        stragglers.note_call(own, CALL_SECONDS, step)


def calls(*own: float, windows: int = WINDOWS) -> np.ndarray:
    return np.tile(own, (windows * WINDOW_CALLS, 1))


def test_a_slow_worker_is_named_with_its_node_after_three_windows_and_again_when_it_is_fast() -> None:
    past = GangHistory(team=[(0, "a"), (2, "c"), (3, "d")])
    watch = Stragglers(Rank(0, 3), past, measured=True)
    feed(watch, calls(0.02, 0.05, 0.021, windows=2))
    assert not past.stragglers and watch.slowest is None
    feed(watch, calls(0.02, 0.05, 0.021, windows=2), first=20)
    (found,) = past.stragglers
    assert str(found) == "worker 2 on c takes 50.0 ms a step, the others 20.5 ms, and they wait for it"
    assert (found.step, found.until, watch.slowest) == (29, None, found)
    feed(watch, calls(0.02, 0.02, 0.02, windows=1), first=40)
    assert past.stragglers == [found.model_copy(update={"until": 49})] and watch.slowest is None


def test_two_slow_workers_of_five_are_both_named_and_neither_is_if_all_are_slow() -> None:
    past = GangHistory()
    feed(Stragglers(Rank(0, 5), past, measured=True), calls(1, 2, 1, 1.5, 1))
    assert [(found.worker, found.node) for found in past.stragglers] == [(1, ""), (3, "")]
    past = GangHistory()
    feed(Stragglers(Rank(0, 5), past, measured=True), calls(2, 2, 2, 2, 2))
    assert not past.stragglers


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_calls_that_vary_by_half_name_nobody_in_an_hour(workers: int) -> None:
    past = GangHistory()
    noise = np.random.default_rng(workers).lognormal(sigma=0.5, size=(600 * WINDOW_CALLS, workers))
    feed(Stragglers(Rank(0, workers), past, measured=True), 0.02 * noise)
    assert not past.stragglers


def test_calls_that_compile_do_not_count_and_only_the_chief_names() -> None:
    past = GangHistory()
    watch = Stragglers(Rank(0, 2), past, measured=True)
    feed(watch, calls(0.0, 9.0, windows=9))  # the other one compiled
    other = Stragglers(Rank(1, 2), past, measured=True)
    feed(other, calls(1, 9, windows=9))
    assert not past.stragglers
    other.note_own(0.5)
    assert other.values == [0.0, 1.0]  # the mean over two workers is 0.5
    assert (
        Stragglers(Rank(1, 2), past, measured=False).values == Stragglers(Rank(0, 1), past, measured=True).values == []
    )
