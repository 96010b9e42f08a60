"""Uploads: a tree of files and a large file, by `trainyard data upload` and by boto3's transfers, to one S3 server.

python -m benchmarks.data.uploads prints its part of the page. The server is moto's, in a process of its own on this
machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3

from trainyard.process.ports import free_ports
from trainyard.storage import uploads
from trainyard_control.api import uploads as api

_BUCKET = "bench"
_SHAPES = {"400 files of 256 KiB": (400, 256 << 10), "1 file of 256 MiB": (1, 256 << 20)}
_ROUNDS = 3


def section() -> str:
    """Measure, and return the text and the table."""
    (port,) = free_ports(1)
    os.environ |= {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
    }
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        rows = [f"| {shape} | {_row(*files)} |" for shape, files in _SHAPES.items()]
    finally:
        server.terminate()
    text = (
        "`trainyard data upload` beside boto3's transfers, on 10 threads, to one S3 server (moto) on this machine; "
        f"the best of {_ROUNDS} rounds. *Again* is the second upload of the same data, which sends nothing."
    )
    head = "| data | boto3, s | Trainyard, s | again, s | speed, of boto3's |\n| --- | ---: | ---: | ---: | ---: |"
    return "\n".join([text, "", head, *rows])


def _row(count: int, size: int) -> str:
    """Return the best seconds of both, of a second upload, and the ratio."""
    client = boto3.client("s3")
    _wait_for(client)
    theirs, ours, again = [], [], []
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRAINYARD_CACHE"] = f"{folder}/cache"
            data = Path(folder, "data")
            data.mkdir()
            for number in range(count):
                file = data / f"{number:04}.bin"
                file.write_bytes(os.urandom(size))
                os.utime(file, (time.time() - 60,) * 2)
            theirs.append(_seconds(_with_boto3, client, data))
            ours.append(_seconds(_with_trainyard, data))
            again.append(_seconds(_with_trainyard, data))
    return f"{min(theirs):.2f} | {min(ours):.2f} | {min(again):.2f} | {min(theirs) / min(ours):.2f}"


def _with_boto3(client: Any, data: Path) -> None:
    with ThreadPoolExecutor(10) as pool:  # as many as its transfer of one file has
        list(pool.map(lambda file: client.upload_file(str(file), _BUCKET, f"boto3/{file.name}"), data.iterdir()))


def _with_trainyard(data: Path) -> None:
    api.send({"data": uploads.plan(str(data), f"s3://{_BUCKET}/ours", "data")})


def _wait_for(client: Any) -> None:
    for _ in range(600):
        try:
            client.create_bucket(Bucket=_BUCKET)
            return
        except Exception:  # noqa: BLE001 - the server starts
            time.sleep(0.5)


def _seconds(call: Callable[..., None], *arguments: Any) -> float:
    start = time.monotonic()
    call(*arguments)
    return time.monotonic() - start


if __name__ == "__main__":
    print(section())
