"""Runs Beam pipelines in this process or on the runner that the environment names."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import Signature
from types import FunctionType, MethodType
from typing import Any, TypeVar

from trainyard.beam.library import beam  # before every other import of Beam

# isort: split
import grpc
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.portable_runner import TERMINAL_STATES, JobServiceHandle, PortableRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms import core, userstate
from apache_beam.typehints import decorators

from trainyard import events, uris
from trainyard.errors import ConfigurationError, TransientError, from_name
from trainyard.runtime import step

_OURS = re.compile(r"(ConfigurationError|TransientError): (.+?)(?: \[while running|$|\\n)", re.MULTILINE)
_MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_View = TypeVar("_View", bound=PipelineOptions)


class _Options(PipelineOptions):
    """Beam's options, with each view created once.

    Each view parses the command line, and Beam 2.77 creates several for every transform: 2,100 for a table of seven
    columns, a seventh of the step's CPU time without imports.
    """

    def view_as(self, cls: type[_View]) -> _View:
        """Return the options of `cls`."""
        views: dict[type[_View], _View] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


@contextmanager
def pipeline(beam_options: str) -> Iterator[beam.Pipeline]:
    """Yield a pipeline that runs when the block ends, on the runner that `beam_options` names.

    beam_options: Beam's command line options, such as `--runner=PrismRunner`. Without a runner, or with DirectRunner,
    it runs in this process. Raises `ConfigurationError` for an unknown runner, our own errors from workers, and
    `OSError` for a full disk or a missing permission.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    _remember_signatures()
    uris.bypass_proxy()  # workers and job servers of this machine
    root = _pipeline(beam_options)
    jobs = Jobs()
    servers = _adapt(root.runner, beam_options, jobs)
    try:
        with jobs.cancelled_on_error(), root:
            yield root
    except (ConfigurationError, TransientError) as error:  # from this process, with the transform's name at the end
        raise type(error)(*(sentence.partition(" [while running")[0] for sentence in error.args)) from error
    except RuntimeError as error:
        _raise_known(error)
        raise
    finally:
        # A step exits without exit handlers, in which Beam would stop them.
        for server in servers:
            server.stop()


def is_in_process(beam_options: str) -> bool:
    """Return True if a pipeline with these options runs in this process alone.

    Raises `ConfigurationError` as `pipeline`.
    """
    options = _pipeline(beam_options).options
    return _is_direct(options) and options.view_as(DirectOptions).direct_num_workers == 1


def _is_direct(options: PipelineOptions) -> bool:
    return options.view_as(StandardOptions).runner in (None, "DirectRunner")


def _pipeline(beam_options: str) -> beam.Pipeline:
    try:
        options = _options(beam_options)
        # Beam's DirectRunner would first try to download and start the Prism binary.
        return beam.Pipeline(runner=FnApiRunner() if _is_direct(options) else None, options=options)
    except ValueError as error:
        raise _wrong(beam_options, str(error)) from error
    except SystemExit as error:  # argparse exits, with its message on stderr
        raise _wrong(beam_options, "a value that Beam does not allow (its message stands above)") from error


def _options(beam_options: str) -> PipelineOptions:
    options = _Options(shlex.split(beam_options))
    options.get_all_options()  # checks every value now instead of during the run
    options.view_as(SetupOptions).save_main_session = False
    # Beam would ask pip, which our images lack, for installed packages and send the list to the workers.
    options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")
    return options


@cache
def _remember_signatures() -> None:
    """Make Beam inspect each function, and the state of each kind of DoFn, only once.

    Beam 2.77 does both for every DoFn, at every transform and in every bundle: 51,000 functions for a table of seven
    columns. Cached signatures save a sixth of the step's CPU time without imports, cached kinds another tenth.
    """
    inspect = decorators.get_signature
    known: dict[tuple[object, bool], Signature] = {}

    def get_signature(function: Callable[..., object]) -> Signature:
        if not isinstance(function, FunctionType | MethodType):
            return inspect(function)
        bound = isinstance(function, MethodType)
        key = (getattr(function, "__func__", function), bound)
        if key not in known:
            known[key] = inspect(function)
        return known[key]

    inspect_methods = userstate.get_dofn_specs
    kinds: dict[tuple[type, frozenset[str]], tuple[set[Any], set[Any]]] = {}

    def get_dofn_specs(dofn: beam.DoFn) -> tuple[set[Any], set[Any]]:
        own = vars(dofn)
        if any(isinstance(value, MethodType) for value in own.values()):
            return inspect_methods(dofn)
        key = (type(dofn), frozenset(own))  # an attribute hides a method of the same name
        if key not in kinds:
            kinds[key] = inspect_methods(dofn)
        return kinds[key]

    decorators.get_signature = core.get_signature = get_signature
    userstate.get_dofn_specs = get_dofn_specs


