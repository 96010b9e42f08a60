"""The number of replicas that answer a load in time, from the measured latency of the exported files.

The queue of a replica is simulated: requests come at random (Poisson), and each takes a server for a log-normal time
with the measured median and 95th percentile.
"""

from __future__ import annotations

import functools
import heapq
import json
import math
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from pydantic import TypeAdapter

from trainyard import quantity
from trainyard.contract.artifacts.export import Answer, ExportedFile, Exports, Latency
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.pools import Pool
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.planning.hardware import THIS_MACHINE
from trainyard_control.planning.history import outputs, readable

MAX_QPS = 1e6
_P95 = NormalDist().inv_cdf(0.95)
_REQUESTS = 20_000  # measured: other draws change the number of replicas by at most 3 %
_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Demand:
    """A load: requests per second with one example each, and the p95 in seconds."""

    qps: float
    p95: float


@dataclass(frozen=True)
class Serving:
    """The replicas on one pool; fields are None if nothing was measured there.

    servers: cores or accelerators of a replica, which is the number of requests that it answers at once.
    """

    pool: str
    feasible: bool = False
    chosen: bool = False
    format: str | None = None
    replicas: int | None = None
    servers: int | None = None
    utilisation: float | None = None
    p95_ms: float | None = None
    nodes: int | None = None
    usd_per_hour: float | None = None
    why: str = ""


def demand(text: str) -> Demand:
    """Parse the load of `--serve`. Raises `ConfigurationError` if it cannot be read.

    >>> demand("qps=200,p95=50ms")
    Demand(qps=200.0, p95=0.05)
    """
    number = r"([0-9]{1,7}(?:\.[0-9]{1,6})?)"
    match = re.fullmatch(rf"qps={number},p95={number}(ms|s)", text)
    if match:
        demanded = Demand(float(match[1]), float(match[2]) * _UNITS[match[3]])
        if 0 < demanded.qps <= MAX_QPS and demanded.p95 > 0:
            return demanded
    raise ConfigurationError(
        f"--serve {text[:80]}: says no load. Up to {MAX_QPS:,.0f} requests a second are possible. "
        "Write it such as qps=200,p95=50ms."
    )


def last_exports(recipe: Recipe, root: str) -> list[ExportedFile]:
    """Return the files of the recipe's last export. Raises `ConfigurationError` if the storage holds none."""
    uris = outputs(root, recipe.name, "export")
    if last := next(readable(Exports, reversed(uris)), None):
        return last.exports
    raise ConfigurationError(
        f"--serve: no latency of {recipe.name} is measured in {root}. The export step measures it: "
        f"trainyard run {recipe.name}."
    )


def answers(recipe: Recipe, root: str) -> dict[str, Latency]:
    """Read the latencies measured on accelerators, by their names in the catalog; the last file wins.

    They are JSON files in `answers_folder`. Raises `ConfigurationError` for one that cannot be read.
    """
    latencies: dict[str, Latency] = {}
    folder = answers_folder(recipe, root)
    for name in sorted(storage.children(folder)):
        uri = storage.join(folder, name)
        try:
            listed = json.loads(storage.read_text(uri) or "")["answers"]
            for answer in TypeAdapter(list[Answer]).validate_python(listed):
                latencies[answer.accelerator] = Latency(p50=answer.p50, p95=answer.p95)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f'--serve: {uri}: holds no latency. It is JSON such as {{"answers": [{{"accelerator": "nvidia-l4", '
                '"p50": 1.5, "p95": 2}]}, in milliseconds, as `trainyard bench mine.keras -o json` prints it.'
            ) from error
    return latencies


def answers_folder(recipe: Recipe, root: str) -> str:
    """Return the folder of the recipe's latencies measured on accelerators."""
    return storage.join(root, recipe.name, "latency")


def plan(
    environment: Environment,
    exports: list[ExportedFile],
    demand: Demand,
    measured: Mapping[str, Latency] | None = None,
    folder: str = "",
) -> list[Serving]:
    """Size the replicas on each pool, and choose the cheapest; without prices, the one with the fewest servers.

    measured: latencies by accelerator, as in `answers`. folder: where to put further ones.

    Raises `ConfigurationError` if no file can answer in time even without a queue.
    """
    files = {export.format: export.latency_ms for export in exports}
    measured = measured or {}
    fastest = min(exports, key=lambda export: export.latency_ms.p95)
    if fastest.latency_ms.p95 / 1000 >= demand.p95 and not any(
        took.p95 / 1000 < demand.p95 for took in measured.values()
    ):
        raise ConfigurationError(
            f"--serve: p95={demand.p95 * 1000:g}ms lies under the service time: the fastest export, {fastest.format}, "
            f"takes {fastest.latency_ms.p95:g} ms for 95 % of single requests, without any wait. Ask for more, or "
            "export a smaller network."
        )
    if environment.target == "local":
        return [
            replace(_sized(THIS_MACHINE, len(os.sched_getaffinity(0)), files, demand), chosen=True, why="the only one")
        ]
    rows = [
        _on_pool(name, pool, environment, files, demand)
        if pool.kind == "cpu"
        else _on_accelerator(name, pool, environment, measured, demand, folder)
        for name, pool in environment.pools.items()
    ]
    feasible = [row for row in rows if row.feasible]
    priced = [row for row in feasible if row.usd_per_hour is not None]
    best = min(
        priced or feasible,
        key=lambda row: (row.usd_per_hour or 0.0, (row.replicas or 0) * (row.servers or 0)),
        default=None,
    )
    why = f"the cheapest of {len(priced)} with a price" if priced else "the fewest cores; it has no price"
    return [replace(row, chosen=True, why=why) if row is best else row for row in rows]


