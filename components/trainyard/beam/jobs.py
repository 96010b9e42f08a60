"""Jobs of a pipeline on a remote runner: named after the step's output, recorded, and cancelled with the step.

The runner does not notice that the step waiting for a job is gone. A step that gets SIGTERM cancels its job. A killed
step cannot, so the next step that writes the same output cancels the job before it starts its own, which reuses
finished work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import grpc  # type: ignore[import-untyped]
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.portable_runner import TERMINAL_STATES, JobServiceHandle

from trainyard import events

_ANSWER_SECONDS = 10.0  # chosen: a job server that does not answer must not hold up a step that got SIGTERM


def job_name(step: str, output: str) -> str:
    """Return the job name for `step` and `output`, the same for each attempt and valid for every runner.

    >>> job_name("preprocess", "gs://bucket/runs/digits/preprocess/1f0a")
    'trainyard-preprocess-8651c3dc1e0e'
    """
    return f"trainyard-{step}-{hashlib.sha256(output.encode()).hexdigest()[:12]}"


class Jobs:
    """The jobs that a pipeline starts on a job server."""

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
        events.emit("warning", message=f"beam job {job}: was not cancelled ({error.code().name})")
