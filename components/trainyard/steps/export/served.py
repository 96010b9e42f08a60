"""Infra validation: a server in a child process answers requests with the exported files, as they would be pushed."""

from __future__ import annotations

import base64
import http.client
import importlib
import json
import os
import signal
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainyard import events
from trainyard.child_process import LOST, ChildProcess, describe_exit, prepare_fork_server
from trainyard.contract import version
from trainyard.data.trained import Tensors
from trainyard.errors import TransientError
from trainyard.steps.export.parity import Array
from trainyard.storage import manifest, storage

DEADLINE_SECONDS = 120.0
"""For the start of the server and its answers; chosen: a model of some GB is loaded in half of it."""

_SERVER = "trainyard.serving.run"  # above the steps, which start it as the program that it is
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras", _SERVER]
_ENDING_SECONDS = 2.0  # chosen: for a server whose connection broke to end
_SHOWN = 300  # characters of what the server said


class NotServed(Exception):
    """The server refused the files, or ended because of them; the message says why."""


@contextmanager
def serving(output: Path) -> Iterator[str]:
    """Start the server with the files as `push` lays them out, and yield its address.

    Raises `NotServed` if the server ends by itself. Raises `TransientError` if it is killed, does not start in time, or
    cannot be reached: a verdict about the files would be kept, and the next run would not ask again.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = version.layout(manifest.measure_folder(output, ""))
        with storage.stage(f"{temporary}/1", version.PRODUCER) as staging:
            for target, name in files.items():
                (staging / target).parent.mkdir(parents=True, exist_ok=True)
                (staging / target).symlink_to((output / name).resolve())
        prepare_fork_server(_IMPORTED_ONCE)
        child = ChildProcess(_serve, (f"{temporary}/1",), "server")
        late = threading.Event()

        def give_up() -> None:
            late.set()
            child.kill()

        stop = threading.Timer(DEADLINE_SECONDS, give_up)
        stop.start()
        last = "it wrote nothing"
        try:
            with child.lines as lines:
                for line in lines:
                    if (event := events.parse(line)).get("event") == "serving":
                        yield event["url"]
                        return
                    last = str(event.get("message") or line.strip()) or last
            child.join()
            raise _fault(child, last, late.is_set())
        except OSError as error:
            child.join(_ENDING_SECONDS)
            raise _fault(child, str(error), late.is_set()) from error
        finally:
            stop.cancel()
            child.kill()


def _fault(child: ChildProcess, reason: str, late: bool) -> Exception:
    code = child.code
    ended = "does not answer" if code is None else describe_exit(code)
    if code not in (None, LOST, -signal.SIGKILL, -signal.SIGTERM):
        return NotServed(f"the server {ended}: {reason[-_SHOWN:]}")
    if late:
        ended = f"did not start and answer within {DEADLINE_SECONDS:.0f} s"
    return TransientError(
        f"export: the server that checks the files {ended} ({reason[-_SHOWN:]}). Run the same command again; if it "
        "happens again, give the step more memory."
    )


def _serve(folder: str) -> None:
    """Answer requests with the version in `folder`, and end the process."""
    importlib.import_module(_SERVER).serve_to_parent(folder)
    os._exit(0)


def answers(url: str, raw: Tensors, output: str) -> Array:
    """Return the server's answers to the raw features (n,): (n, classes) or (n, targets) or (n,) float32.

    Raises `NotServed` if it refuses the request, and `OSError` if it does not answer.
    """
    columns = {name: [_json(value) for value in tensor.numpy().tolist()] for name, tensor in raw.items()}
    instances = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    body = json.dumps({"instances": instances}).encode()
    try:
        request = urllib.request.Request(f"{url}/v1/models/model:predict", body)  # noqa: S310 - our own server's
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:  # noqa: S310
            predictions = json.loads(response.read())["predictions"]
    except urllib.error.HTTPError as error:
        raise NotServed(f"the server answered {error.code}: {error.read().decode()[:_SHOWN]}") from error
    except http.client.HTTPException as error:  # a cut answer
        raise ConnectionError(repr(error)) from error
    return np.array([row[output] if isinstance(row, dict) else row for row in predictions], np.float32)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value if value == value else None  # NaN stands for a missing number
