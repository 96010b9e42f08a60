"""Infra validation: a server in a child process answers with the exported files like the trained model."""

from __future__ import annotations

import base64
import importlib
import json
import os
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
from trainyard.child_process import ChildProcess, describe_exit, prepare_fork_server
from trainyard.contract import version
from trainyard.contract.artifacts.gate import Threshold
from trainyard.data.examples import ExampleFolder
from trainyard.data.trained import Tensors, output_name
from trainyard.spec.gates import Task
from trainyard.steps.export.gate import MAX_SKEW
from trainyard.steps.export.parity import Array, Predictor
from trainyard.storage import manifest, storage

DEADLINE_SECONDS = 120.0
"""For the start of the server and its answers; chosen: a model of some GB is loaded in half of it."""

_ROWS = 16  # golden requests; chosen: all kinds of values are likely among them, and images answer in a moment
_SERVER = "trainyard.serving.run"  # above the steps, which start it as the program that it is
_IMPORTED_ONCE = ["trainyard.data", "tensorflow", "keras", _SERVER]
_SHOWN = 300  # characters of what the server said


def judge_served(output: Path, task: Task, folder: ExampleFolder, float32: Predictor) -> Threshold:
    """Compare the answers of a server for the exported files in `output` with those of the trained model.

    A model that does not load, or does not answer within `DEADLINE_SECONDS`, does not pass.
    """
    raw, _labels = next(iter(folder.raw_batches("eval", _ROWS)))
    features, _labels, _keys = next(iter(folder.batches("eval", _ROWS)))
    expected = float32(features, raw)
    is_regression = task == "regression"
    name = "max |prediction - trained| / largest" if is_regression else "max |probability - trained|"
    name = f"served {name} <= {MAX_SKEW:g}"
    try:
        with _serving(output) as url:
            answers = _answers(url, raw, output_name(task))
    except _NotServed as error:
        note = f"{error}. See the log of export"
        return Threshold(name=name, value=None, bound=MAX_SKEW, passed=False, note=note)
    scale = np.maximum(1, np.abs(expected).max(axis=0))
    difference = float((np.abs(answers - expected) / scale).max())
    return Threshold(name=name, value=difference, bound=MAX_SKEW, passed=difference <= MAX_SKEW)


class _NotServed(Exception):
    """The server did not start, or did not answer; the message says why."""


@contextmanager
def _serving(output: Path) -> Iterator[str]:
    """Start the server with the files as `push` lays them out, and yield its address."""
    with tempfile.TemporaryDirectory() as temporary:
        files = version.layout(manifest.measure_folder(output, ""))
        with storage.stage(f"{temporary}/1", version.PRODUCER) as staging:
            for target, name in files.items():
                (staging / target).parent.mkdir(parents=True, exist_ok=True)
                (staging / target).symlink_to((output / name).resolve())
        prepare_fork_server(_IMPORTED_ONCE)
        child = ChildProcess(_serve, (f"{temporary}/1",), "server")
        stop = threading.Timer(DEADLINE_SECONDS, child.kill)
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
            raise _NotServed(f"the server {describe_exit(child.code or 0)}: {last[-_SHOWN:]}")
        finally:
            stop.cancel()
            child.kill()


def _serve(folder: str) -> None:
    """Answer requests with the version in `folder`, and end the process."""
    importlib.import_module(_SERVER).serve_to_parent(folder)
    os._exit(0)


def _answers(url: str, raw: Tensors, output: str) -> Array:
    """Return the server's answers to the raw features (n,): (n, classes) or (n, targets) or (n,) float32."""
    columns = {name: [_json(value) for value in tensor.numpy().tolist()] for name, tensor in raw.items()}
    instances = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    body = json.dumps({"instances": instances}).encode()
    try:
        request = urllib.request.Request(f"{url}/v1/models/model:predict", body)  # noqa: S310 - our own server's
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:  # noqa: S310
            predictions = json.loads(response.read())["predictions"]
    except urllib.error.HTTPError as error:
        raise _NotServed(f"the server answered {error.code}: {error.read().decode()[:_SHOWN]}") from error
    except OSError as error:
        raise _NotServed(f"the server did not answer ({error})") from error
    return np.array([row[output] if isinstance(row, dict) else row for row in predictions], np.float32)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value if value == value else None  # NaN stands for a missing number
