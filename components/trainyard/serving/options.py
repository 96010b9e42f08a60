"""The options of a server, read without aiohttp and TensorFlow."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from trainyard.errors import ConfigurationError

_ORIGIN = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
ANY = "*"
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client with the folder in which the processes of one server keep their metrics."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of a server, and the version that it serves. rpc: host and port of gRPC, '' without it.

    shadow: the folder of the version that is asked beside it, '' without one.
    """

    url: str
    rpc: str
    version: int
    folder: str
    shadow: str = ""


@dataclass(frozen=True)
class LogOptions:
    """The folder of a log of answers, and the share of the requests in it."""

    folder: str
    sample: float

    @classmethod
    def from_texts(cls, folder: str | None, sample: float | None) -> LogOptions | None:
        """Return the options `--log` and `--sample`. Raises `ConfigurationError` for a share of no log."""
        if folder is None and sample is not None:
            raise ConfigurationError(
                "--sample: is the share of the requests in --log, which is missing. Add --log FOLDER."
            )
        return cls(folder, 1.0 if sample is None else sample) if folder else None


@dataclass(frozen=True, kw_only=True)
class Options:
    """A server's address and models. folder: a pushed version, or a folder of versions. port: 0 for a free one.

    reload_seconds: how often a folder of versions is looked at. request_bytes: of the largest request. grpc_port: None
    for no gRPC. cors: origins whose pages may read answers, `ANY` for all. access_log: write a line for each request.
    log: None for no log of answers. workers: processes that share the ports. shadow: a pushed version, or a folder of
    versions, that answers into the log; '' for none.
    """

    folder: str = ""
    name: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    reload_seconds: float = 3600.0
    request_bytes: int = 1 << 30
    grpc_port: int | None = None
    cors: tuple[str, ...] = ()
    access_log: bool = False
    log: LogOptions | None = None
    workers: int = 1
    shadow: str = ""

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for an origin that no browser sends, too many workers, a shadow without a log."""
        if self.shadow and not self.log:
            raise ConfigurationError("--shadow: its answers go to --log alone, which is missing. Add --log FOLDER.")
        if self.workers > 1:
            cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
            if self.workers > cores:
                raise ConfigurationError(
                    f"--workers: {self.workers} processes are too many, this machine has cores for {cores}. At most "
                    "one process per core is allowed, and one without Linux. Give a smaller number."
                )
        for origin in self.cors:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(
                    f"--cors: an origin is expected, {origin[:100]!r} was received. Write scheme, host and port in "
                    "lower case alone, such as https://app.example:8443, or '*' for any origin."
                )
        if ANY in self.cors and len(self.cors) > 1:
            raise ConfigurationError(
                "--cors: '*' stands beside other origins. Only named origins may send credentials. Leave '*' out, or "
                "the others."
            )
