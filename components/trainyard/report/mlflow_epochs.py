"""Logs the epochs of a training to an MLflow server by its REST API, because container images have no MLflow.

Source: https://mlflow.org/docs/latest/rest-api.html
"""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from trainyard import escape, events
from trainyard.contract import keys
from trainyard.contract.artifacts.train import Epoch
from trainyard.errors import PeerLost, Preempted
from trainyard.graph import model_sections
from trainyard.report.notify import NoRedirect, is_busy
from trainyard.retry import retry
from trainyard.spec import plain_yaml
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

ADDRESS = "MLFLOW_TRACKING_URI"
TRAINING, RUN = "trainyard.training", "trainyard.run"
"""Tags of MLflow's run: the key of the training's output, and the name of Trainyard's run."""

# Source: MAX_PARAM_VAL_LENGTH and MAX_PARAMS_TAGS_PER_BATCH in mlflow/utils/validation.py, which also allows 1,000
# metrics.
LONGEST, BATCH = 6000, 100
_CALL_SECONDS = 10.0  # chosen
_END_SECONDS = 30.0  # chosen: a training that is over waits no longer for a server that hangs
_KILLED_SECONDS = 2.0  # chosen: less than what is left of a pod's grace period
_METRICS = {"learning_rate", "train_loss", "eval_loss", "metric", "examples_per_second", "top5_accuracy", "selected"}


@contextmanager
def logged(recipe: Recipe, checkpoints: str) -> Iterator[Callable[[Epoch], None] | None]:
    """Yield a function that logs an epoch to the server of MLFLOW_TRACKING_URI, None without one.

    The run in MLflow ends when the block does, and a resumed training continues it. The function returns at once, an
    epoch that the server did not take is sent again with the next one, and no fault of the server fails the block.
    """
    address = os.environ.get(ADDRESS, "")
    if not address:
        yield None
        return
    log = _Log(address, recipe, checkpoints.removesuffix(keys.checkpoints("")))
    try:
        yield log.add
    except PeerLost:
        raise  # the training starts again in seconds
    except (KeyboardInterrupt, Preempted):
        log.end("KILLED", _KILLED_SECONDS)
        raise
    except BaseException:
        log.end("FAILED", _END_SECONDS)
        raise
    log.end("FINISHED", _END_SECONDS)


def key(name: str) -> str:
    """Return `name` with only characters that MLflow allows.

    >>> key("data.features.km/h?")
    'data.features.km_2f_h_3f_'
    """
    return re.sub(r"[^\w.\- :]", lambda character: f"_{ord(character[0]):x}_", name)[:250]


