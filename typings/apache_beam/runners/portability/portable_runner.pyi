from collections.abc import Callable, Iterator

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api.beam_job_api_pb2_grpc import JobServiceStub
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.runner import PipelineRunner

TERMINAL_STATES: list[int]

class JobServiceHandle:
    job_service: JobServiceStub
    timeout: float | None
    run: Callable[[str], tuple[str, Iterator[object], Iterator[object]]]

class PortableRunner(PipelineRunner):
    default_job_server: Callable[[PipelineOptions], JobServer]
    create_job_service: Callable[[PipelineOptions], JobServiceHandle]
