from collections.abc import Callable
from contextlib import AbstractContextManager

import tensorflow as tf
from apache_beam import PCollection
from pyarrow import RecordBatch
from tfx_bsl.public.tfxio import TensorAdapterConfig

_Tensors = dict[str, tf.Tensor]
_Batches = tuple[PCollection[RecordBatch], TensorAdapterConfig]

class Context(AbstractContextManager[None]):
    def __init__(self, *, temp_dir: str, force_tf_compat_v1: bool) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class _TransformFn:
    def __or__(self, transform: WriteTransformFn) -> object: ...

class AnalyzeDataset:
    def __init__(self, preprocessing_fn: Callable[[_Tensors], _Tensors]) -> None: ...
    def __ror__(self, left: _Batches) -> _TransformFn: ...

class WriteTransformFn:
    def __init__(self, path: str) -> None: ...
