"""`trainyard serve`: answer requests with a pushed model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import LOCAL, EnvironmentName, ModelName

if TYPE_CHECKING:
    from trainyard.serving.server import Addresses
    from trainyard.serving.versions import ServingVersion

_ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Pushed version or folder of versions, as path or URI; or a recipe, for its champion."
    ),
]


def serve(
    model: _ModelName,
    environment: EnvironmentName = LOCAL,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for a free one.")] = 8080,
    name: ModelName = None,
    reload_seconds: Annotated[
        float, typer.Option("--reload-seconds", min=0.1, help="How often to look for another version.")
    ] = 10.0,
    request_mib: Annotated[
        int, typer.Option("--request-mib", min=1, max=1024, help="Maximum size of a request in MiB.")
    ] = 16,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", min=0, max=65535, help="Also serve gRPC, on this port; 0 for a free one."),
    ] = None,
) -> None:
    """Serve a pushed model over HTTP and gRPC.

    REST API of TensorFlow Serving, Open Inference Protocol, Prometheus metrics, and a page to try it.
    """
    from trainyard_control.api.model import serve as serve_model

    def started(addresses: Addresses, serving: ServingVersion) -> None:
        served = f"✓ version {serving.model.number} of {serving.model.pushed.folder} serves at {addresses.url}"
        typer.echo(served + (f", gRPC at {addresses.rpc}" if addresses.rpc else ""), err=True)

    serve_model(
        model,
        environment=environment,
        host=host,
        port=port,
        name=name,
        reload_seconds=reload_seconds,
        request_bytes=request_mib << 20,
        grpc_port=grpc_port,
        started=started,
    )
