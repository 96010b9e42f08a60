"""Sums over real sockets between threads that stand for workers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainyard.core.errors import PeerLost
from trainyard.train.ring import Ring


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("sizes", [(1,), (3, 1), (100,), (100_003,), (70_001, 2, 300_000, 1)])
def test_every_worker_has_the_same_sums_to_the_bit(workers: int, sizes: tuple[int, ...]) -> None:
    draw = np.random.default_rng(sizes)
    given = [[draw.normal(size=size).astype(np.float32) for size in sizes] for _ in range(workers)]
    rings = joined(workers)
    with ThreadPoolExecutor(workers) as threads:
        for _ in range(2):
            sums = list(threads.map(lambda ring, vectors: ring.sum(*vectors), rings, given))
            for which, expected in enumerate(zip(*given, strict=True)):
                np.testing.assert_allclose(
                    sums[0][which], np.sum(expected, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5
                )
                for each in sums[1:]:
                    np.testing.assert_array_equal(each[which], sums[0][which])


def test_a_worker_that_is_gone_is_a_lost_peer() -> None:
    one, other = joined(2)
    other.after.close()
    other.before.close()
    with pytest.raises(PeerLost, match="worker 0: lost the connection"):
        for _ in range(3):
            one.sum(np.zeros(100_000, np.float32))


def joined(workers: int) -> list[Ring]:
    barrier, said = threading.Barrier(workers), []

    def agree(vector: np.ndarray) -> np.ndarray:
        said.append(vector)
        barrier.wait(10)
        return np.sum(said, axis=0, dtype=np.float32)

    with ThreadPoolExecutor(workers) as threads:
        return list(
            threads.map(lambda index: Ring.joined(index, ["127.0.0.1"] * workers, range(1), agree), range(workers))
        )
