"""Measures how gangs of hundreds meet, restart, shrink, grow and end, by the real rendezvous and simulated workers.

A worker of the simulation connects, proves that it knows the token, sends `ready` and a heartbeat a second, and answers
`stop` with `ready`, as a supervisor does. What a pod or an engine takes to start is not in the figures.
"""

from __future__ import annotations

import json
import resource
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainyard.contract.artifacts.train import Straggler
from trainyard.errors import PeerLost, failure_fields
from trainyard.process import ports
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang import rendezvous
from trainyard.steps.train.gang.pods.job import Gang, worker_job
from trainyard.steps.train.peers import channel
from trainyard.steps.train.peers.channel import HEARTBEAT_SECONDS, MessageStream

WORKERS = (16, 64, 256, 1024)
DISTURBED = (256, 1024)
REPLACE_SECONDS = 2  # that an elastic gang waits for a lost worker; not in the figures
STRAGGLERS = 32  # found at one time, as if a rack were slow
TOKEN = "benchmark"
REST_SECONDS = 10
CALLS = 32  # workers that call at one time
_TURNS = 50  # of the heartbeats in a second
_SERVE = """
import resource, sys
from trainyard.steps.train.gang import rendezvous
host, port, token, past, replace, *counts = sys.argv[1:]
meeting = rendezvous.Rendezvous(
    host, int(port), [*map(int, counts)], 600.0, token, lambda: None, float(replace), past
)
meeting.open()
print("open", flush=True)
for line in sys.stdin:
    used = resource.getrusage(resource.RUSAGE_SELF)
    known = len(meeting._streams), len(meeting._past.stragglers)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, *known, flush=True)
"""


@dataclass(frozen=True)
class Measurement:
    """meet, restart: seconds from the first call, and from the loss of a worker, until the last worker starts.

    meet_cpu, restart_cpu: CPU-seconds of worker 0's supervisor in these. cores: its share of a core at rest. messages:
    that it sends a second at rest. pods_mib: what Kubernetes lists of the gang's pods, without their states.
    """

    workers: int
    meet: float
    meet_cpu: float
    restart: float
    restart_cpu: float
    messages: float
    cores: float
    peak_mib: float
    pods_mib: float


@dataclass
class Crowd:
    """The simulated workers of one gang. started: the workers whose last message was `start`."""

    port: int
    workers: int
    streams: dict[int, MessageStream] = field(default_factory=dict)
    generation: int = 0
    started: set[int] = field(default_factory=set)
    messages: int = 0
    _readable: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _end: threading.Event = field(default_factory=threading.Event)

    def join(self, worker: int) -> None:
        """Connect `worker` as its supervisor does."""
        key = rendezvous.rendezvous_key(TOKEN)
        while True:
            try:
                stream = MessageStream(channel.connect("127.0.0.1", self.port, key, 2.0))
                break
            except OSError:
                time.sleep(0.2)
        self._ready(worker, stream)
        self.streams[worker] = stream
        self._readable.register(stream, selectors.EVENT_READ, worker)

    def _ready(self, worker: int, stream: MessageStream) -> None:
        address = f"ty-digits-8f2c1a9b-train-00000000-{worker}.ty-digits-8f2c1a9b-train-00000000:2223"
        stream.send("ready", worker=worker, generation=0, step=0, node=f"gke-pool-{worker}", address=address, away=0.0)

    def follow(self) -> None:
        """Read what the workers are told until `leave`."""
        while not self._end.is_set():
            for key, _ in self._readable.select(0.1):
                worker = key.data
                stream = self.streams[worker]
                messages = stream.receive()
                if messages is None:
                    if not self._end.is_set():
                        print(f"worker {worker} was cut off", file=sys.stderr)
                    return
                self.messages += len(messages)
                for message in messages:
                    if message["type"] == "start":
                        self.generation = message["generation"]
                        self.started.add(worker)
                    elif message["type"] == "stop":
                        self.started.discard(worker)
                        self._ready(worker, stream)

    def beat(self) -> None:
        """Send every worker's heartbeats until `leave`, spread over the interval as those of pods are."""
        turn = 0
        while not self._end.wait(HEARTBEAT_SECONDS / _TURNS):
            turn += 1
            for worker, stream in list(self.streams.items()):
                if worker % _TURNS == turn % _TURNS:
                    stream.send("beat", generation=self.generation, step=0)

    def tell(self, worker: int, kind: str, **fields: Any) -> None:
        """Send what the supervisor of `worker` tells of its training."""
        self.streams[worker].send(kind, generation=self.generation, step=1, **fields)

    def lose(self, worker: int) -> None:
        """Close the connection of `worker`."""
        stream = self.streams.pop(worker)
        self._readable.unregister(stream)
        self.started.clear()
        stream.close()

    def join_all(self, workers: range) -> None:
        """Connect `workers`, some at one time."""
        with ThreadPoolExecutor(CALLS) as calls:
            list(calls.map(self.join, workers))

    def start(self, since: float, workers: int) -> float:
        """Wait until `workers` have started; return the seconds since `since`."""
        while len(self.started) < workers:
            time.sleep(0.002)
        return time.monotonic() - since

    def leave(self) -> None:
        """Have the threads end."""
        self._end.set()


@dataclass(frozen=True)
class Disturbance:
    """A disturbance of a gang of `workers`: seconds, CPU-seconds and messages of worker 0's supervisor."""

    workers: int
    what: str
    seconds: float
    cpu: float
    messages: int
    peak_mib: float


