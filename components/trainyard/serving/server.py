"""The HTTP server: TensorFlow Serving's REST API, the Open Inference Protocol v2, health, metrics, and a page.

SIGTERM and Ctrl-C finish the requests that were taken.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.log import server_logger
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trainyard import events
from trainyard.contract.version import EXTRA
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.report.pages import template
from trainyard.serving import raw_tensors
from trainyard.serving.records import JSON_BYTES
from trainyard.serving.service import Service, about_server, parsed, refusal
from trainyard.serving.versions import LoadedModel, Output, ServingVersion
from trainyard.spec.columns import input_name
from trainyard.storage import storage
from trainyard.uris import with_port
from trainyard.values.columns import block_pandas_import

_EXAMPLE = f"{EXTRA}/examples/row.json"
_HERE = Path(__file__).parent
_ALL = "0.0.0.0"  # noqa: S104
_TENSORFLOW = {"FP32": "DT_FLOAT", "INT64": "DT_INT64", "BYTES": "DT_STRING"}
_GRACE_SECONDS = 25.0  # chosen: Kubernetes kills a pod after 30


class Server:
    """Answers HTTP requests by `service`. request_bytes: of the largest request's body."""

    def __init__(self, service: Service, request_bytes: int) -> None:
        self._service, self._request_bytes = service, request_bytes

    async def finish(self, seconds: float) -> None:
        """Wait until the requests that were begun are answered, at most `seconds`; each closes its connection."""
        self._service.stopping, end = True, time.monotonic() + seconds
        while self._service.running and time.monotonic() < end:
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
            app.router.add_get(f"/v1/models/{place}/metadata", self._signature, name=f"metadata{suffix}")
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
        self._service.running += 1
        try:
            response = await handler(request)
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
            response = _error(*refusal(error))
        finally:
            self._service.running -= 1
        if self._service.stopping:
            response.force_close()
        route = (request.match_info.route.name or "none").removesuffix("-version")
        self._service.count(route, str(response.status), start)
        return response

    def _model(self, request: web.Request) -> LoadedModel:
        """Return the model that the path names."""
        named = request.match_info
        return self._service.model(named["name"], named.get("version", ""))

    async def _predict(self, request: web.Request) -> web.Response:
        model = self._model(request)
        body = await request.read()
        rows, by_column = await parsed(lambda: model.records.tensorflow_serving_rows(body), len(body))
        outputs = await self._service.ask(model, rows, "inputs" if by_column else "instances")
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
        body, json_bytes = await request.read(), request.headers.get(JSON_BYTES, "")
        rows, id_, wanted = await parsed(lambda: model.records.open_inference_rows(body, json_bytes), len(body))
        outputs = await self._service.infer(model, rows, wanted.raw)
        raw = {
            output.name: raw_tensors.content(output.values, output.datatype)
            for output in outputs
            if wanted.raw.get(output.name, wanted.raw_by_default)
        }
        content = {"model_name": self._service.name, "model_version": str(model.number)} | ({"id": id_} if id_ else {})
        answer = {**content, "outputs": [_tensor(output, raw.get(output.name)) for output in outputs]}
        if not raw:
            return web.json_response(answer)
        head = json.dumps(answer).encode()
        return web.Response(body=head + b"".join(raw.values()), headers={JSON_BYTES: str(len(head))})

    async def _status(self, request: web.Request) -> web.Response:
        status = {
            "version": str(self._model(request).number),
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return web.json_response({"model_version_status": [status]})

    async def _signature(self, request: web.Request) -> web.Response:
        """Answer as TensorFlow Serving's GetModelMetadata, in the names of the serving signature."""
        model = self._model(request)
        about = self._service.about_model(model)
        signature = {
            "inputs": {input_name(tensor["name"]): _tensor_info(tensor) for tensor in about["inputs"]},
            "outputs": {tensor["name"]: _tensor_info(tensor) for tensor in about["outputs"]},
            "method_name": "tensorflow/serving/predict",
        }
        spec = {"name": self._service.name, "signature_name": "", "version": str(model.number)}
        content = {"signature_def": {"signature_def": {"serving_default": signature}}}
        return web.json_response({"model_spec": spec, "metadata": content})

    async def _about_model(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.about_model(self._model(request)))

    async def _about_server(self, _request: web.Request) -> web.Response:
        return web.json_response(about_server())

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        if "name" in request.match_info:
            self._model(request)
        stopping = self._service.stopping
        return web.json_response({"ready": not stopping}, status=503 if stopping else 200)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._service.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _page(self, _request: web.Request) -> web.Response:
        model = self._service.serving.model
        example = await asyncio.to_thread(storage.read, model.pushed.folder, _EXAMPLE)
        script = (_HERE / "page.js").read_text(encoding="utf-8")
        page = template(_HERE / "page.html.j2").render(
            title=self._service.name,
            model=model,
            name=self._service.name,
            failure=self._service.serving.failure,
            outputs=model.described_outputs(),
            example=json.loads(example) if example else {},
            request_bytes=self._request_bytes,
            script=script,
            script_hashes=[f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"],
        )
        return web.Response(text=page, content_type="text/html")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _listed(output: Output) -> list[Any]:
    values: list[Any] = output.values.tolist() if isinstance(output.values, np.ndarray) else output.values
    return values


def _tensor_info(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of TensorFlow's TensorInfo, whose 64-bit integers are texts, of a tensor of `about_model`."""
    sizes = [{"size": str(size), "name": ""} for size in tensor["shape"]]
    shape = {"dim": sizes, "unknown_rank": False}
    return {"dtype": _TENSORFLOW[tensor["datatype"]], "tensor_shape": shape, "name": input_name(tensor["name"])}


def _tensor(output: Output, raw: bytes | None) -> dict[str, Any]:
    """Return an output as the Open Inference Protocol has it: its values in one list, row after row, if not `raw`."""
    values = output.values
    is_array = isinstance(values, np.ndarray)
    shape = list(values.shape) if is_array else [len(values)]
    described: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": shape}
    if raw is not None:
        return described | {"parameters": {"binary_data_size": len(raw)}}
    return described | {"data": values.ravel().tolist() if is_array else values}


@dataclass(frozen=True)
class Options:
    """A server's address and models. folder: a pushed version, or a folder of versions. port: 0 for a free one.

    reload_seconds: how often a folder of versions is looked at. request_bytes: of the largest request. grpc_port: None
    for no gRPC.
    """

    folder: str
    name: str
    host: str
    port: int
    reload_seconds: float
    request_bytes: int
    grpc_port: int | None = None


@dataclass(frozen=True)
class Addresses:
    """The addresses of a server. rpc: host and port of gRPC, '' without it."""

    url: str
    rpc: str


def serve(options: Options, started: Callable[[Addresses, ServingVersion], None]) -> None:
    """Answer requests until SIGTERM or SIGINT comes. started: called with the addresses once requests are answered.

    Raises `DataError` if there is no model, or it is damaged; `ConfigurationError` if the port cannot be used.
    """
    block_pandas_import()
    serving = ServingVersion(options.folder, options.reload_seconds)
    asyncio.run(_serve(options, serving, started))


def serve_to_parent(folder: str) -> None:
    """Serve the version in `folder` as `model` on a free port, which the event `serving` tells the parent process."""
    options = Options(folder, "model", "127.0.0.1", 0, 3600.0, 1 << 30)
    try:
        serve(options, lambda addresses, _serving: events.emit("serving", url=addresses.url))
    except TrainyardError as error:
        events.emit("failed", message=str(error))
        sys.exit(int(error.exit_code))


async def _serve(
    options: Options, serving: ServingVersion, started: Callable[[Addresses, ServingVersion], None]
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with listening(options, serving) as addresses:
        started(addresses, serving)
        await ended.wait()


@asynccontextmanager
async def listening(options: Options, serving: ServingVersion) -> AsyncIterator[Addresses]:
    """Answer requests while the block runs, which gets the addresses; then finish those that were taken."""
    service = Service(options.name, serving)
    server = Server(service, options.request_bytes)
    server_logger.setLevel(logging.CRITICAL)  # it writes a traceback for each request that is not HTTP
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            # None: IPv6 too, for pods that have no other address.
            site = web.TCPSite(runner, None if options.host == _ALL else options.host, options.port)
            await site.start()
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"{with_port(options.host, options.port)}: cannot be listened on ({error}). "
                "Give another --host or --port."
            ) from error
        endings, rpc = [server.finish], ""
        if options.grpc_port is not None:
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs what it also raises
            from trainyard.serving.rpc import RpcServer

            rpc_server = RpcServer(service, options.request_bytes)
            rpc = await rpc_server.start(options.host, options.grpc_port)
            endings.append(rpc_server.finish)
        watching = asyncio.create_task(serving.watch())
        yield Addresses(f"http://{with_port(*runner.addresses[0][:2])}", rpc)
        watching.cancel()
        await site.stop()
        await asyncio.gather(*(finish(_GRACE_SECONDS) for finish in endings))
    finally:
        await runner.cleanup()
