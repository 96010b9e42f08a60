"""The queue formula against a simulated queue, and what it cannot promise."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from trainyard_control.planning.serving import Service, replicas, response_p95, waiting_probability


def simulated_p95(rate: float, servers: int, service: Service, requests: int = 60_000) -> float:
    """Return the p95 of a queue that is run request by request."""
    chance = random.Random(7)
    sigma = math.log(service.p95 / service.p50) / 1.6449
    free = [0.0] * servers
    now, answered = 0.0, []
    for _ in range(requests):
        now += chance.expovariate(rate)
        start = max(now, heapq.heappop(free))
        end = start + service.p50 * math.exp(chance.gauss(0, sigma))
        heapq.heappush(free, end)
        answered.append(end - now)
    return sorted(answered)[int(0.95 * requests)]


@pytest.mark.parametrize(
    ("servers", "load", "p95"), [(1, 0.3, 0.012), (1, 0.7, 0.02), (2, 0.8, 0.015), (4, 0.5, 0.03), (4, 0.85, 0.011)]
)
def test_the_formula_gives_the_p95_of_a_simulated_queue(servers: int, load: float, p95: float) -> None:
    service = Service(p50=0.01, p95=p95)
    rate = load * servers / service.mean
    assert response_p95(rate, servers, service) == pytest.approx(simulated_p95(rate, servers, service), rel=0.1)


def test_with_exponential_service_the_mean_wait_is_erlangs() -> None:
    assert waiting_probability(1, 0.8) == pytest.approx(0.8)
    assert waiting_probability(3, 2.0) == pytest.approx(4 / 9)  # by hand: (8/6 * 3) / (1 + 2 + 2 + (8/6 * 3))


def test_more_requests_than_servers_can_take_never_end() -> None:
    assert response_p95(201, 2, Service(0.01, 0.01)) == math.inf


def test_the_fewest_replicas_keep_the_limit_and_one_less_does_not() -> None:
    service = Service(0.01, 0.013)
    count = replicas(200, 0.05, 1, service)
    assert response_p95(200 / count, 1, service) <= 0.05 < response_p95(200 / (count - 1), 1, service)
    assert count >= 3, "two of 100 requests a second have no time left"


def test_an_idle_queue_answers_in_the_service_time() -> None:
    assert response_p95(1e-6, 1, Service(0.01, 0.02)) == pytest.approx(0.02, rel=0.01)
