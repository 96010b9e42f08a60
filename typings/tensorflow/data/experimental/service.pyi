from collections.abc import Callable
from typing import TypeVar

from tensorflow.data import Dataset

_T = TypeVar("_T")

class ShardingPolicy:
    OFF: ShardingPolicy

class DispatcherConfig:
    def __init__(
        self, port: int = 0, *, job_gc_check_interval_ms: int | None = None, job_gc_timeout_ms: int | None = None
    ) -> None: ...

class DispatchServer:
    def __init__(self, config: DispatcherConfig | None = None) -> None: ...

class WorkerConfig:
    def __init__(self, dispatcher_address: str, worker_address: str | None = None, port: int = 0) -> None: ...

class WorkerServer:
    def __init__(self, config: WorkerConfig) -> None: ...

def distribute(
    processing_mode: ShardingPolicy, service: str, job_name: str | None = None, *, compression: str | None = "AUTO"
) -> Callable[[Dataset[_T]], Dataset[_T]]: ...
