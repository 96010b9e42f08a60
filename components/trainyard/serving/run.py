"""Starts the server and ends it: SIGTERM and Ctrl-C finish the requests that were taken."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.log import server_logger

from trainyard import events
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.serving.server import Server
from trainyard.serving.service import Service
from trainyard.serving.versions import ServingVersion
from trainyard.uris import with_port
from trainyard.values.columns import block_pandas_import

_ALL = "0.0.0.0"  # noqa: S104
_GRACE_SECONDS = 25.0  # chosen: Kubernetes kills a pod after 30


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
