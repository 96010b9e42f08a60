"""Infra validation: a server in a child process answers requests with the exported files, as they would be pushed."""

from __future__ import annotations

import base64
import http.client
import importlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from trainyard import events
from trainyard.contract import version
from trainyard.data.trained import Tensors
from trainyard.errors import TransientError
from trainyard.process import ports
from trainyard.process.child_process import LOST, ChildProcess, describe_exit, end_with_parent, prepare_fork_server
from trainyard.spec.columns import input_name
from trainyard.steps.export.parity import Array
from trainyard.storage import manifest, storage

DEADLINE_SECONDS = 120.0
"""For the start of the server and its answers; chosen: a model of some GB is loaded in half of it."""

BINARY = "tensorflow_model_server"
"""The name of TensorFlow Serving's program."""

_SERVER = "trainyard.serving.server"  # above the steps, which start it as the program that it is
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras", _SERVER]
_ENDING_SECONDS = 2.0  # chosen: for a server whose connection broke to end
_POLL_SECONDS = 0.1
_STARTS = 5  # chosen: of a program whose port another one took first
_LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach this machine
_SHOWN = 300  # characters of what the server said


class NotServed(Exception):
    """The server refused the files, or ended because of them; the message says why."""


def fork_server() -> None:
    """Have the server forked from this process as it is now, so that it need not import TensorFlow again.

    TensorFlow must be imported here, and not have computed anything.
    """
    prepare_fork_server(_IMPORTED_ONCE, fork=True)


@contextmanager
def serving(output: Path, binary: str | None = None) -> Iterator[str]:
    """Start the server with the files as `push` lays them out, and yield its address.

    binary: TensorFlow Serving's program; by default the server is that of `trainyard serve`.

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
        child = ChildProcess(_serve, (binary, temporary), "server")
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
            child.kill_group()
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


def _serve(binary: str | None, folder: str) -> None:
    """Answer requests with the version 1 in `folder`, and end the process."""
    if binary:
        _serve_by(binary, folder)
    importlib.import_module(_SERVER).serve_to_parent(f"{folder}/1")
    os._exit(0)


def _serve_by(binary: str, folder: str) -> NoReturn:
    """Answer requests by TensorFlow Serving's `binary` with the version in `folder`, and end the process.

    If another program takes one of its ports first, it is started again with others: that is no verdict on the files.

    Source of the flags and of the status: model_servers/main.cc and g3doc/api_rest.md of tensorflow/serving.
    """
    for _ in range(_STARTS):
        chosen_ports = ports.free_ports(2)
        program = _started(binary, folder, *chosen_ports)
        if (code := program.wait()) < 0:
            os.kill(os.getpid(), -code)
        if all(map(ports.is_free, chosen_ports)):
            break
    os._exit(1)  # its own status of a failure, 255, is that of a lost process


def _started(binary: str, folder: str, rest_port: int, grpc_port: int) -> subprocess.Popen[bytes]:
    """Return the program, which ended or answers; the event `serving` tells the parent process that it answers."""
    url = f"http://127.0.0.1:{rest_port}"
    flags = {
        "port": grpc_port,
        "rest_api_port": rest_port,
        "rest_api_timeout_in_ms": round(DEADLINE_SECONDS * 1000),
        "model_name": "model",
        "model_base_path": folder,
        "max_num_load_retries": 0,  # by default it retries for minutes
    }
    command = [binary, *(f"--{name}={value}" for name, value in flags.items())]
    program = subprocess.Popen(command, preexec_fn=end_with_parent())
    while program.poll() is None and not _is_available(url):
        time.sleep(_POLL_SECONDS)
    if program.poll() is None:
        events.emit("serving", url=url)
    return program


def _is_available(url: str) -> bool:
    """Return True if TensorFlow Serving has loaded the model."""
    try:
        with _LOCAL.open(f"{url}/v1/models/model", timeout=DEADLINE_SECONDS) as response:
            return any(each["state"] == "AVAILABLE" for each in json.loads(response.read())["model_version_status"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):  # another program's answer, too
        return False


def answers(url: str, raw: Tensors, output: str) -> Array:
    """Return the server's answers to the raw features (n,): (n, classes) or (n, targets) or (n,) float32.

    Raises `NotServed` if it refuses the request, and `OSError` if it does not answer.
    """
    columns = {input_name(name): [_json(value) for value in tensor.numpy().tolist()] for name, tensor in raw.items()}
    instances = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    body = json.dumps({"instances": instances}).encode()
    try:
        request = urllib.request.Request(f"{url}/v1/models/model:predict", body)  # noqa: S310 - our own server's
        with _LOCAL.open(request, timeout=DEADLINE_SECONDS) as response:
            predictions = json.loads(response.read())["predictions"]
        return np.array([row[output] if isinstance(row, dict) else row for row in predictions], np.float32)
    except urllib.error.HTTPError as error:
        raise NotServed(f"the server answered {error.code}: {error.read().decode()[:_SHOWN]}") from error
    except http.client.HTTPException as error:  # a cut answer
        raise ConnectionError(repr(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise NotServed(f"the server's answer has no '{output}' for each record") from error


def _json(value: Any) -> Any:
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
