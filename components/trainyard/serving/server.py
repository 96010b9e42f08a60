"""The HTTP server: TensorFlow Serving's REST API, the Open Inference Protocol v2, health, metrics, and a page.

SIGTERM and Ctrl-C finish the requests that were taken.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.log import server_logger
from prometheus_client import CONTENT_TYPE_LATEST

from trainyard import events
from trainyard.contract.version import EXTRA
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.report.pages import template
from trainyard.serving import raw_tensors
from trainyard.serving.options import Addresses as Addresses
from trainyard.serving.options import Options as Options
from trainyard.serving.records import JSON_BYTES, SIGNATURE
from trainyard.serving.service import (
    REQUEST_ID,
    Service,
    about_server,
    aside,
    refusal,
    signature_definition,
    version_status,
)
from trainyard.serving.shadow import require_pair
from trainyard.serving.transport import (
    ID_HEADER,
    Connections,
    RequestIds,
    SlowBody,
    add_cors,
    compress,
    is_preflight,
    log_request,
    read_body,
)
from trainyard.serving.versions import LoadedModel, Output, ServingVersion
from trainyard.storage import storage
from trainyard.uris import with_port
from trainyard.values.columns import block_pandas_import

_EXAMPLE = f"{EXTRA}/examples/row.json"
_HERE = Path(__file__).parent
_ALL = "0.0.0.0"  # noqa: S104
_GRACE_SECONDS = 25.0  # chosen: Kubernetes kills a pod after 30
_SHADOW_SECONDS = 2.0  # for what waits for the shadow when the server ends; chosen
_SWITCH_SECONDS = 0.0001  # that a request waits for Python while a thread loads or parses; chosen: 1/50 of the default


class Server:
    """Answers HTTP requests by `service`."""

    def __init__(self, service: Service, options: Options) -> None:
        self._service, self._options = service, options
        self.connections = Connections()

    async def finish(self, seconds: float) -> None:
        """Wait until the requests that were begun are answered, at most `seconds`; each closes its connection."""
        self._service.stopping, end = True, time.monotonic() + seconds
        while self._service.running and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def application(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[self._answered], client_max_size=self._options.request_bytes)
        model, versioned = "{name:[^/:]+}", "{name:[^/:]+}/versions/{version:[0-9]{1,18}}"
        app.router.add_get("/", self._page, name="page")
        app.router.add_get("/healthz", self._live, name="healthz")
        app.router.add_get("/metrics", self._metrics_text, name="metrics")
        app.router.add_get("/v2", self._about_server, name="server")
        app.router.add_get("/v2/health/live", self._live, name="live")
        app.router.add_get("/v2/health/ready", self._ready, name="ready")
        for suffix, place in (("", model), ("-version", versioned), ("-label", "{name:[^/:]+}/labels/{label:[^/:]+}")):
            app.router.add_post(f"/v1/models/{place}:predict", self._predict, name=f"predict{suffix}")
            for method in ("classify", "regress"):
                app.router.add_post(f"/v1/models/{place}:{method}", self._results, name=f"{method}{suffix}")
            app.router.add_get(f"/v1/models/{place}", self._status, name=f"status{suffix}")
            app.router.add_get(f"/v1/models/{place}/metadata", self._signature, name=f"metadata{suffix}")
        for suffix, place in (("", model), ("-version", versioned)):
            app.router.add_get(f"/v2/models/{place}", self._about_model, name=f"model{suffix}")
            app.router.add_get(f"/v2/models/{place}/ready", self._ready, name=f"model-ready{suffix}")
            app.router.add_post(f"/v2/models/{place}/infer", self._infer, name=f"infer{suffix}")
        return app

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Turn errors into JSON, count, time and log the answer, and add what every answer has."""
        start, ids = time.monotonic(), RequestIds.from_headers(request.headers)
        REQUEST_ID.set(ids.request_id)
        self.connections.use(request)
        self._service.running += 1
        try:
            asks = is_preflight(request, self._options.cors)
            response = web.Response(status=204) if asks else await handler(request)
        except web.RequestPayloadError:
            encoding = request.headers.get("Content-Encoding", "chunked")
            response = _error(400, f"the request: cannot be decoded, it is not {encoding}. Send it without encoding.")
        except ConnectionError:  # the client is gone
            raise
        except web.HTTPRequestEntityTooLarge:
            limit = f"{self._options.request_bytes:,} bytes"
            response = _error(413, f"the request: has more than {limit}. Send fewer records.")
        except SlowBody as error:
            response = _error(408, str(error))
            response.force_close()
        except web.HTTPException as error:
            response = _error(
                error.status, f"{request.method} {request.path}: {error.reason}. GET / lists the requests."
            )
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the server
            response = _error(*refusal(error, ids.fields()))
        finally:
            self._service.running -= 1
        if self._service.stopping:
            response.force_close()
        response.headers[ID_HEADER] = ids.request_id
        add_cors(response, request, self._options.cors)
        await compress(response, request)
        self._service.count(_route(request), str(response.status), start)
        if self._options.access_log:
            about = {"client": request.remote or "", "method": request.method, "path": request.path}
            log_request(about, str(response.status), start, ids)
        return response

    def _model(self, request: web.Request) -> LoadedModel:
        """Return the model that the path names."""
        named = request.match_info
        return self._service.model(named["name"], named.get("version", ""), named.get("label", ""))

    async def _body(self, request: web.Request) -> bytes:
        return await read_body(request, self._options.request_bytes)

    async def _predict(self, request: web.Request) -> web.Response:
        model = self._model(request)
        body = await self._body(request)
        rows, by_column = await aside(lambda: model.records.tensorflow_serving_rows(body), len(body))
        outputs = await self._service.ask(model, rows, "inputs" if by_column else "instances")
        return _json(await aside(lambda: _predictions(outputs, by_column=by_column), len(body)))

    async def _results(self, request: web.Request) -> web.Response:
        model = self._model(request)
        body = await self._body(request)
        rows = await aside(lambda: model.records.examples_rows(body), len(body))
        return _json({"results": await self._service.results(model, rows, _route(request))})

    async def _infer(self, request: web.Request) -> web.Response:
        model = self._model(request)
        body, json_bytes = await self._body(request), request.headers.get(JSON_BYTES, "")
        name = self._service.name
        rows, id_, wanted = await aside(lambda: model.records.open_inference_rows(body, json_bytes, name), len(body))
        outputs = await self._service.infer(model, rows, wanted.raw)
        raw = {
            output.name: raw_tensors.content(output.values, output.datatype)
            for output in outputs
            if wanted.raw.get(output.name, wanted.raw_by_default)
        }
        content = {"model_name": self._service.name, "model_version": str(model.number)} | ({"id": id_} if id_ else {})
        answer = {**content, "outputs": [_tensor(output, raw.get(output.name)) for output in outputs]}
        if not raw:
            return _json(answer)
        head = json.dumps(answer).encode()
        return web.Response(body=head + b"".join(raw.values()), headers={JSON_BYTES: str(len(head))})

    async def _status(self, request: web.Request) -> web.Response:
        kserve = {"name": self._service.name, "ready": True}  # members of KServe's V1 protocol
        return _json(version_status(self._model(request)) | kserve)

    async def _signature(self, request: web.Request) -> web.Response:
        """Answer as TensorFlow Serving's GetModelMetadata, in the names of the serving signature."""
        model = self._model(request)
        signature = signature_definition(self._service.about_model(model))
        spec = {"name": self._service.name, "signature_name": "", "version": str(model.number)}
        content = {"signature_def": {"signature_def": {SIGNATURE: signature}}}
        return _json({"model_spec": spec, "metadata": content})

    async def _about_model(self, request: web.Request) -> web.Response:
        return _json(self._service.about_model(self._model(request)))

    async def _about_server(self, _request: web.Request) -> web.Response:
        return _json(about_server())

    async def _live(self, _request: web.Request) -> web.Response:
        return _json({"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        if "name" in request.match_info:
            self._model(request)
        stopping = self._service.stopping
        return _json({"ready": not stopping}, 503 if stopping else 200)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._service.metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _page(self, request: web.Request) -> web.Response:
        """Answer a browser with the page, and other clients with JSON, whose `status` KServe's client reads."""
        if "text/html" not in request.headers.get("Accept", ""):
            routes = [route for route in request.app.router.routes() if route.method != "HEAD" and route.resource]
            requests = [f"{route.method} {route.resource.canonical}" for route in routes if route.resource]
            return _json({"status": "alive", "requests": requests})
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
            request_bytes=self._options.request_bytes,
            script=script,
            script_hashes=[f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"],
        )
        return web.Response(text=page, content_type="text/html")


def _route(request: web.Request) -> str:
    """Return the name of a request's route: whether a version or a label is named makes no difference."""
    return (request.match_info.route.name or "none").removesuffix("-version").removesuffix("-label")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status)


def _json(content: Any, status: int = 200) -> web.Response:
    """Return an answer of JSON, or of its text. With a charset in its type, KServe's client would show no error."""
    text = content if isinstance(content, str) else json.dumps(content)
    return web.Response(body=text.encode(), status=status, content_type="application/json")


def _predictions(outputs: Sequence[Output], *, by_column: bool) -> str:
    """Return the JSON of an answer of TensorFlow Serving.

    Row by row, because the encoder lets no other thread run meanwhile: 0.3 s for 100,000 rows.
    """
    columns = {output.name: _listed(output) for output in outputs}
    if by_column:  # TensorFlow Serving leaves the name of an only output out
        return json.dumps({"outputs": columns if len(columns) > 1 else next(iter(columns.values()))})
    rows = zip(*columns.values(), strict=True)
    predictions = (dict(zip(columns, row, strict=True)) if len(columns) > 1 else row[0] for row in rows)
    return f'{{"predictions": [{", ".join(map(json.dumps, predictions))}]}}'


def _listed(output: Output) -> list[Any]:
    values: list[Any] = output.values.tolist() if isinstance(output.values, np.ndarray) else output.values
    return values


def _tensor(output: Output, raw: bytes | None) -> dict[str, Any]:
    """Return an output as the Open Inference Protocol has it: its values in one list, row after row, if not `raw`."""
    values = output.values
    is_array = isinstance(values, np.ndarray)
    shape = list(values.shape) if is_array else [len(values)]
    described: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": shape}
    if raw is not None:
        return described | {"parameters": {"binary_data_size": len(raw)}}
    return described | {"data": values.ravel().tolist() if is_array else values}


def serve(options: Options, started: Callable[[Addresses], None]) -> None:
    """Answer requests until SIGTERM or SIGINT comes. started: called with the addresses once requests are answered.

    Raises `DataError` if there is no model, or it is damaged; `ConfigurationError` if the port cannot be used.
    """
    block_pandas_import()
    serving = ServingVersion(options.folder, options.reload_seconds)
    shadow = load_shadow(options, serving)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # a full collection, as a reload causes, delays requests by 84 ms (measured) while it visits TensorFlow
    asyncio.run(_serve(options, serving, shadow, started))


def serve_to_parent(folder: str) -> None:
    """Serve the version in `folder` as `model` on a free port, which the event `serving` tells the parent process."""
    options = Options(folder=folder, name="model")
    try:
        serve(options, lambda addresses: events.emit("serving", url=addresses.url))
    except TrainyardError as error:
        events.emit("failed", message=str(error))
        sys.exit(int(error.exit_code))


def load_shadow(options: Options, serving: ServingVersion) -> ServingVersion | None:
    """Load the shadow if there is one. Raises as `ServingVersion`, and `require_pair`."""
    if not options.shadow:
        return None
    shadow = ServingVersion(options.shadow, options.reload_seconds, is_shadow=True)
    require_pair(serving.model.pushed, shadow.model.pushed)
    return shadow


async def _serve(
    options: Options, serving: ServingVersion, shadow: ServingVersion | None, started: Callable[[Addresses], None]
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with listening(options, serving, shadow) as addresses:
        started(addresses)
        await ended.wait()


@asynccontextmanager
async def listening(
    options: Options, serving: ServingVersion, shadow: ServingVersion | None = None
) -> AsyncIterator[Addresses]:
    """Answer requests while the block runs, which gets the addresses; then finish those that were taken."""
    service = Service(options.name, serving, options.log, shadow)
    server = Server(service, options)
    server_logger.setLevel(logging.CRITICAL)  # it writes a traceback for each request that is not HTTP
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            # None: IPv6 too, for pods that have no other address.
            host, shares = None if options.host == _ALL else options.host, options.workers > 1
            site = web.TCPSite(runner, host, options.port, reuse_port=shares)
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

            rpc_server = RpcServer(service, options)
            rpc = await rpc_server.start(options.host, options.grpc_port)
            endings.append(rpc_server.finish)
        assert runner.server is not None  # noqa: S101 - it was set up
        watching = [serving.watch(), server.connections.watch(runner.server), service.measure_always()]
        watching += [shadow.watch()] if shadow else []
        tasks = [asyncio.create_task(watch) for watch in watching]
        url, model = f"http://{with_port(*runner.addresses[0][:2])}", serving.model
        yield Addresses(url, rpc, model.number, model.pushed.folder, shadow.model.pushed.folder if shadow else "")
        for task in tasks:
            task.cancel()
        await site.stop()
        await asyncio.gather(*(finish(_GRACE_SECONDS) for finish in endings))
        if service.shadow:
            await service.shadow.finish(_SHADOW_SECONDS)
    finally:
        if service.log:
            await asyncio.to_thread(service.log.finish, _GRACE_SECONDS)
        await runner.cleanup()
