"""The gRPC server: the Open Inference Protocol v2."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from trainyard.errors import ConfigurationError
from trainyard.serving.messages import METHODS, SERVICE, columns, response
from trainyard.serving.service import Service, about_server, parsed, refusal
from trainyard.uris import with_port

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
_LONGEST = 600  # characters of a message; chosen: a client takes 8 KiB of headers
_Answer = Callable[[Any], Awaitable[Any]]


class RpcServer:
    """Answers gRPC requests by `service`. request_bytes: of the largest request."""

    def __init__(self, service: Service, request_bytes: int) -> None:
        self._service = service
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", request_bytes),
                ("grpc.so_reuseport", 0),  # otherwise two servers share a port, and each gets some of the requests
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
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._answered(name, *METHODS[name], answer))
            for name, answer in answers.items()
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the address. Raises `ConfigurationError` if the port cannot be used."""
        try:
            port = self._server.add_insecure_port(with_port(host, port))
        except RuntimeError as error:
            raise ConfigurationError(
                f"{with_port(host, port)}: cannot be listened on for gRPC. Give another --host or --grpc-port."
            ) from error
        await self._server.start()
        return with_port(host, port)

    async def finish(self, seconds: float) -> None:
        """Take no more requests, and wait until those that were begun are answered, at most `seconds`."""
        await self._server.stop(seconds)

    def _answered(
        self, route: str, request_type: type[Message], response_type: type[Message], answer: _Answer
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Return a handler that turns errors into a status, and counts and times the answer."""

        async def handle(content: bytes, context: Any) -> bytes:
            start = time.monotonic()
            code, message, body = grpc.StatusCode.OK, "", b""
            self._service.running += 1
            try:
                found = await answer(request_type.FromString(content))
                body = (ParseDict(found, response_type()) if isinstance(found, dict) else found).SerializeToString()
            except DecodeError:
                code, message = _CODES[400], f"the request: is no {request_type.DESCRIPTOR.name}."
            except Exception as error:  # noqa: BLE001 - one request's failure must not end the server
                status, message = refusal(error)
                code = _CODES[status]
            finally:
                self._service.running -= 1
            self._service.count(route, code.name, start)
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
        rows = await parsed(
            lambda: model.records.tensor_rows(columns(request, model.records.decimals)), request.ByteSize()
        )
        outputs = await self._service.infer(model, rows, [output.name for output in request.outputs])
        return response(self._service.name, str(model.number), request, outputs)
