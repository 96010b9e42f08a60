"""The HTTP server: TensorFlow Serving's REST API, the Open Inference Protocol v2, health, metrics, and a page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trainyard import events
from trainyard.contract.champion import EXTRA
from trainyard.errors import bug_sentence
from trainyard.report.pages import template
from trainyard.serving.batcher import Batcher, Overloaded
from trainyard.serving.loaded import DATATYPES, LoadedModel, Output
from trainyard.serving.records import BadRequest, Row
from trainyard.serving.versions import ServingVersion
from trainyard.storage import storage

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LARGE_BYTES = 64 << 10  # of a body; chosen: a millisecond to parse
_EXAMPLE = f"{EXTRA}/examples/row.json"
_HERE = Path(__file__).parent
_Parsed = TypeVar("_Parsed")


class _NotServed(Exception):
    """A request for another model or version; the message says which one serves."""


@dataclass(frozen=True)
class _Metrics:
    registry: CollectorRegistry
    requests: Counter
    seconds: Histogram
    batch_rows: Histogram


class Server:
    """Answers for the model `name` whose version `serving` keeps. request_bytes: of the largest request's body."""

    def __init__(self, name: str, serving: ServingVersion, request_bytes: int) -> None:
        self._name, self._serving = name, serving
        self._request_bytes = request_bytes
        self._metrics = _metrics(serving)
        self._batcher = Batcher(self._metrics.batch_rows.observe)
        self._running, self._stopping = 0, False

    async def finish(self, seconds: float) -> None:
        """Wait until the requests that were begun are answered, at most `seconds`; each closes its connection."""
        self._stopping, end = True, time.monotonic() + seconds
        while self._running and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def application(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[self._answered], client_max_size=self._request_bytes)
        model, versioned = "{name:[^/:]+}", "{name:[^/:]+}/versions/{version:[0-9]{1,18}}"
        app.router.add_get("/", self._page, name="page")
        app.router.add_get("/healthz", self._live, name="healthz")
        app.router.add_get("/metrics", self._metrics_text, name="metrics")
        app.router.add_get("/v2", self._about_server, name="server")
        app.router.add_get("/v2/health/live", self._live, name="live")
        app.router.add_get("/v2/health/ready", self._ready, name="ready")
        for suffix, place in (("", model), ("-version", versioned)):
            app.router.add_post(f"/v1/models/{place}:predict", self._predict, name=f"predict{suffix}")
            app.router.add_get(f"/v1/models/{place}", self._status, name=f"status{suffix}")
            app.router.add_get(f"/v2/models/{place}", self._about_model, name=f"model{suffix}")
            app.router.add_get(f"/v2/models/{place}/ready", self._ready, name=f"model-ready{suffix}")
            app.router.add_post(f"/v2/models/{place}/infer", self._infer, name=f"infer{suffix}")
        return app

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Turn errors into JSON, and count and time the answer."""
        start = time.monotonic()
        self._running += 1
        try:
            response = await handler(request)
        except BadRequest as error:
            response = _error(400, str(error))
        except _NotServed as error:
            response = _error(404, str(error))
        except Overloaded:
            response = _error(503, "Too many requests wait. Try again later.")
        except web.RequestPayloadError:
            encoding = request.headers.get("Content-Encoding", "chunked")
            response = _error(400, f"the request: cannot be decoded, it is not {encoding}. Send it without encoding.")
        except ConnectionError:  # the client is gone
            raise
        except web.HTTPRequestEntityTooLarge:
            response = _error(413, f"the request: has more than {self._request_bytes:,} bytes. Send fewer records.")
        except web.HTTPException as error:
            response = _error(
                error.status, f"{request.method} {request.path}: {error.reason}. GET / lists the requests."
            )
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the server
            events.emit("warning", message=bug_sentence(error))
            response = _error(500, "The model could not answer. The server's log says why.")
        finally:
            self._running -= 1
        if self._stopping:
            response.force_close()
        route = (request.match_info.route.name or "none").removesuffix("-version")
        self._metrics.requests.labels(route, str(response.status)).inc()
        self._metrics.seconds.labels(route).observe(time.monotonic() - start)
        return response

    def _model(self, request: web.Request) -> LoadedModel:
        """Return the model that the path names. Raises `_NotServed` if another one or another version serves."""
        model, named = self._serving.model, request.match_info
        if named["name"] != self._name:
            raise _NotServed(f"{named['name']}: no such model. This server has '{self._name}'.")
        if (number := int(named.get("version") or model.number)) != model.number:
            raise _NotServed(f"{named['name']}: version {number} is not loaded. {model.number} serves.")
        return model

    async def _ask(self, model: LoadedModel, rows: list[Row], place: str) -> list[Output]:
        answer = await self._batcher.answer(model, rows)
        if isinstance(answer, list):
            first = min(answer, key=lambda row: int(row.file))
            raise BadRequest(f"{place}[{first.file}]: the model cannot answer ({first.reason}: {first.detail}).")
        return model.outputs(answer)

    async def _predict(self, request: web.Request) -> web.Response:
        model = self._model(request)
        rows, by_column = await _parsed(model.records.tensorflow_serving_rows, await request.read())
        outputs = await self._ask(model, rows, "inputs" if by_column else "instances")
        columns = {output.name: _listed(output) for output in outputs}
        if len(columns) == 1:  # TensorFlow Serving leaves the name of an only output out
            (values,) = columns.values()
            return web.json_response({"outputs" if by_column else "predictions": values})
        if by_column:
            return web.json_response({"outputs": columns})
        predictions = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return web.json_response({"predictions": predictions})

    async def _infer(self, request: web.Request) -> web.Response:
        model = self._model(request)
        rows, id_, wanted = await _parsed(model.records.open_inference_rows, await request.read())
        outputs = await self._ask(model, rows, "inputs")
        if unknown := set(wanted) - {output.name for output in outputs}:
            known = ", ".join(output.name for output in outputs)
            raise BadRequest(f"outputs: the model has no output '{min(unknown)}'. It has: {known}.")
        content = {"model_name": self._name, "model_version": str(model.number)} | ({"id": id_} if id_ else {})
        tensors = [_tensor(output) for output in outputs if output.name in wanted or not wanted]
        return web.json_response({**content, "outputs": tensors})

    async def _status(self, request: web.Request) -> web.Response:
        status = {
            "version": str(self._model(request).number),
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return web.json_response({"model_version_status": [status]})

    async def _about_model(self, request: web.Request) -> web.Response:
        model = self._model(request)
        return web.json_response(
            {
                "name": self._name,
                "versions": [str(model.number)],
                "platform": "trainyard",
                "inputs": [
                    {"name": feature.name, "datatype": DATATYPES[feature.dtype], "shape": [-1]}
                    for feature in model.pushed.inputs
                ],
                "outputs": model.described_outputs(),
            }
        )

    async def _about_server(self, _request: web.Request) -> web.Response:
        return web.json_response({"name": "trainyard", "version": version("trainyard"), "extensions": []})

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        if "name" in request.match_info:
            self._model(request)
        return web.json_response({"ready": not self._stopping}, status=503 if self._stopping else 200)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _page(self, _request: web.Request) -> web.Response:
        model = self._serving.model
        example = await asyncio.to_thread(storage.read, model.pushed.folder, _EXAMPLE)
        script = (_HERE / "page.js").read_text(encoding="utf-8")
        page = template(_HERE / "page.html.j2").render(
            title=self._name,
            model=model,
            name=self._name,
            failure=self._serving.failure,
            outputs=model.described_outputs(),
            example=json.loads(example) if example else {},
            request_bytes=self._request_bytes,
            script=script,
            script_hashes=[f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"],
        )
        return web.Response(text=page, content_type="text/html")


async def _parsed(parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
    """Parse `body`, a large one in a thread, so that it does not delay other requests."""
    return await asyncio.to_thread(parse, body) if len(body) > _LARGE_BYTES else parse(body)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _listed(output: Output) -> list[Any]:
    values: list[Any] = output.values.tolist() if isinstance(output.values, np.ndarray) else output.values
    return values


def _tensor(output: Output) -> dict[str, Any]:
    """Return an output as the Open Inference Protocol has it: its values in one list, row after row."""
    values = output.values
    is_array = isinstance(values, np.ndarray)
    return {
        "name": output.name,
        "datatype": output.datatype,
        "shape": list(values.shape) if is_array else [len(values)],
        "data": values.ravel().tolist() if is_array else values,
    }


def _metrics(serving: ServingVersion) -> _Metrics:
    registry = CollectorRegistry()
    for name, what, value in (
        ("version", "Version that serves.", lambda: serving.model.number),
        ("reloads", "Versions loaded since the start.", lambda: serving.reloads),
        ("reload_failing", "1 while a newer version cannot be loaded.", lambda: bool(serving.failure)),
    ):
        Gauge(f"trainyard_model_{name}", what, registry=registry).set_function(value)
    return _Metrics(
        registry,
        Counter("trainyard_requests", "Requests.", ("route", "code"), registry=registry),
        Histogram("trainyard_request_seconds", "Time of an answer.", ("route",), registry=registry, buckets=_SECONDS),
        Histogram("trainyard_batch_rows", "Rows of a batch.", registry=registry, buckets=_ROWS),
    )
