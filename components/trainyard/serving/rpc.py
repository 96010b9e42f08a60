"""The gRPC server: the Open Inference Protocol v2 with its messages, TensorFlow Serving's services, health checks.

open_inference_grpc.binpb describes them: the compiled open_inference_grpc.proto beside it. The classes are made when
this module is imported, in a pool apart from the default one: a client of Triton or KServe in the same process has
messages with the same names.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from trainyard.errors import ConfigurationError
from trainyard.serving import raw_tensors
from trainyard.serving.bad_request import BadRequest, mistyped
from trainyard.serving.options import Options
from trainyard.serving.records import INTEGERS, require_datatype, require_shape
from trainyard.serving.service import REQUEST_ID, Service, about_server, aside, refusal
from trainyard.serving.transport import RequestIds, log_request
from trainyard.serving.versions import Output
from trainyard.uris import with_port

SERVICE = "inference.GRPCInferenceService"
_CONTENTS = {
    "int_contents": "<i4",
    "int64_contents": "<i8",
    "uint_contents": "<u4",
    "uint64_contents": "<u8",
    "fp32_contents": "<f4",
    "fp64_contents": "<f8",
}
"""The dtype of the numbers in each field of typed contents."""

_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of typed contents of each datatype that has one.

Source: the comments in the source that open_inference_grpc.proto names.
"""

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
# chosen: for a client to read an answer. gRPC closes a connection once its last answer is written; what the client
# sends then resets it, with what it has not read yet.
_READ_SECONDS = 1.0
_LONGEST = 600  # characters of a message; chosen: a client takes 8 KiB of headers
_Answer = Callable[[Any], Awaitable[Any]]


def _methods() -> list[MethodDescriptor]:
    pool = DescriptorPool()
    content = Path(__file__).with_name("open_inference_grpc.binpb").read_bytes()
    for file in FileDescriptorSet.FromString(content).file:
        pool.Add(file)
    return list(pool.FindServiceByName(SERVICE).methods)


METHODS: dict[str, tuple[type[Message], type[Message]]] = {
    method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type)) for method in _methods()
}
"""The classes of request and response, by the name of the method."""