class _Log:
    """The run in MLflow of the training with the output `model`, and the thread that talks to the server."""

    def __init__(self, address: str, recipe: Recipe, model: str) -> None:
        self._address, self._recipe, self._model = address.rstrip("/"), recipe, model
        self._waiting: queue.SimpleQueue[tuple[int, Epoch | str]] = queue.SimpleQueue()
        self._unsent: list[tuple[int, Epoch]] = []
        self._count = self._sent = self._last_step = 0
        self._run = self._fault = ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, epoch: Epoch) -> None:
        self._count += 1
        self._waiting.put((_now(), epoch))

    def end(self, status: Literal["FINISHED", "FAILED", "KILLED"], seconds: float) -> None:
        """End the run in MLflow, if the server answers within `seconds`, and say how many epochs it lacks."""
        self._waiting.put((_now(), status))
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._fault = self._fault or f"did not answer within {seconds:.0f} s"
        if self._fault:
            self._warn(f"lacks {self._count - self._sent:,} of {self._count:,} epochs of this training, or its end")

    def _work(self) -> None:
        status = ""
        while not status:
            status = self._take()
            try:
                seconds = _CALL_SECONDS if status else 0.0
                send = partial(self._send, status)
                retry(send, is_busy, seconds=seconds, first_pause=1, longest_pause=4)
                self._fault = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, the training continues
                reason = f"answered {error.code}: {_body(error)}" if isinstance(error, HTTPError) else str(error)
                first, self._fault = not self._fault, escape.one_line(reason)
                if first and not status:
                    self._warn("is asked again after the next epoch, and the training continues")

    def _take(self) -> str:
        """Wait for an epoch or the end, take all that wait, and return the status at the end, '' before it."""
        while True:
            at, item = self._waiting.get()
            if isinstance(item, str):
                return item
            self._unsent.append((at, item))
            if self._waiting.empty():
                return ""

    def _send(self, status: str) -> None:
        if not self._run:
            self._open()
        while part := self._unsent[:BATCH]:
            metrics = [
                {"key": name, "value": value, "timestamp": at, "step": epoch.step}
                for at, epoch in part
                if epoch.step > self._last_step
                for name, value in epoch.model_dump(include=_METRICS, exclude_none=True).items()
            ]
            if metrics:
                self._call("runs/log-batch", {"run_id": self._run, "metrics": metrics})
            self._sent += len(part)
            del self._unsent[:BATCH]
        if status:
            self._call("runs/update", {"run_id": self._run, "status": status, "end_time": _now()})

    def _open(self) -> None:
        """Find the run of this training that has not finished, or create it."""
        experiment = self._experiment()
        training = keys.split(self._model)[1]
        query = f"tags.`{TRAINING}` = '{training}' and attributes.status != 'FINISHED'"
        found = self._call("runs/search", {"experiment_ids": [experiment], "filter": query, "max_results": 1})
        if runs := found.get("runs"):
            metrics = runs[0]["data"].get("metrics", [])
            self._last_step = max((int(metric["step"]) for metric in metrics), default=0)
            run = runs[0]["info"]["run_id"]
            self._call("runs/update", {"run_id": run, "status": "RUNNING"})
        else:
            tags = {TRAINING: training}
            if name := storage.read_text(keys.maker_record(self._model)) or "":
                folder = keys.run_folder(self._model.rsplit("/", 3)[0], self._recipe.name, name)
                tags |= {RUN: name, "trainyard.report": storage.join(folder, keys.REPORT)}
            request = {
                "experiment_id": experiment,
                "run_name": name or training,
                "start_time": _now(),
                "tags": [{"key": tag, "value": text} for tag, text in tags.items()],
            }
            run = self._call("runs/create", request)["run"]["info"]["run_id"]
        # MLflow accepts equal parameters again, so a run that was opened before gets those that it lacks.
        settings = parameters(self._recipe.model_dump(mode="json", include=set(model_sections())))
        params = [{"key": name, "value": text} for name, text in settings.items()]
        for start in range(0, len(params), BATCH):
            self._call("runs/log-batch", {"run_id": run, "params": params[start : start + BATCH]})
        self._run = run

    def _experiment(self) -> str:
        """Return the id of the experiment with the recipe's name, which is created if it is new."""
        try:
            found = self._call(f"experiments/get-by-name?{urlencode({'experiment_name': self._recipe.name})}")
            return str(found["experiment"]["experiment_id"])
        except HTTPError as error:
            if error.code != 404:
                raise
        return str(self._call("experiments/create", {"name": self._recipe.name})["experiment_id"])

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the server's answer to `body`; to a GET request without one."""
        parsed = urlsplit(self._address)
        if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.username:
            raise ValueError(f"{ADDRESS} holds no http:// or https:// address of a server without a user")
        headers = {"Content-Type": "application/json", "User-Agent": "trainyard"} | _authorization()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}/api/2.0/mlflow/{path}", data, headers)  # noqa: S310 - checked
        with urllib.request.build_opener(NoRedirect).open(request, timeout=_CALL_SECONDS) as answer:
            content = json.loads(answer.read())
            return content if isinstance(content, dict) else {}

    def _warn(self, state: str) -> None:
        host = urlsplit(self._address).hostname or "the server"
        events.emit("warning", message=f"MLflow: {host} {state} ({self._fault}).")


def parameters(recipe: dict[str, Any]) -> dict[str, str]:
    """Return the keys of `recipe` with their values as MLflow's parameters; null, or longer than it allows, is none."""
    settings = plain_yaml.flattened(recipe)
    return {key(name): text for name, text in settings if text != "null" and len(text) <= LONGEST}


def _authorization() -> dict[str, str]:
    token, user = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("TOKEN", "USERNAME"))
    if user:
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _body(error: HTTPError) -> str:
    """Return the message in the server's answer, otherwise the reason of its status."""
    try:
        return str(json.loads(error.read())["message"])[:300]
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def _now() -> int:
    return int(time.time() * 1000)
