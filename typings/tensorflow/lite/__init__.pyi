from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from numpy.typing import NDArray
from tensorflow import DType, Module, _ConcreteFunction

class Optimize(Enum):
    DEFAULT = "DEFAULT"

class OpsSet(Enum):
    TFLITE_BUILTINS = "TFLITE_BUILTINS"
    TFLITE_BUILTINS_INT8 = "TFLITE_BUILTINS_INT8"

class TargetSpec:
    supported_ops: Sequence[OpsSet]
    supported_types: Sequence[DType]

class TFLiteConverter:
    optimizations: Sequence[Optimize]
    target_spec: TargetSpec
    representative_dataset: Callable[[], Iterable[dict[str, NDArray[Any]]]]
    inference_input_type: DType
    inference_output_type: DType
    @classmethod
    def from_concrete_functions(
        cls, funcs: Sequence[_ConcreteFunction], trackable_obj: Module | None = None
    ) -> TFLiteConverter: ...
    def convert(self) -> bytes: ...
