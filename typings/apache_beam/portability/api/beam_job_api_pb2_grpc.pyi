from collections.abc import Callable

from apache_beam.portability.api.beam_job_api_pb2 import GetJobsResponse, JobStateEvent

class JobServiceStub:
    GetJobs: Callable[..., GetJobsResponse]
    GetState: Callable[..., JobStateEvent]
    Cancel: Callable[..., object]
