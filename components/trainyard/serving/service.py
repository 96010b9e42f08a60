"""Answers records with the model that serves, whatever protocol asks."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from trainyard import events
from trainyard.errors import bug_sentence
from trainyard.serving.answer_log import AnswerLog
from trainyard.serving.bad_request import BadRequest
from trainyard.serving.batches import Batcher, Overloaded
from trainyard.serving.options import METRICS_FOLDER, LogOptions
from trainyard.serving.records import Row
from trainyard.serving.shadow import Shadow
from trainyard.serving.versions import DATATYPES, LoadedModel, Output, ServingVersion
from trainyard.spec.columns import input_name

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LARGE_BYTES = 64 << 10  # of a request; chosen: a millisecond to parse
_TENSORFLOW = {"FP32": "DT_FLOAT", "INT64": "DT_INT64", "BYTES": "DT_STRING"}
REQUEST_ID: ContextVar[str] = ContextVar("request_id")
"""The id of the request that is answered."""

_Result = TypeVar("_Result")


class _NotServed(Exception):
    """A request for another model or version; the message says which one serves."""


class Service:
    """Answers for the model `name` whose version `serving` keeps.

    log: of the answers, if there is one. shadow: keeps the version that is asked what is logged, if there is one.
    registry: of the metrics. stopping: set once no new requests are taken. running: requests that are not yet answered.
    """

    def __init__(
        self,
        name: str,
        serving: ServingVersion,
        log: LogOptions | None = None,
        shadow: ServingVersion | None = None,
    ) -> None:
        self.name, self.serving = name, serving
        self.registry = CollectorRegistry()
        self.log = AnswerLog(log.folder, log.sample, self.registry) if log else None
        self.shadow = Shadow(shadow, self.log, self.registry) if shadow and self.log else None
        self.stopping = False
        self.running = 0
        gauges: list[tuple[str, str, Literal["livemin", "livemax", "livesum"], Callable[[], float]]] = [
            ("model_version", "Version that serves.", "livemin", lambda: serving.model.number),
            ("model_reloads", "Versions loaded since the start.", "livemax", lambda: serving.reloads),
            (
                "model_reload_failing",
                "1 while a newer version cannot be loaded.",
                "livemax",
                lambda: bool(serving.failure),
            ),
            ("requests_running", "Requests that are not yet answered.", "livesum", lambda: self.running),
        ]
        self._gauges = [
            (Gauge(f"trainyard_{name}", meaning, registry=self.registry, multiprocess_mode=mode), value)
            for name, meaning, mode, value in gauges
        ]
        self._requests = Counter("trainyard_requests", "Requests.", ("route", "code"), registry=self.registry)
        self._seconds = Histogram(
            "trainyard_request_seconds", "Time of an answer.", ("route",), registry=self.registry, buckets=_SECONDS
        )
        rows = Histogram("trainyard_batch_rows", "Rows of a batch.", registry=self.registry, buckets=_ROWS)
        self._batcher = Batcher(rows.observe)

    def metrics(self) -> bytes:
        """Return the metrics as Prometheus reads them: of all workers, if this process is one of several."""
        self._measure()
        registry = self.registry
        if METRICS_FOLDER in os.environ:
            MultiProcessCollector(registry := CollectorRegistry())  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    async def measure_always(self) -> None:
        """Keep the gauges true for other workers, until the task is cancelled."""
        while METRICS_FOLDER in os.environ:
            self._measure()
            await asyncio.sleep(1.0)

    def _measure(self) -> None:
        for gauge, value in self._gauges:
            gauge.set(value())

    def count(self, route: str, code: str, start: float) -> None:
        """Count an answer to a request that came at `start`, by the monotonic clock."""
        self._requests.labels(route, code).inc()
        self._seconds.labels(route).observe(time.monotonic() - start)

    def model(self, name: str, version: str = "", label: str = "") -> LoadedModel:
        """Return the model that a request names. Raises `_NotServed` if another one or another version serves.

        label: an alias, as TensorFlow Serving calls it.
        """
        model = self.serving.model
        if name != self.name:
            raise _NotServed(f"{name[:100]}: no such model. This server has '{self.name}'.")
        if version not in ("", str(model.number)):
            raise _NotServed(f"{name}: version {version[:100]} is not loaded. {model.number} serves.")
        if label and label not in (labels := self.serving.labels):
            known = f"Its labels: {', '.join(sorted(labels))}." if labels else "It has no alias."
            raise _NotServed(
                f"{name}: label '{label[:100]}' does not name version {model.number}, which serves. {known}"
            )
        return model

    async def ask(self, model: LoadedModel, rows: Sequence[Row], place: str) -> list[Output]:
        """Return the outputs of `rows`, which stand at `place` of the request."""
        answer = await self._batcher.answer(model, rows)
        if isinstance(answer, list):
            first = min(answer, key=lambda row: int(row.file))
            raise BadRequest(f"{place}[{first.file}]: the model cannot answer ({first.reason}: {first.detail}).")
        if self.log and self.log.offer(model, rows, answer, REQUEST_ID.get()) and self.shadow:
            self.shadow.offer(model, rows, REQUEST_ID.get())
        return model.outputs(answer)

    async def results(self, model: LoadedModel, rows: Sequence[Row], method: str) -> list[Any]:
        """Return the results of TensorFlow Serving's `method`, classify or regress, for `rows`.

        classify: a list of class and score for each class. regress: a number.
        """
        labels, targets = model.pushed.labels, model.pushed.targets
        fitting = "classify" if labels is not None else "regress" if targets is None else "predict"
        if method != fitting:
            kind = "classes" if labels is not None else "one number" if targets is None else "several numbers"
            raise BadRequest(f"{method}: the model predicts {kind}. Send the request to {fitting}.")
        answers = (await self.ask(model, rows, "examples"))[0].values.tolist()
        if labels is None:
            return list(answers)
        return [[list(pair) for pair in zip(labels, scores, strict=True)] for scores in answers]

    async def infer(self, model: LoadedModel, rows: Sequence[Row], wanted: Collection[str]) -> list[Output]:
        """Return the outputs of `rows` that a request of the Open Inference Protocol asks for, by default all."""
        outputs = await self.ask(model, rows, "inputs")
        if unknown := set(wanted) - {output.name for output in outputs}:
            known = ", ".join(output.name for output in outputs)
            raise BadRequest(f"outputs: the model has no output '{min(unknown)[:100]}'. It has: {known}.")
        return [output for output in outputs if output.name in wanted or not wanted]

    def about_model(self, model: LoadedModel) -> dict[str, Any]:
        """Return the metadata of `model` as the Open Inference Protocol has it."""
        return {
            "name": self.name,
            "versions": [str(model.number)],
            "platform": "trainyard",
            "inputs": [
                {"name": feature.name, "datatype": DATATYPES[feature.dtype], "shape": [-1]}
                for feature in model.pushed.inputs
            ],
            "outputs": model.described_outputs(),
        }


def signature_definition(about: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of TensorFlow's SignatureDef for a model of which `about_model` says this."""
    return {
        "inputs": {input_name(tensor["name"]): _tensor_info(tensor) for tensor in about["inputs"]},
        "outputs": {tensor["name"]: _tensor_info(tensor) for tensor in about["outputs"]},
        "method_name": "tensorflow/serving/predict",
    }


