# The part of Keras' API that Trainyard calls. A name that is missing here is a type error: add it with its types.
#
# What a layer or an operation gives is of the kind that it takes: symbolic, TensorFlow's or JAX's.
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
import tensorflow as tf
from keras import applications as applications
from keras import config as config
from keras import initializers as initializers
from keras import layers as layers
from keras import models as models
from keras import ops as ops
from keras import optimizers as optimizers
from keras import saving as saving
from keras import tree as tree
from keras import utils as utils
from numpy.typing import NDArray

_T = TypeVar("_T")
_Operand: TypeAlias = KerasTensor | Variable | float

class _Arithmetic:
    shape: tuple[int, ...]
    dtype: str
    def __add__(self, other: _Operand | NDArray[Any]) -> KerasTensor: ...
    def __radd__(self, other: _Operand) -> KerasTensor: ...
    def __sub__(self, other: _Operand) -> KerasTensor: ...
    def __rsub__(self, other: _Operand) -> KerasTensor: ...
    def __mul__(self, other: _Operand) -> KerasTensor: ...
    def __rmul__(self, other: _Operand) -> KerasTensor: ...
    def __truediv__(self, other: _Operand) -> KerasTensor: ...
    def __lt__(self, other: _Operand) -> KerasTensor: ...
    def __gt__(self, other: _Operand) -> KerasTensor: ...

class KerasTensor(_Arithmetic):
    name: str
    def __getitem__(self, key: slice | tuple[slice | int, ...]) -> KerasTensor: ...
    def __and__(self, other: KerasTensor) -> KerasTensor: ...
    def __float__(self) -> float: ...

class Variable(_Arithmetic):
    name: str
    path: str
    value: tf.Variable
    def __init__(self, initializer: float, trainable: bool = True, name: str | None = None) -> None: ...
    def assign(self, value: NDArray[Any] | np.generic | float) -> None: ...
    def numpy(self) -> NDArray[Any]: ...

class DTypePolicy:
    name: str
    compute_dtype: str

class Layer:
    name: str
    input: KerasTensor
    output: KerasTensor
    trainable: bool
    weights: list[Variable]
    dtype_policy: DTypePolicy
    compute_dtype: str
    call: Callable[..., Any]
    @overload
    def __call__(self, inputs: Mapping[str, _T], training: bool | None = None) -> _T: ...
    @overload
    def __call__(self, inputs: list[_T], training: bool | None = None) -> _T: ...
    @overload
    def __call__(self, inputs: _T, training: bool | None = None) -> _T: ...

class Model(Layer):
    layers: list[Layer]
    losses: list[tf.Tensor]
    inputs: list[KerasTensor]
    variables: list[Variable]
    trainable_variables: list[Variable]
    non_trainable_variables: list[Variable]
    def __init__(
        self, inputs: Mapping[str, KerasTensor] | KerasTensor, outputs: KerasTensor, name: str | None = None
    ) -> None: ...
    def _flatten_layers(self, include_self: bool = True) -> Iterator[Layer]: ...
    def count_params(self) -> int: ...
    def get_weights(self) -> list[NDArray[Any]]: ...
    def set_weights(self, weights: list[NDArray[Any]]) -> None: ...
    def save(self, filepath: str | PathLike[str]) -> None: ...
    @overload
    def stateless_call(
        self,
        trainable_variables: Sequence[_T],
        non_trainable_variables: Sequence[_T],
        inputs: Mapping[str, _T],
        training: bool,
        return_losses: Literal[True],
    ) -> tuple[_T, list[_T], list[_T]]: ...
    @overload
    def stateless_call(
        self,
        trainable_variables: Sequence[_T],
        non_trainable_variables: Sequence[_T],
        inputs: Mapping[str, _T],
        training: bool,
    ) -> tuple[_T, list[_T]]: ...
    def to_json(self) -> str: ...

def Input(shape: Sequence[int], name: str | None = None, dtype: str | None = None) -> KerasTensor: ...

class StatelessScope:
    def __init__(
        self, state_mapping: Sequence[tuple[Variable, object]] = ..., *, initialize_variables: bool = ...
    ) -> None: ...
    def __enter__(self) -> StatelessScope: ...
    def __exit__(self, *error: object) -> None: ...
    def get_current_value(self, variable: Variable) -> Any: ...

class Sequential(Model): ...
