from collections.abc import Sequence
from typing import overload

import tensorflow as tf
from tensorflow_transform import analyzer_nodes as analyzer_nodes
from tensorflow_transform import graph_tools as graph_tools
from tensorflow_transform import nodes as nodes

class _IntDomain:
    min: int
    max: int
    is_categorical: bool

class _Feature:
    name: str
    int_domain: _IntDomain

class _Schema:
    feature: Sequence[_Feature]

class _Metadata:
    schema: _Schema

class TFTransformOutput:
    transformed_metadata: _Metadata
    def __init__(self, transform_output_dir: str) -> None: ...
    def transformed_feature_spec(self) -> dict[str, tf.io.FixedLenFeature]: ...

def apply_buckets(x: tf.Tensor, bucket_boundaries: tf.Tensor) -> tf.Tensor: ...
@overload
def compute_and_apply_vocabulary(
    x: tf.Tensor,
    *,
    top_k: int | None = None,
    frequency_threshold: int | None = None,
    num_oov_buckets: int = 0,
    vocab_filename: str | None = None,
) -> tf.Tensor: ...
@overload
def compute_and_apply_vocabulary(
    x: tf.SparseTensor,
    *,
    top_k: int | None = None,
    frequency_threshold: int | None = None,
    num_oov_buckets: int = 0,
    vocab_filename: str | None = None,
) -> tf.SparseTensor: ...
def max(x: tf.Tensor, reduce_instance_dims: bool = True) -> tf.Tensor: ...
def mean(x: tf.Tensor, reduce_instance_dims: bool = True) -> tf.Tensor: ...
def quantiles(
    x: tf.Tensor,
    num_buckets: int,
    epsilon: float,
    weights: tf.Tensor | None = None,
    reduce_instance_dims: bool = True,
) -> tf.Tensor: ...
def sum(x: tf.Tensor, reduce_instance_dims: bool = True) -> tf.Tensor: ...
def var(x: tf.Tensor, reduce_instance_dims: bool = True) -> tf.Tensor: ...
