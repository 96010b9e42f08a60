"""`trainyard serve` and FastAPI beside the bare SavedModel signature in a loop, in turn, each in its own process.

python -m benchmarks.commands.serving prints the table. The models are those of bundled recipes, trained for an epoch.
"""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands.predict import train

_SECONDS, _ROUNDS, _WARM_UP = 0.7, 5, 200
_BARE = """
import base64, json, sys, time
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
rows = json.load(open(sys.argv[2]))
rows = [{name: base64.b64decode(value["b64"]) if isinstance(value, dict) else value for name, value in row.items()}
        for row in rows]
dtypes = {name: object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
          for name, spec in serve.structured_input_signature[1].items()}
def ask(number):
    values = rows[number % len(rows)]
    answer = serve(**{name: tf.constant(np.array([values[name]], dtype)) for name, dtype in dtypes.items()})
    answer["probabilities"].numpy()
for number in range(200):
    ask(number)
print("ready", flush=True)
for line in sys.stdin:
    times, end = [], time.perf_counter() + float(line)
    while (start := time.perf_counter()) < end:
        ask(len(times))
        times.append(time.perf_counter() - start)
    print(json.dumps(times), flush=True)
"""
_FASTAPI = """
import base64, sys
from typing import Any
import tensorflow as tf
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
model = tf.saved_model.load(sys.argv[1])
serve = model.signatures["serving_default"]

class Request(BaseModel):
    instances: list[dict[str, TYPE]]

@app.post("/v1/models/m:predict")
def predict(request: Request):
    names = request.instances[0]
    inputs = {name: tf.constant([READ for row in request.instances]) for name in names}
    outputs = {name: values.numpy() for name, values in serve(**inputs).items()}
    return {"predictions": [
        {name: values[i].decode() if values.dtype == object else values[i].tolist()
         for name, values in outputs.items()}
        for i in range(len(request.instances))]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


@dataclass(frozen=True)
class _Server:
    """A running server. ask: connects, and returns a function that sends one request and reads its answer."""

    name: str
    process: int
    clients: tuple[int, ...]
    connect: Callable[[], Callable[[int], None]]


@dataclass(frozen=True)
class _Round:
    """The seconds of each request, requests a second, and the CPU milliseconds of the server for each."""

    times: list[float]
    rate: float
    cpu: float


def section(seconds: float = _SECONDS, rounds: float = _ROUNDS) -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = []
        for recipe, rows in (("tabular", table_rows), ("digits", _image_rows)):
            train(recipe, folder)
            models = folder / "runs" / recipe / "models"
            (version,) = (path.parent for path in models.glob("*/assets.extra"))
            tables.append("\n".join(_lines(recipe, models, version, rows(version), seconds, int(rounds))))
    lines = "\n".join(tables)
    return f"""One record a request, over kept connections of one client process: a row of 30 numbers, or a PNG file of
8 x 8 pixels. The bare loop calls the signature. FastAPI (uvicorn, h11) parses with pydantic and calls the signature in
its threads. All take turns of {seconds:g} s; medians of {int(rounds)} rounds. *CPU* is the server's for a request. The
aims for one client are 0.4 ms more than the bare loop at p50, and 0.8 of its rate.