def _adapt(runner: PipelineRunner, beam_options: str, jobs: Jobs) -> list[JobServer]:
    """Record the jobs of `runner` and translate its errors; return the list of job servers that it starts."""
    servers: list[JobServer] = []
    if isinstance(runner, PortableRunner):
        default, create = runner.default_job_server, runner.create_job_service

        def default_job_server(options: PipelineOptions) -> JobServer:
            servers.append(default(options))
            return servers[-1]

        def create_job_service(options: PipelineOptions) -> JobServiceHandle:
            try:
                name = _name_job(options)
                return jobs.record(create(options), name)
            except grpc.FutureTimeoutError as error:
                raise TransientError(
                    f"beam options '{beam_options}': the job server does not answer. Check its address and the network."
                ) from error
            except (ValueError, RuntimeError, OSError) as error:
                raise _wrong(beam_options, str(error)) from error

        runner.default_job_server, runner.create_job_service = default_job_server, create_job_service
    return servers


def _name_job(options: PipelineOptions) -> str:
    """Name the job after the step's output; return the name, '' if the environment names it or no step runs."""
    cloud, output = options.view_as(GoogleCloudOptions), step.current_output()
    if cloud.job_name or not output:
        return ""
    cloud.job_name = job_name(step.current_step(), output)
    return str(cloud.job_name)


def _wrong(beam_options: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"beam options '{beam_options}': {reason.rstrip('.')}. Correct the section beam of the environment."
    )


def _raise_known(error: RuntimeError) -> None:
    """Raise our own error from a worker, or its `OSError`: Beam passes errors on as text."""
    if match := _OURS.search(str(error)):
        raise from_name(match[1], match[2]) from error
    for number in _MACHINE_ERRORS:
        if os.strerror(number) in str(error):
            raise OSError(number, os.strerror(number)) from error


_ANSWER_SECONDS = 10.0  # chosen: a job server that does not answer must not hold up a step that got SIGTERM


def job_name(step: str, output: str) -> str:
    """Return the job name for `step` and `output`, the same for each attempt and valid for every runner.

    >>> job_name("preprocess", "gs://bucket/runs/digits/preprocess/1f0a")
    'trainyard-preprocess-8651c3dc1e0e'
    """
    return f"trainyard-{step}-{hashlib.sha256(output.encode()).hexdigest()[:12]}"


class Jobs:
    """The jobs that a pipeline starts on a job server, named after the step's output and cancelled with the step.

    A remote runner does not notice that the step waiting for a job is gone. A step that gets SIGTERM cancels its job. A
    killed step cannot, so the next step that writes the same output cancels the job before it starts its own, which
    reuses finished work.
    """

    def __init__(self) -> None:
        self._started: list[tuple[beam_job_api_pb2_grpc.JobServiceStub, str]] = []

    def record(self, service: JobServiceHandle, name: str) -> JobServiceHandle:
        """Make `service` cancel earlier jobs called `name`, record its job, and wait for it without a deadline.

        job_server_timeout is meant for single answers and stays in force until the job starts. But if a job's id is
        that of its preparation, as on Prism, Beam 2.77 also applies it to the streams of states and messages
        (`JobServiceHandle.run` in portable_runner.py), and so to the pipeline: 300 s by default. The step has its own
        deadline.

        name: '' if the caller holds no lease, so that an abandoned job cannot be recognized.
        """
        run = service.run

        def run_recorded(preparation_id: str) -> tuple[str, Iterator[object], Iterator[object]]:
            _cancel_named(service.job_service, name, but=preparation_id)
            service.timeout = None  # gRPC's word for none
            try:
                job, messages, states = run(preparation_id)
            except BaseException:  # it may run under an unknown id
                _cancel_named(service.job_service, name)
                raise
            self._started.append((service.job_service, job))
            events.emit("beam_job", job=job)
            return job, messages, states

        service.run = run_recorded
        return service

    @contextmanager
    def cancelled_on_error(self) -> Iterator[None]:
        """Cancel the running jobs if the block raises, SIGTERM included."""
        try:
            yield
        except BaseException:
            for service, job in self._started:
                _cancel(service, job)
            raise


def _cancel_named(service: beam_job_api_pb2_grpc.JobServiceStub, name: str, but: str = "") -> None:
    """Cancel the jobs called `name`, except the job `but`: some servers list a job before it runs."""
    if not name:
        return
    try:
        jobs = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=_ANSWER_SECONDS).job_info
    except grpc.RpcError:  # not every job server keeps a list
        return
    for job in jobs:
        if job.job_name == name and job.job_id != but:
            _cancel(service, job.job_id)


def _cancel(service: beam_job_api_pb2_grpc.JobServiceStub, job: str) -> None:
    try:
        state = service.GetState(beam_job_api_pb2.GetJobStateRequest(job_id=job), timeout=_ANSWER_SECONDS).state
        if state not in TERMINAL_STATES:
            service.Cancel(beam_job_api_pb2.CancelJobRequest(job_id=job), timeout=_ANSWER_SECONDS)
            events.emit("beam_job_cancelled", job=job)
    except grpc.RpcError as error:
        events.warn(f"beam job {job}: was not cancelled ({error.code().name})")
