from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import TypeVar

from tensorflow import Tensor
from tensorflow.data import Dataset

_T = TypeVar("_T")

class ReduceOp(Enum):
    SUM = "SUM"
    MEAN = "MEAN"

class ReplicaContext:
    num_replicas_in_sync: int
    replica_id_in_sync_group: Tensor
    def all_reduce(self, reduce_op: ReduceOp, value: Tensor) -> Tensor: ...

class InputContext: ...

class StrategyExtended:
    experimental_enable_get_next_as_optional: bool

class Strategy:
    num_replicas_in_sync: int
    extended: StrategyExtended
    def scope(self) -> AbstractContextManager[object]: ...
    def run(self, fn: Callable[..., _T], args: tuple[object, ...] = ()) -> _T: ...
    def reduce(self, reduce_op: str, value: Tensor, axis: int | None) -> Tensor: ...
    def experimental_local_results(self, value: _T) -> tuple[_T, ...]: ...
    def distribute_datasets_from_function(self, dataset_fn: Callable[[InputContext], Dataset[_T]]) -> Iterable[_T]: ...

class MirroredStrategy(Strategy):
    def __init__(self, devices: Sequence[str] | None = None) -> None: ...

class MultiWorkerMirroredStrategy(Strategy):
    def __init__(
        self, cluster_resolver: object = None, communication_options: experimental.CommunicationOptions | None = None
    ) -> None: ...

class TPUStrategy(Strategy):
    def __init__(self, tpu_cluster_resolver: cluster_resolver.TPUClusterResolver) -> None: ...

def get_strategy() -> Strategy: ...
def get_replica_context() -> ReplicaContext: ...

class cluster_resolver:
    class TPUClusterResolver:
        @staticmethod
        def connect(tpu: str) -> cluster_resolver.TPUClusterResolver: ...

class experimental:
    class CommunicationImplementation(Enum):
        RING = "RING"
        NCCL = "NCCL"

    class CommunicationOptions:
        def __init__(self, *, implementation: experimental.CommunicationImplementation) -> None: ...
