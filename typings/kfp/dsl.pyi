# The part of KFP's language that the components and the catalog are written in.
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeVar

from google.protobuf.message import Message

_T = TypeVar("_T")

PIPELINE_JOB_ID_PLACEHOLDER: str
PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER: str

Output = Annotated[_T, "output"]

def OutputPath(type: type) -> type[str]: ...

class Artifact:
    path: str
    metadata: dict[str, Any]

class HTML(Artifact): ...

class Metrics(Artifact):
    def log_metric(self, metric: str, value: float) -> None: ...

class ClassificationMetrics(Artifact):
    def log_confusion_matrix(self, categories: Sequence[str], matrix: Sequence[Sequence[int]]) -> None: ...
    def log_roc_curve(self, fpr: Sequence[float], tpr: Sequence[float], threshold: Sequence[float]) -> None: ...

class _PipelineChannel:
    def __eq__(self, other: object) -> bool: ...

class PipelineTask:
    output: _PipelineChannel
    outputs: Mapping[str, _PipelineChannel]
    def set_caching_options(self, enable_caching: bool) -> PipelineTask: ...
    def after(self, *tasks: PipelineTask) -> PipelineTask: ...

class _GraphComponent:
    pipeline_spec: Message

def component(
    *, base_image: str, install_kfp_package: bool
) -> Callable[[Callable[..., object]], Callable[..., PipelineTask]]: ...
def pipeline(*, name: str, description: str | None = None) -> Callable[[Callable[..., object]], _GraphComponent]: ...

class If(AbstractContextManager[None]):
    def __init__(self, condition: object, name: str | None = None) -> None: ...
    def __exit__(self, *error: object) -> None: ...
