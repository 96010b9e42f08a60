from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, TypeVarTuple, overload

from numpy.typing import NDArray
from tensorflow import Tensor

_T = TypeVar("_T", covariant=True)
_U = TypeVar("_U")
_V = TypeVar("_V")
_Ts = TypeVarTuple("_Ts")
_Array = NDArray[Any]

AUTOTUNE: int

class _Threading:
    private_threadpool_size: int

class _Autotune:
    ram_budget: int

class Options:
    autotune: _Autotune
    threading: _Threading

class Dataset(Generic[_T]):
    def options(self) -> Options: ...
    def with_options(self, options: Options) -> Dataset[_T]: ...
    def __iter__(self) -> Iterator[_T]: ...
    @overload
    def as_numpy_iterator(self: Dataset[Tensor]) -> Iterator[_Array]: ...
    @overload
    def as_numpy_iterator(
        self: Dataset[tuple[dict[str, Tensor], Tensor]],
    ) -> Iterator[tuple[dict[str, _Array], _Array]]: ...
    @overload
    def as_numpy_iterator(
        self: Dataset[tuple[dict[str, Tensor], Tensor, Tensor]],
    ) -> Iterator[tuple[dict[str, _Array], _Array, _Array]]: ...
    def cache(self) -> Dataset[_T]: ...
    @staticmethod
    def range(start: int, stop: int = ..., /) -> Dataset[Tensor]: ...
    @staticmethod
    def from_tensor_slices(tensors: Tensor | Sequence[str] | Sequence[bytes]) -> Dataset[Tensor]: ...
    @staticmethod
    def zip(first: Dataset[_U], second: Dataset[_V], /) -> Dataset[tuple[_U, _V]]: ...
    @overload
    def map(
        self: Dataset[tuple[*_Ts]],
        map_func: Callable[[*_Ts], _U],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[_U]: ...
    @overload
    def map(
        self, map_func: Callable[[_T], _U], num_parallel_calls: int | None = None, deterministic: bool | None = None
    ) -> Dataset[_U]: ...
    def flat_map(self, map_func: Callable[[_T], Dataset[_U]]) -> Dataset[_U]: ...
    def interleave(
        self,
        map_func: Callable[[_T], Dataset[_U]],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[_U]: ...
    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset[_T]: ...
    def unbatch(self) -> Dataset[_T]: ...
    def concatenate(self, dataset: Dataset[_T]) -> Dataset[_T]: ...
    def prefetch(self, buffer_size: int) -> Dataset[_T]: ...
    def repeat(self) -> Dataset[_T]: ...
    def shuffle(
        self, buffer_size: int, seed: int | Tensor | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset[_T]: ...
    def skip(self, count: int | Tensor) -> Dataset[_T]: ...
    def take(self, count: int | Tensor) -> Dataset[_T]: ...

class TFRecordDataset(Dataset[Tensor]):
    def __init__(self, filenames: str | Sequence[str] | Tensor, *, buffer_size: int | None = None) -> None: ...
