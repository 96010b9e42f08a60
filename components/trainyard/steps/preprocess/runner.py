"""Where the Beam pipelines run: in this process, or on the runner that the environment names."""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
import grpc  # type: ignore[import-untyped]
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.portable_runner import JobServiceHandle, PortableRunner

from trainyard.errors import ConfigurationError, TransientError

_UNREACHABLE = re.compile(r"TransientError: (.+?)(?: \[while running|$|\\n)", re.MULTILINE)
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


@contextmanager
def pipeline(beam_options: str) -> Iterator[Any]:
    """Yield a pipeline that runs when the block ends, on the runner that `beam_options` names.

    beam_options are Beam's own command line options, such as `--runner=PrismRunner`. Without a runner, or with
    DirectRunner, it runs in this process. Raises `ConfigurationError` where there is no such runner, `TransientError`
    where a worker could not reach the source, and `OSError` where it met a full disk or a missing permission.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    root = _pipeline(beam_options)
    servers = _adapt(root.runner, beam_options)
    try:
        with root:
            yield root
    except TransientError as error:  # from this process, with the transform's name at the end
        raise TransientError(str(error).partition(" [while running")[0]) from error
    except RuntimeError as error:
        _raise_of_the_source(error)
        _raise_of_the_machine(error)
        raise
    finally:
        # A step ends without its exit handlers, where Beam would have stopped them.
        for server in servers:
            server.stop()


def _pipeline(beam_options: str) -> Any:
    try:
        options = _options(beam_options)
        # Beam's DirectRunner would first try to download and start the Prism binary.
        in_process = options.view_as(StandardOptions).runner in (None, "DirectRunner")
        return beam.Pipeline(runner=FnApiRunner() if in_process else None, options=options)
    except ValueError as error:
        raise _wrong(beam_options, str(error)) from error
    except SystemExit as error:  # as argparse ends, its message already on stderr
        raise _wrong(beam_options, "a value that Beam does not allow (its message stands above)") from error


def _options(beam_options: str) -> PipelineOptions:
    options = PipelineOptions(shlex.split(beam_options))
    options.get_all_options()  # has Beam check every value now, and not in the middle of the run
    options.view_as(SetupOptions).save_main_session = False
    return options


def _adapt(runner: Any, beam_options: str) -> list[JobServer]:
    """Return the list that the job servers started by `runner` will be in; where one does not start, say so as ours."""
    servers: list[JobServer] = []
    if isinstance(runner, PortableRunner):
        default, create = runner.default_job_server, runner.create_job_service

        def default_job_server(options: PipelineOptions) -> JobServer:
            servers.append(default(options))
            return servers[-1]

        def create_job_service(options: PipelineOptions) -> JobServiceHandle:
            try:
                return _without_deadline(create(options))
            except grpc.FutureTimeoutError as error:
                raise TransientError(
                    f"beam options '{beam_options}': the job server does not answer. Check its address and the network."
                ) from error
            except (ValueError, RuntimeError, OSError) as error:
                raise _wrong(beam_options, str(error)) from error

        runner.default_job_server, runner.create_job_service = default_job_server, create_job_service
    return servers


def _without_deadline(service: JobServiceHandle) -> JobServiceHandle:
    """Have `service` follow a job for as long as it takes.

    job_server_timeout is meant for single answers, and stays in force for those that come before the job starts. But where
    a job's id is that of its preparation, as on Prism, Beam 2.77 makes it the deadline of the streams of states and
    messages too (`JobServiceHandle.run` in portable_runner.py), and with them of the whole pipeline: 300 s by default.
    The step as a whole has a deadline of its own.
    """
    run = service.run

    def run_without_deadline(preparation_id: str) -> Any:
        service.timeout = None  # gRPC's word for none
        return run(preparation_id)

    service.run = run_without_deadline
    return service


def _wrong(beam_options: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"beam options '{beam_options}': {reason.rstrip('.')}. Correct the section beam of the environment."
    )


def _raise_of_the_source(error: RuntimeError) -> None:
    """Raise `TransientError` where a worker could not reach the source: Beam hands its errors on as text."""
    sentence = _UNREACHABLE.search(str(error))
    if sentence:
        raise TransientError(sentence[1]) from error


def _raise_of_the_machine(error: RuntimeError) -> None:
    """Raise `OSError` where a worker met one."""
    for number in _OF_THE_MACHINE:
        if os.strerror(number) in str(error):
            raise OSError(number, os.strerror(number)) from error