def columns(request: Any, decimals: Collection[str]) -> list[tuple[str, list[Any]]]:
    """Return name and values of each tensor of a ModelInferRequest. Raises `BadRequest` if a tensor is no column.

    Numbers are floats in `decimals`, otherwise texts as over REST; NaN is None.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequest(
            f"raw_input_contents: one for each of the {len(request.inputs)} inputs is expected, {len(raw)} were found."
        )
    found: list[tuple[str, list[Any]]] = []
    for index, tensor in enumerate(request.inputs):
        place = f"inputs[{index}]"
        require_datatype(tensor.datatype, place)
        if raw and tensor.HasField("contents"):
            raise BadRequest(f"{place}.contents: stands beside raw_input_contents. Send one of them.")
        is_decimal = tensor.name in decimals
        if raw:
            values = raw_tensors.column(raw[index], tensor.datatype, tensor.name, place, is_decimal=is_decimal)
        else:
            values = raw_tensors.listed(_from_contents(tensor, place), is_decimal=is_decimal)
        require_shape(tensor.shape, len(values), place)
        found.append((tensor.name, values))
    return found


def response(model: str, version: str, request: Any, outputs: Sequence[Output]) -> Any:
    """Return the ModelInferResponse to `request`, whose contents are raw if those of the request are."""
    answer: Any = METHODS["ModelInfer"][1](model_name=model, model_version=version, id=request.id)
    for output in outputs:
        tensor = answer.outputs.add(name=output.name, datatype=output.datatype, shape=np.shape(output.values))
        if request.raw_input_contents:
            answer.raw_output_contents.append(raw_tensors.content(output.values, output.datatype))
            continue
        is_text = output.datatype == "BYTES"
        content: Any = [text.encode() for text in output.values] if is_text else np.ravel(output.values)
        getattr(tensor.contents, _FIELDS[output.datatype]).extend(content)
    return answer


def _from_contents(tensor: Any, place: str) -> Any:
    contents, datatype = tensor.contents, tensor.datatype
    expected = _FIELDS.get(datatype)
    found = [field.name for field, _ in contents.ListFields()]
    if not expected:
        raise BadRequest(f"{place}.contents: {datatype} has none. Send raw_input_contents.")
    if unexpected := [name for name in found if name != expected]:
        raise BadRequest(f"{place}.contents: {expected} is expected for {datatype}, {unexpected[0]} was found.")
    values = getattr(contents, expected)
    if datatype in ("BOOL", "BYTES"):
        return list(values)
    numbers = np.array(values, _CONTENTS[expected])
    if datatype in INTEGERS:
        low, high = INTEGERS[datatype]
        for index in np.flatnonzero((numbers < low) | (numbers > high))[:1].tolist():
            raise mistyped(f"{place}.contents.{expected}[{index}]", tensor.name, datatype, values[index])
    return numbers


class _Health(health.aio.HealthServicer):
    """The health of the server, and of each of its services by its name.

    Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
    """

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Task[None] | None] = set()

    async def Watch(self, request: Any, context: Any) -> None:
        watch = asyncio.current_task()
        self._watches.add(watch)
        try:
            await super().Watch(request, context)
        finally:
            self._watches.discard(watch)

    async def finish(self) -> None:
        """Answer NOT_SERVING, and end the watches, which would keep the server from ending."""
        await self.enter_graceful_shutdown()
        await asyncio.sleep(0)  # a watch writes the new state first
        for watch in self._watches:
            if watch:
                watch.cancel()


class RpcServer:
    """Answers gRPC requests by `service`."""

    def __init__(self, service: Service, options: Options) -> None:
        self._service, self._access_log = service, options.access_log
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", options.request_bytes),
                ("grpc.so_reuseport", int(options.workers > 1)),  # by default two servers would share a port
            ]
        )
        answers: dict[str, _Answer] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._about_server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._about_model,
            "ModelInfer": self._infer,
        }
        from trainyard.serving.prediction_service import PredictionService  # which imports TensorFlow

        own = {name: (*METHODS[name], answer) for name, answer in answers.items()}
        services = {SERVICE: own} | PredictionService(service, options.request_bytes).services()
        self._services, self._answered_at = list(services), -math.inf
        for name, methods in services.items():
            handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
                method: grpc.unary_unary_rpc_method_handler(self._answered(method, *answered))
                for method, answered in methods.items()
            }
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the address. Raises `ConfigurationError` if the port cannot be used."""
        try:
            port = self._server.add_insecure_port(with_port(host, port))
        except RuntimeError as error:
            raise ConfigurationError(
                f"{with_port(host, port)}: cannot be listened on for gRPC. Give another --host or --grpc-port."
            ) from error
        await self._server.start()
        for name in self._services:
            await self._health.set(name, HealthCheckResponse.SERVING)
        return with_port(host, port)

    async def finish(self, seconds: float) -> None:
        """End once all requests are answered and read, at most after `seconds`; new ones are taken for half of them."""
        await self._health.finish()
        start = now = time.monotonic()
        while (self._service.running or now < self._answered_at + _READ_SECONDS) and now < start + seconds / 2:
            await asyncio.sleep(0.01)
            now = time.monotonic()
        await self._server.stop(start + seconds - now)

    def _answered(
        self, route: str, request_type: type[Message], response_type: type[Message], answer: _Answer
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Return a handler that turns errors into a status, and counts and times the answer."""

        async def handle(content: bytes, context: Any) -> bytes:
            start = time.monotonic()
            ids = RequestIds.from_headers(dict(context.invocation_metadata()))
            REQUEST_ID.set(ids.request_id)
            code, message, body = grpc.StatusCode.OK, "", b""
            self._service.running += 1
            try:
                found = await answer(request_type.FromString(content))
                body = (ParseDict(found, response_type()) if isinstance(found, dict) else found).SerializeToString()
            except DecodeError:
                code, message = _CODES[400], f"the request: is no {request_type.DESCRIPTOR.name}."
            except Exception as error:  # noqa: BLE001 - one request's failure must not end the server
                status, message = refusal(error, ids.fields())
                code = _CODES[status]
            finally:
                self._service.running -= 1
                self._answered_at = time.monotonic()
            self._service.count(route, code.name, start)
            if self._access_log:
                about = {"client": context.peer(), "method": "gRPC", "path": route}
                log_request(about, code.name, start, ids)
            if message:
                await context.abort(code, message[:_LONGEST])
            return body

        return handle

    async def _live(self, _request: Any) -> dict[str, Any]:
        return {"live": True}

    async def _ready(self, _request: Any) -> dict[str, Any]:
        return {"ready": not self._service.stopping}

    async def _about_server(self, _request: Any) -> dict[str, Any]:
        return about_server()

    async def _model_ready(self, request: Any) -> dict[str, Any]:
        self._service.model(request.name, request.version)
        return {"ready": not self._service.stopping}

    async def _about_model(self, request: Any) -> dict[str, Any]:
        return self._service.about_model(self._service.model(request.name, request.version))

    async def _infer(self, request: Any) -> Any:
        model = self._service.model(request.model_name, request.model_version)
        rows = await aside(
            lambda: model.records.tensor_rows(columns(request, model.records.decimals)), request.ByteSize()
        )
        outputs = await self._service.infer(model, rows, [output.name for output in request.outputs])
        return response(self._service.name, str(model.number), request, outputs)
