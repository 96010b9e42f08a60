from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T", bound=PipelineOptions)

class PipelineOptions:
    def __init__(self, flags: Sequence[str] | None = None) -> None: ...
    def get_all_options(self) -> dict[str, object]: ...
    def view_as(self, cls: type[_T]) -> _T: ...

class DebugOptions(PipelineOptions):
    def add_experiment(self, experiment: str) -> None: ...

class DirectOptions(PipelineOptions):
    direct_num_workers: int

class SetupOptions(PipelineOptions):
    save_main_session: bool

class GoogleCloudOptions(PipelineOptions):
    job_name: str | None

class StandardOptions(PipelineOptions):
    runner: str | None
