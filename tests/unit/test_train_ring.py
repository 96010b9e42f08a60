"""Sums over real sockets between threads that stand for workers."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainyard.errors import PeerLost
from trainyard.steps.train.engines.ring import Ring


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("sizes", [(1,), (3, 1), (100,), (100_003,), (70_001, 2, 300_000, 1)])
def test_every_worker_has_the_same_sums_to_the_bit(workers: int, sizes: tuple[int, ...]) -> None:
    draw = np.random.default_rng(sizes)
    values = [[draw.normal(size=size).astype(np.float32) for size in sizes] for _ in range(workers)]
    rings = connected(workers)
    with ThreadPoolExecutor(workers) as threads:
        for _ in range(2):
            sums = list(threads.map(lambda ring, vectors: ring.sum(*vectors), rings, values))
            for which, expected in enumerate(zip(*values, strict=True)):
                np.testing.assert_allclose(
                    sums[0][which], np.sum(expected, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5
                )
                for worker_sums in sums[1:]:
                    np.testing.assert_array_equal(worker_sums[which], sums[0][which])


def test_the_seconds_in_sums_are_those_of_waiting_for_a_slow_worker() -> None:
    rings, barrier = connected(3), threading.Barrier(3)

    def work(ring: Ring) -> float:
        seconds = 0.0
        for _ in range(5):
            barrier.wait(60)
            time.sleep(0.05 * (ring.index == 1))
            start = time.perf_counter()
            ring.sum(np.ones(100_000, np.float32))
            seconds += time.perf_counter() - start
        return seconds

    with ThreadPoolExecutor(3) as threads:
        inside = list(threads.map(work, rings))
    assert all(ring.seconds <= seconds for ring, seconds in zip(rings, inside, strict=True))
    assert min(rings[0].seconds, rings[2].seconds) > 0.1  # of the 0.25 s that worker 1 is slow


def test_a_worker_that_is_gone_is_a_lost_peer() -> None:
    one, other = connected(2)
    other.next_worker.close()
    other.previous_worker.close()
    with pytest.raises(PeerLost, match="worker 0: lost the connection"):
        for _ in range(3):
            one.sum(np.zeros(100_000, np.float32))


def test_strangers_at_every_port_of_the_ring_are_not_waited_for() -> None:
    idle: list[socket.socket] = []

    def crowd(ports: list[int]) -> None:
        for port in ports:
            idle.extend(socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(50))
            loud = socket.create_connection(("127.0.0.1", port), timeout=60)
            loud.sendall(bytes(1000))
            idle.append(loud)

    one, other = connected(2, crowd)  # one after the other, they would take longer than a ring may
    with ThreadPoolExecutor(2) as threads:
        sums = list(threads.map(lambda ring: ring.sum(np.ones(3, np.float32)), (one, other)))
    np.testing.assert_array_equal(sums[0][0], [2, 2, 2])
    for connection in idle:
        connection.close()


def test_a_worker_of_another_gang_or_of_an_earlier_ring_is_a_stranger() -> None:
    with pytest.raises(PeerLost, match="no ring with its neighbors within 0"):
        connected(2, tokens=["one", "another"], seconds=0.3)


def test_neighbors_that_do_not_come_are_a_lost_peer() -> None:
    with pytest.raises(PeerLost, match="worker 0: no ring with its neighbors within 0"):
        Ring.connect(0, ["127.0.0.1"] * 2, range(1), lambda vector: vector + np.float32(1), "token", 0.2)


def test_a_worker_with_more_than_a_thousand_open_files_waits_for_the_others() -> None:
    (soft, hard), descriptors = resource.getrlimit(resource.RLIMIT_NOFILE), []
    if hard < 3000:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    try:
        descriptors = [os.dup(0) for _ in range(1100)]
        one, other = connected(2)
        assert one.previous_worker.fileno() > 1023
        with ThreadPoolExecutor(2) as threads:
            late = threads.submit(lambda: (time.sleep(0.05), other.sum(np.ones(1, np.float32)))[1])
            np.testing.assert_array_equal(one.sum(np.ones(1, np.float32))[0], late.result()[0])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(
    workers: int,
    crowd: Callable[[list[int]], None] = lambda ports: None,
    tokens: list[str] | None = None,
    seconds: float = 60,
) -> list[Ring]:
    """Return the rings of `workers` threads. crowd: is told the ports once all listen, before anybody connects."""
    payload: list[np.ndarray] = []
    barrier = threading.Barrier(workers, lambda: crowd([int(port) for port in sum(payload)[:workers]]))

    def all_reduce(vector: np.ndarray) -> np.ndarray:
        payload.append(vector)
        barrier.wait(60)
        return np.sum(payload, axis=0, dtype=np.float32)

    def join(index: int) -> Ring:
        token = tokens[index] if tokens else "of this gang"
        return Ring.connect(index, ["127.0.0.1"] * workers, range(1), all_reduce, token, seconds)

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(join, range(workers)))