@contextmanager
def _gang(workers: int, counts: list[int]) -> Iterator[tuple[Crowd, Callable[[], tuple[float, float, int, int]]]]:
    """Give the simulated workers of a gang whose rendezvous has a process of its own, and what that has used.

    That is its CPU-seconds, its peak memory in MiB, its connections and the stragglers that it knows.
    """
    (port,) = ports.free_ports(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", _SERVE, "127.0.0.1", str(port), TOKEN, f"{folder}/past", str(REPLACE_SECONDS)]
            + [str(count) for count in counts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server,
    ):
        assert server.stdin and server.stdout

        def used() -> tuple[float, float, int, int]:
            print(file=server.stdin, flush=True)
            while not (line := server.stdout.readline()).strip() or line.startswith(("open", "{")):
                pass
            seconds, kib, streams, stragglers = line.split()
            return float(seconds), float(kib) / 1024, int(streams), int(stragglers)

        server.stdout.readline()
        crowd = Crowd(port, workers)
        for target in (crowd.follow, crowd.beat):
            threading.Thread(target=target, daemon=True).start()
        yield crowd, used
        crowd.leave()
        server.kill()


def measure(workers: int) -> Measurement:
    """Measure a gang of `workers`."""
    with _gang(workers, [workers]) as (crowd, used):
        called = time.monotonic()
        crowd.join_all(range(workers))
        meet, met = crowd.start(called, workers), used()[0]
        heard = crowd.messages
        time.sleep(REST_SECONDS)
        rested, messages = used()[0], (crowd.messages - heard) / REST_SECONDS
        lost = time.monotonic()
        crowd.lose(workers // 2)
        crowd.join(workers // 2)
        restart = crowd.start(lost, workers)
        seconds, mib, *_ = used()
    cores = (rested - met) / REST_SECONDS
    return Measurement(workers, meet, met, restart, seconds - rested, messages, cores, mib, _pods_mib(workers))


def disturb(workers: int) -> Iterator[Disturbance]:
    """Measure what happens to an elastic gang, which trains with all of `workers` or half of them."""
    half = workers // 2
    with _gang(workers, [half, workers]) as (crowd, used):

        def measured(what: str, act: Callable[[], object], waits: float = 0) -> Disturbance:
            cpu, heard, since = used()[0], crowd.messages, time.monotonic()
            act()
            seconds, (after, mib, *_) = time.monotonic() - since - waits, used()
            return Disturbance(workers, what, seconds, after - cpu, crowd.messages - heard, mib)

        def lose(worker: int) -> None:
            crowd.lose(worker)
            crowd.start(0, half)

        def grow() -> None:
            for worker in (1, workers - 1):
                crowd.join(worker)
            crowd.tell(0, "began", began_at=0)
            crowd.start(0, workers)

        def lag() -> None:
            for worker in range(STRAGGLERS):
                found = Straggler(worker=worker, node=f"gke-pool-{worker}", step=1, own_ms=90.0, others_ms=60.0)
                crowd.tell(0, "straggler", straggler=found.model_dump())
            while used()[3] < STRAGGLERS:
                time.sleep(0.01)

        def cancel() -> None:
            crowd.leave()
            lost = failure_fields(PeerLost("worker 0 got SIGTERM"))
            for worker, stream in crowd.streams.items():
                crowd.tell(worker, "broke", **lost, cause=True, grace_seconds=10.0)
                stream.close()
            while used()[2]:
                time.sleep(0.01)

        crowd.join_all(range(workers - 1))
        crowd.start(0, half)
        yield measured("a spare replaces a lost worker", lambda: lose(1))
        yield measured("it grows to all workers", grow)
        yield measured(f"{STRAGGLERS} stragglers are found", lag)
        yield measured("it shrinks to half after a loss", lambda: lose(1), REPLACE_SECONDS)
        yield measured("all workers are canceled", cancel)


def _pods_mib(workers: int) -> float:
    gang = Gang(
        run="digits-f3a8c",
        image="registry.example.com/trainyard/cpu:0.1.0",
        command=("python", "-m", "trainyard.steps.train.gang.pods.pod"),
        workers=workers,
        pool=Pool.model_validate(
            {"kind": "cpu", "resources": {kind: {"cpu": "1", "memory": "2Gi"} for kind in ("requests", "limits")}}
        ),
        platform="gke",
    )
    return workers * len(json.dumps(worker_job(gang)["spec"]["template"])) / 2**20


def section(measurements: list[Measurement], disturbances: list[Disturbance]) -> str:
    """Return the part of docs/benchmarks.md."""
    lines = ["| workers | meet, s | CPU-s | restart, s | CPU-s | cores at rest | messages/s | peak MiB | pods MiB |"]
    lines.append("| ---: " * 9 + "|")
    for one in measurements:
        lines.append(
            f"| {one.workers:,} | {one.meet:.2f} | {one.meet_cpu:.2f} | {one.restart:.2f} | {one.restart_cpu:.2f} "
            f"| {one.cores:.3f} | {one.messages:,.0f} | {one.peak_mib:.0f} | {one.pods_mib:.1f} |"
        )
    lines += [
        "",
        "| what happens to an elastic gang | workers | s | CPU-s | messages | peak MiB |",
        "| --- " + "| ---: " * 5 + "|",
    ]
    for each in disturbances:
        lines.append(
            f"| {each.what} | {each.workers:,} | {each.seconds:.2f} | {each.cpu:.2f} | {each.messages:,} "
            f"| {each.peak_mib:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the part of the page."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    disturbances = [one for workers in DISTURBED for one in disturb(workers)]
    print(section([measure(workers) for workers in WORKERS], disturbances))


if __name__ == "__main__":
    main()
