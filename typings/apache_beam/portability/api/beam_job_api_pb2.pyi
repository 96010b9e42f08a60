from collections.abc import Sequence

class GetJobsRequest: ...

class JobInfo:
    job_id: str
    job_name: str

class GetJobsResponse:
    job_info: Sequence[JobInfo]

class GetJobStateRequest:
    def __init__(self, *, job_id: str) -> None: ...

class JobStateEvent:
    state: int

class CancelJobRequest:
    def __init__(self, *, job_id: str) -> None: ...
