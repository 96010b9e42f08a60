"""How long requests wait for one of several servers: an M/G/c queue, of whose service time median and p95 are known.

Requests come at random (Poisson), and each takes a server for a log-normal time with the measured percentiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

_P95 = NormalDist().inv_cdf(0.95)
_POINTS = 400  # of the service time's distribution; chosen: twice as many move no p95 by 0.1 %


@dataclass(frozen=True)
class Service:
    """The time that one request takes a server, in seconds: median and 95th percentile."""

    p50: float
    p95: float

    @property
    def _sigma(self) -> float:
        return math.log(max(self.p95 / self.p50, 1.0)) / _P95

    @property
    def mean(self) -> float:
        """Seconds on average, of the log-normal distribution with these percentiles."""
        return self.p50 * math.exp(self._sigma**2 / 2)

    @property
    def squared_variation(self) -> float:
        """Variance by the square of the mean."""
        return math.exp(self._sigma**2) - 1

    def quantile(self, share: float) -> float:
        """Return the seconds that `share` of the requests take at most."""
        return self.p50 * math.exp(self._sigma * NormalDist().inv_cdf(share))


def waiting_probability(servers: int, load: float) -> float:
    """Return the probability that a request has to wait: Erlang's C formula. load: requests in service, below servers.

    Source: A. K. Erlang, Solution of some problems in the theory of probabilities of significance in automatic
    telephone exchanges, 1917.

    >>> round(waiting_probability(1, 0.5), 3), round(waiting_probability(2, 1.0), 3)
    (0.5, 0.333)
    """
    blocked = 1.0  # Erlang's B, by its recursion over the servers
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


def response_p95(rate: float, servers: int, service: Service) -> float:
    """Return the seconds within which 95 % of the requests are answered; infinite if they come faster than served.

    The mean wait is Erlang's, times half of one plus the squared variation of the service time; who waits, waits an
    exponential time. Source: A. M. Lee and P. A. Longton, Queueing processes associated with airline passenger
    check-in, Operational Research Quarterly 10, 1959.
    """
    load = rate * service.mean
    if load >= servers:
        return math.inf
    waits = waiting_probability(servers, load)
    # Of those who wait.
    wait = service.mean / (servers - load) * (1 + service.squared_variation) / 2
    times = [service.quantile((point + 0.5) / _POINTS) for point in range(_POINTS)]

    def later(limit: float) -> float:
        """Return the share of requests that are answered after `limit`."""
        late = (waits * math.exp(-(limit - time) / wait) if time <= limit else 1.0 for time in times)
        return sum(late) / _POINTS

    low, high = 0.0, times[-1] + 20 * wait
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if later(middle) > 0.05 else (low, middle)
    return high


def replicas(rate: float, limit: float, servers: int, service: Service) -> int:
    """Return the fewest replicas of `servers` each whose p95 is at most `limit` if requests are spread at random.

    limit must be above the service time's own p95, or no number will do.
    """
    low, high = 0, 1
    while response_p95(rate / high, servers, service) > limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if response_p95(rate / middle, servers, service) <= limit else (middle, high)
    return high