def _on_pool(name: str, pool: Pool, environment: Environment, files: Mapping[str, Latency], demand: Demand) -> Serving:
    cores = math.floor(quantity.in_cores(pool.resources.requests.cpu))
    if not cores:
        return Serving(name, why="its pods have less than one core, and the latency is that of one")
    row = _sized(name, cores, files, demand)
    return _priced(row, pool, environment, _pods_a_node(pool, environment)) if row.feasible else row


def _on_accelerator(
    name: str, pool: Pool, environment: Environment, measured: Mapping[str, Latency], demand: Demand, folder: str
) -> Serving:
    """Size the replicas on a pool with accelerators: a replica uses those of one node."""
    accelerator = pool.accelerator or ""
    if accelerator not in measured:
        return Serving(name, why=f"no latency is measured on {accelerator}: {_how(pool)} {folder}/")
    row = _sized(name, pool.count, {f"on {accelerator}": measured[accelerator]}, demand)
    return _priced(row, pool, environment, 1) if row.feasible else row


def _how(pool: Pool) -> str:
    """Say how to measure latencies on the accelerator, up to the folder of the result."""
    leave_answers = f'leave {{"answers": [{{"accelerator": "{pool.accelerator}", "p50": ms, "p95": ms}}]}} in'
    if pool.kind == "gpu":
        return "run `trainyard bench mine.keras -o json` there with the pushed .keras file, and leave what it prints in"
    if pool.accelerator == "edge-tpu":
        return f"compile litert_int8 with edgetpu_compiler, time single answers on the device, and {leave_answers}"
    if pool.accelerator == "inferentia2":
        return f"compile the SavedModel with AWS Neuron, time single answers on the machine, and {leave_answers}"
    return f"time single answers of the SavedModel there, and {leave_answers}"


def _priced(row: Serving, pool: Pool, environment: Environment, pods_a_node: int) -> Serving:
    """Add the nodes that the replicas need, and their price."""
    nodes = math.ceil((row.replicas or 0) / pods_a_node)
    if pool.nodes is not None and nodes > pool.nodes:
        return replace(row, feasible=False, nodes=nodes, why=f"takes {nodes} nodes, and the pool has {pool.nodes}")
    price = machines.price(pool, environment.platform)
    return replace(row, nodes=nodes, usd_per_hour=round(nodes * price.usd_per_hour, 4) if price else None)


def _sized(name: str, servers: int, files: Mapping[str, Latency], demand: Demand) -> Serving:
    """Return the smallest number of replicas with `servers` servers each, over the formats."""
    rows = []
    for format_, took in files.items():
        service = Service(took.p50 / 1000, took.p95 / 1000)
        if service.p95 < demand.p95:
            number = replicas(demand.qps, demand.p95, servers, service)
            rate = demand.qps / number
            rows.append(
                Serving(
                    name,
                    feasible=True,
                    format=format_,
                    replicas=number,
                    servers=servers,
                    utilisation=round(rate * service.mean / servers, 3),
                    p95_ms=round(1000 * response_p95(rate, servers, service), 3),
                )
            )
    slow = Serving(name, why="one answer takes longer than that there, without any wait")
    return min(rows, key=lambda row: (row.replicas or 0, row.p95_ms or 0.0), default=slow)


def _pods_a_node(pool: Pool, environment: Environment) -> int:
    """Return the pods with the pool's requests that fit a node; 1 if its machine is not known."""
    machine = machines.machine_of(pool, environment.platform)
    if machine is None:
        return 1
    cores, memory = machines.allocatable(machine[1], environment.platform)
    requests = pool.resources.requests
    by_memory = memory / quantity.in_bytes(requests.memory)
    return max(1, math.floor(min(cores / quantity.in_cores(requests.cpu), by_memory)))


@dataclass(frozen=True)
class Service:
    """The time of one request on a server, in seconds: median and 95th percentile."""

    p50: float
    p95: float

    @property
    def sigma(self) -> float:
        """The deviation of the logarithm of the service time."""
        return math.log(max(self.p95 / self.p50, 1.0)) / _P95

    @property
    def mean(self) -> float:
        """The mean of the log-normal service time, in seconds."""
        return self.p50 * math.exp(self.sigma**2 / 2)


@functools.cache
def _draws() -> list[tuple[float, float]]:
    """Draw the gap before each request, of mean 1, and the standard normal deviation of its service time."""
    chance = random.Random(1)  # noqa: S311 - a simulation, no secret
    return [(chance.expovariate(1.0), chance.gauss(0.0, 1.0)) for _ in range(_REQUESTS)]


def response_p95(rate: float, servers: int, service: Service) -> float:
    """Return the 95th percentile of the response time in a simulated queue, whose servers take the oldest request.

    It grows with the rate, because every rate gets the same draws. It is infinite if requests come faster than they are
    served.
    """
    if rate * service.mean >= servers:
        return math.inf
    median, sigma = service.p50, service.sigma
    now, free, answered = 0.0, [0.0] * servers, []  # free: a heap of the times at which the servers become free
    for gap, deviation in _draws():
        now += gap / rate
        end = max(now, free[0]) + median * math.exp(sigma * deviation)
        heapq.heapreplace(free, end)
        answered.append(end - now)
    return sorted(answered)[int(0.95 * _REQUESTS)]


def replicas(rate: float, limit: float, servers: int, service: Service) -> int:
    """Return the smallest number of replicas whose p95 is at most `limit`, if requests are spread at random.

    limit must exceed the service time's own p95; otherwise no number is enough.
    """
    low = math.floor(rate * service.mean / servers)  # not enough: all servers would always be busy
    high = low + 1
    while response_p95(rate / high, servers, service) > limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if response_p95(rate / middle, servers, service) <= limit else (middle, high)
    return high