TensorFlow Serving itself is not run here. A user measured 0.32 s for an image of a segmentation network on a CPU, and
0.17 s in the process, 1.9 times as long (https://github.com/tensorflow/serving/issues/670, 2017).

| record | server | clients | p50, ms | p99, ms | CPU, ms | records/s | of the bare loop's |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
{lines}"""


def _lines(
    recipe: str, models: Path, version: Path, rows: list[dict[str, Any]], seconds: float, rounds: int
) -> Iterator[str]:
    """Yield the lines of the table for one model."""
    file = models.parent / "rows.json"
    file.write_text(json.dumps(rows))
    with ExitStack() as stack:
        bare = stack.enter_context(_running([sys.executable, "-c", _BARE, str(version), str(file)]))
        assert bare.stdout and bare.stdout.readline() == "ready\n"
        servers = [*stack.enter_context(_trainyard(models, rows)), stack.enter_context(_fastapi(version, rows))]
        cases = [(server, clients) for server in servers for clients in server.clients]
        found: list[list[_Round]] = [[] for _ in range(len(cases) + 1)]
        for _ in range(rounds):
            found[0].append(_bare_round(bare, seconds))
            for (server, clients), own in zip(cases, found[1:], strict=True):
                own.append(_round(server, clients, seconds))
    labels = [("bare loop", 1), *((server.name, clients) for server, clients in cases)]
    for (name, clients), own in zip(labels, found, strict=True):
        ratio = statistics.median(each.rate / loop.rate for each, loop in zip(own, found[0], strict=True))
        p50, p99 = (statistics.median(percentile(each.times, percent) for each in own) for percent in (50, 99))
        cpu, rate = (statistics.median(values) for values in ([r.cpu for r in own], [r.rate for r in own]))
        record = "row" if recipe == "tabular" else "image"
        yield f"| {record} | {name} | {clients} | {p50:.2f} | {p99:.2f} | {cpu:.2f} | {rate:,.0f} | {ratio:.2f} |"


def table_rows(version: Path) -> list[dict[str, Any]]:
    """Return ten rows by the names of the signature."""
    row = json.loads((version / "assets.extra" / "examples" / "row.json").read_text())
    columns = json.loads((version / "assets.extra" / "signature.json").read_text())["columns"]
    inputs = {column["name"]: column["input"] for column in columns}
    return [{inputs[name]: value * (1 + share / 100) for name, value in row.items()} for share in range(10)]


def _image_rows(_version: Path) -> list[dict[str, Any]]:
    """Return ten images of scikit-learn's digits."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    rows: list[dict[str, Any]] = []
    for pixels in np.rint(load_digits().data[:10] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8):
        Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
        rows.append({"image": {"b64": base64.b64encode(stream.getvalue()).decode()}})
    return rows


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def _trainyard(models: Path, rows: list[dict[str, Any]]) -> Iterator[list[_Server]]:
    """Serve `models` over REST and gRPC."""
    port = _free_port()
    options = ["--port", "0", "--grpc-port", str(port), "--model-name", "m"]
    command = [sys.executable, "-m", "trainyard_control.cli.main", "serve", str(models), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            address = process.stderr.readline().rpartition("//")[2].split()[0].strip(".,").split(":")
            yield [
                _Server("`trainyard serve`", process.pid, (1, 8, 64), lambda: rest(int(address[1]), rows)),
                _Server("`trainyard serve`, gRPC", process.pid, (1,), lambda: _grpc(port, rows)),
            ]
        finally:
            process.terminate()


@contextmanager
def _fastapi(version: Path, rows: list[dict[str, Any]]) -> Iterator[_Server]:
    port = _free_port()
    kind, read = (
        ("dict[str, str]", 'base64.b64decode(row[name]["b64"])') if "image" in rows[0] else ("float", "row[name]")
    )
    program = _FASTAPI.replace("TYPE", kind).replace("READ", read)
    with _running([sys.executable, "-c", program, str(version), str(port)]) as process:
        _wait(port)
        yield _Server("FastAPI", process.pid, (1, 8, 64), lambda: rest(port, rows))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _wait(port: int) -> None:
    """Wait until something listens on `port`."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port} after two minutes")


def _bare_round(bare: subprocess.Popen[str], seconds: float) -> _Round:
    assert bare.stdin and bare.stdout
    before = cpu_seconds(bare.pid)
    bare.stdin.write(f"{seconds}\n")
    bare.stdin.flush()
    times = json.loads(bare.stdout.readline())
    return _Round(times, 1 / statistics.mean(times), (cpu_seconds(bare.pid) - before) / len(times) * 1000)


def _round(server: _Server, clients: int, seconds: float) -> _Round:
    """Ask for `seconds` with `clients` connections."""
    times: list[list[float]] = [[] for _ in range(clients)]
    barrier = threading.Barrier(clients + 1)

    def ask(client: int) -> None:
        send = server.connect()
        for number in range(_WARM_UP // clients):
            send(number)
        barrier.wait()
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            send(len(times[client]))
            times[client].append(time.perf_counter() - start)

    threads = [threading.Thread(target=ask, args=[client]) for client in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start, before = time.perf_counter(), cpu_seconds(server.process)
    for thread in threads:
        thread.join()
    together = [seconds for own in times for seconds in own]
    cpu = (cpu_seconds(server.process) - before) / len(together) * 1000
    return _Round(together, len(together) / (time.perf_counter() - start), cpu)


def rest(port: int, rows: list[dict[str, Any]]) -> Callable[[int], None]:
    """Connect; a client library would take longer than the server."""
    connection = socket.create_connection(("127.0.0.1", port))
    stream = connection.makefile("rb")
    bodies = [json.dumps({"instances": [row]}).encode() for row in rows]
    head = (
        "POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    )
    requests = [head.format(len(body)).encode() + body for body in bodies]

    def send(number: int) -> None:
        connection.sendall(requests[number % len(requests)])
        status, size = stream.readline(), 0
        while (line := stream.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        content = stream.read(size)
        assert b" 200 " in status, content

    return send


def _grpc(port: int, rows: list[dict[str, Any]]) -> Callable[[int], None]:
    """Connect with raw tensors, as Triton's client sends them."""
    import grpc
    import numpy as np

    from trainyard.serving.rpc import METHODS, SERVICE

    requests = []
    for row in rows:
        request: Any = METHODS["ModelInfer"][0](model_name="m")
        for name, value in row.items():
            is_image = isinstance(value, dict)
            request.inputs.add(name=name, datatype="BYTES" if is_image else "FP32", shape=[1])
            raw = base64.b64decode(value["b64"]) if is_image else np.float32(value).tobytes()
            request.raw_input_contents.append(len(raw).to_bytes(4, "little") + raw if is_image else raw)
        requests.append(request.SerializeToString())
    method: Any = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(f"/{SERVICE}/ModelInfer")

    def send(number: int) -> None:
        method(requests[number % len(requests)])

    return send


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process until now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(times: list[float], percent: int) -> float:
    """Return milliseconds."""
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)] * 1000


if __name__ == "__main__":
    print(section(*map(float, sys.argv[1:])))
