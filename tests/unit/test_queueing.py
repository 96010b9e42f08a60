"""The simulated queue against a closed form, and what it cannot promise."""

from __future__ import annotations

import math

import pytest

from trainyard_control.planning.serving import Service, replicas, response_p95


@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
def test_a_server_with_a_constant_service_time_gives_the_p95_of_erlangs_closed_form(load: float) -> None:
    """Source: A. K. Erlang, The theory of probabilities and telephone conversations, 1909 (M/D/1)."""

    def answered_within(time: float) -> float:
        wait = time - 1.0  # a service takes one second
        terms = (
            (load * (k - wait)) ** k / math.factorial(k) * math.exp(-load * (k - wait)) for k in range(int(wait) + 1)
        )
        return (1 - load) * sum(terms)

    assert answered_within(response_p95(load, 1, Service(p50=1.0, p95=1.0))) == pytest.approx(0.95, abs=0.01)


def test_more_requests_than_servers_can_take_never_end() -> None:
    assert response_p95(201, 2, Service(0.01, 0.01)) == math.inf


def test_the_fewest_replicas_keep_the_limit_and_one_less_does_not() -> None:
    service = Service(0.01, 0.013)
    count = replicas(200, 0.05, 1, service)
    assert response_p95(200 / count, 1, service) <= 0.05 < response_p95(200 / (count - 1), 1, service)
    assert count >= 3, "two of 100 requests a second have no time left"


def test_an_idle_queue_answers_in_the_service_time() -> None:
    assert response_p95(1e-6, 1, Service(0.01, 0.02)) == pytest.approx(0.02, rel=0.02)
