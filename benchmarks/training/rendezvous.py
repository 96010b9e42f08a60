"""Measures the meeting and the restart of gangs of hundreds, by the real rendezvous and workers that do not train.

A worker of the simulation connects, proves that it knows the token, sends `ready` and a heartbeat a second, and answers
`stop` with `ready`, as a supervisor does. What a pod or an engine takes to start is not in the figures.
"""

from __future__ import annotations

import json
import resource
import selectors
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from trainyard import ports
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang import rendezvous
from trainyard.steps.train.gang.pods.job import Gang, worker_job
from trainyard.steps.train.peers import channel
from trainyard.steps.train.peers.channel import HEARTBEAT_SECONDS, MessageStream

WORKERS = (16, 64, 256, 1024)
TOKEN = "benchmark"
REST_SECONDS = 10
CALLS = 32  # workers that call at one time
_TURNS = 50  # of the heartbeats in a second
_SERVE = """
import resource, sys
from trainyard.steps.train.gang import rendezvous
host, port, workers, token = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
meeting = rendezvous.Rendezvous(host, port, [workers], 600.0, token, on_failure=lambda: None).open()
print("open", flush=True)
for line in sys.stdin:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, flush=True)
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
                    stream.send("beat", generation=1, step=0)

    def lose(self, worker: int) -> None:
        """Close the connection of `worker`."""
        stream = self.streams.pop(worker)
        self._readable.unregister(stream)
        self.started.clear()
        stream.close()

    def all_start(self, since: float) -> float:
        """Wait until every worker has started; return the seconds since `since`."""
        while len(self.started) < self.workers:
            time.sleep(0.002)
        return time.monotonic() - since

    def leave(self) -> None:
        """Have the threads end."""
        self._end.set()


def measure(workers: int) -> Measurement:
    """Measure a gang of `workers`, whose rendezvous has a process of its own."""
    (port,) = ports.free_ports(1)
    command = [sys.executable, "-c", _SERVE, "127.0.0.1", str(port), str(workers), TOKEN]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin and server.stdout

        def used() -> tuple[float, float]:
            print(file=server.stdin, flush=True)
            while not (line := server.stdout.readline()).strip() or line.startswith(("open", "{")):
                pass
            seconds, kib = line.split()
            return float(seconds), float(kib) / 1024

        server.stdout.readline()
        crowd = Crowd(port, workers)
        for target in (crowd.follow, crowd.beat):
            threading.Thread(target=target, daemon=True).start()
        called = time.monotonic()
        with ThreadPoolExecutor(CALLS) as calls:
            list(calls.map(crowd.join, range(workers)))
        meet, met = crowd.all_start(called), used()[0]
        heard = crowd.messages
        time.sleep(REST_SECONDS)
        rested, messages = used()[0], (crowd.messages - heard) / REST_SECONDS
        lost = time.monotonic()
        crowd.lose(workers // 2)
        crowd.join(workers // 2)
        restart = crowd.all_start(lost)
        seconds, mib = used()
        crowd.leave()
        server.kill()
    cores = (rested - met) / REST_SECONDS
    return Measurement(workers, meet, met, restart, seconds - rested, messages, cores, mib, _pods_mib(workers))


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


def section(measurements: list[Measurement]) -> str:
    """Return the part of docs/benchmarks.md."""
    lines = ["| workers | meet, s | CPU-s | restart, s | CPU-s | cores at rest | messages/s | peak MiB | pods MiB |"]
    lines.append("| ---: " * 9 + "|")
    for one in measurements:
        lines.append(
            f"| {one.workers:,} | {one.meet:.2f} | {one.meet_cpu:.2f} | {one.restart:.2f} | {one.restart_cpu:.2f} "
            f"| {one.cores:.3f} | {one.messages:,.0f} | {one.peak_mib:.0f} | {one.pods_mib:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the part of the page."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(section([measure(workers) for workers in WORKERS]))


if __name__ == "__main__":
    main()