def _tensor_info(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of TensorFlow's TensorInfo, whose 64-bit integers are texts, of a tensor of `about_model`."""
    sizes = [{"size": str(size), "name": ""} for size in tensor["shape"]]
    shape = {"dim": sizes, "unknown_rank": False}
    return {"dtype": _TENSORFLOW[tensor["datatype"]], "tensor_shape": shape, "name": input_name(tensor["name"])}


def version_status(model: LoadedModel) -> dict[str, Any]:
    """Return the JSON of TensorFlow Serving's GetModelStatusResponse."""
    status = {
        "version": str(model.number),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return {"model_version_status": [status]}


def about_server() -> dict[str, Any]:
    """Return the metadata of the server as the Open Inference Protocol has it."""
    return {
        "name": "trainyard",
        "version": importlib.metadata.version("trainyard"),
        "extensions": ["binary_tensor_data"],
    }


async def aside(work: Callable[[], _Result], size: int) -> _Result:
    """Do `work` for a request of `size` bytes, in a thread if it is large, so that it does not delay others."""
    return await asyncio.to_thread(work) if size > _LARGE_BYTES else work()


def refusal(error: Exception, ids: Mapping[str, str]) -> tuple[int, str]:
    """Return the HTTP status for an error of a request, and its sentence. One of Trainyard's is logged with `ids`."""
    match error:
        case BadRequest():
            return 400, str(error)
        case _NotServed():
            return 404, str(error)
        case Overloaded():
            return 503, "Too many requests wait. Try again later."
    events.emit("warning", message=bug_sentence(error), **ids)
    return 500, "The model could not answer. The server's log says why."
