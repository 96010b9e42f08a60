"""`trainyard serve` beside the bare SavedModel signature in a loop, each in a process of its own.

python -m benchmarks.commands.serving prints the table. The model is that of a bundled recipe, trained for an epoch.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.commands.predict import train

_SECONDS, _WARM_UP = 5.0, 200
_CLIENTS = (1, 8, 64)
_BARE = """
import json, sys, time
import numpy as np
import tensorflow as tf
rows, seconds = json.loads(sys.argv[2]), float(sys.argv[3])
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
names = list(serve.structured_input_signature[1])
times, number, end = [], 0, None
while end is None or time.perf_counter() < end:
    values = rows[number % len(rows)]
    start = time.perf_counter()
    answer = serve(**{name: tf.constant(np.array([values[name]], np.float32)) for name in names})
    answer["probabilities"].numpy()
    times.append(time.perf_counter() - start)
    number += 1
    if number == 200:
        times, end = [], time.perf_counter() + seconds
print(json.dumps(times))
"""


def section(seconds: float = _SECONDS) -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        train("tabular", Path(name))
        models = Path(name, "runs", "tabular", "models")
        (device,) = models.glob("*/assets.extra")
        row = json.loads((device / "examples" / "row.json").read_text())
        columns = json.loads((device / "signature.json").read_text())["columns"]
        inputs = {column["name"]: column["input"] for column in columns}
        rows = [{inputs[name]: value * (1 + share / 100) for name, value in row.items()} for share in range(10)]
        bare = json.loads(
            subprocess.run(
                [sys.executable, "-c", _BARE, str(device.parent), json.dumps(rows), str(seconds)],
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ).stdout
        )
        served = _served(str(models), rows, seconds)
    lines = "\n".join(
        f"| {clients} | {_percentile(times, 50):.2f} | {_percentile(times, 99):.2f} | {rate:,.0f} | "
        f"{rate * statistics.mean(bare):.2f} |"
        for clients, times, rate in served
    )
    return f"""A row of {len(rows[0])} numbers a request, over kept connections of one client process. The bare loop
calls the signature with one row: p50 {_percentile(bare, 50):.2f} ms, p99 {_percentile(bare, 99):.2f} ms,
{1 / statistics.mean(bare):,.0f} rows/s. The aims are 1 ms more than that at p50 for one client, and 0.7 of its rows/s.

| clients | p50, ms | p99, ms | rows/s | of the bare loop's |
| ---: | ---: | ---: | ---: | ---: |
{lines}"""


def _served(models: str, rows: list[dict[str, float]], seconds: float) -> list[tuple[int, list[float], float]]:
    """Return for each number of clients the seconds of each request, and the requests a second."""
    command = [sys.executable, "-m", "trainyard_control.cli.main", "serve", models, "--port", "0", "--model-name", "m"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            address = process.stderr.readline().rpartition("//")[2].strip().split(":")
            return [_asked(address[0], int(address[1]), rows, clients, seconds) for clients in _CLIENTS]
        finally:
            process.terminate()


def _asked(
    host: str, port: int, rows: list[dict[str, float]], clients: int, seconds: float
) -> tuple[int, list[float], float]:
    times: list[list[float]] = [[] for _ in range(clients)]
    barrier = threading.Barrier(clients + 1)

    def ask(client: int) -> None:
        with socket.create_connection((host, port)) as connection:
            stream = connection.makefile("rb")
            requests = [_request(row) for row in rows]
            for request in requests * (_WARM_UP // clients // len(rows) + 1):
                _answer(connection, stream, request)
            barrier.wait()
            end = time.perf_counter() + seconds
            while (start := time.perf_counter()) < end:
                _answer(connection, stream, requests[len(times[client]) % len(rows)])
                times[client].append(time.perf_counter() - start)

    threads = [threading.Thread(target=ask, args=[client]) for client in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    together = [seconds for own in times for seconds in own]
    return clients, together, len(together) / (time.perf_counter() - start)


def _request(row: dict[str, float]) -> bytes:
    body = json.dumps({"instances": [row]}).encode()
    return b"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _answer(connection: socket.socket, stream: Any, request: bytes) -> None:
    """Send `request` and read its answer: a client library would take longer than the server."""
    connection.sendall(request)
    status, size = stream.readline(), 0
    while (line := stream.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            size = int(line.partition(b":")[2])
    content = stream.read(size)
    assert b" 200 " in status, content


def _percentile(times: list[float], percent: int) -> float:
    """Return milliseconds."""
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)] * 1000


if __name__ == "__main__":
    print(section(*map(float, sys.argv[1:])))
