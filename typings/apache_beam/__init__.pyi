# The part of Beam's API that Trainyard calls. A name that is missing here is a type error: add it with its types.
#
# Beam's own annotations leave the elements of a collection open; here `PCollection[T]` carries them along.
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, overload

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

_A = TypeVar("_A")
_B = TypeVar("_B")
_K = TypeVar("_K")
_V = TypeVar("_V")
_T_co = TypeVar("_T_co", covariant=True)
_A_contra = TypeVar("_A_contra", contravariant=True)
_B_co = TypeVar("_B_co", covariant=True)

class PTransform(Generic[_A_contra, _B_co]):
    """From an input, a pipeline or a collection of elements, to an output."""

    def __init__(self, label: str | None = None) -> None: ...
    def __rrshift__(self, label: str) -> Self: ...
    def __ror__(self, left: _A_contra) -> _B_co: ...

class PCollection(Generic[_T_co]):
    @overload
    def __or__(self: PCollection[tuple[_K, _V]], transform: GroupByKey) -> PCollection[tuple[_K, Iterable[_V]]]: ...
    @overload
    def __or__(self, transform: PTransform[PCollection[_T_co], _B]) -> _B: ...

class Pipeline:
    runner: PipelineRunner
    options: PipelineOptions
    def __init__(self, runner: PipelineRunner | None = None, options: PipelineOptions | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __or__(self, transform: PTransform[Pipeline, _B]) -> _B: ...

class _Labelled:
    def __rrshift__(self, label: str) -> Self: ...

class GroupByKey(_Labelled): ...
class DoFn: ...

class _Process(Protocol[_A_contra, _B_co]):
    def process(self, element: _A_contra, /) -> Iterator[_B_co]: ...

class ParDo(PTransform[PCollection[_A], PCollection[_B]]):
    def __init__(self, fn: _Process[_A, _B]) -> None: ...

class Create(PTransform[Pipeline, PCollection[_A]]):
    def __init__(self, values: Iterable[_A]) -> None: ...
